#!/bin/sh
# Build the development environment:  tools/setup.sh VENV PYTHON
# VENV/.ready, written last, says that VENV is complete; a failed set-up leaves no VENV.
set -eu
venv=$1
python=$2

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
    export DEBIAN_FRONTEND=noninteractive
    run apt-get update
    run apt-get install -y --no-install-recommends python3-venv
    can_make_venv || { say "$python still cannot make virtual environments"; exit 1; }
fi

complete=no
trap '[ "$complete" = yes ] || rm -rf "$venv"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A complete environment of this folder is brought up to date; anything else is built anew.
[ "$(cat "$venv/.ready" 2>/dev/null)" = "$PWD" ] || rm -rf "$venv"
rm -f "$venv/.ready"
[ -d "$venv" ] || run "$python" -m venv "$venv"

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
run "$venv/bin/python" -m pip install --quiet --upgrade --editable '.[dev]'

printf '%s\n' "$PWD" >"$venv/.ready"
complete=yes
