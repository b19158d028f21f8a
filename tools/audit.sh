#!/bin/sh
# Check the installed versions for known vulnerabilities with a public service:  tools/audit.sh VENV PYTHON
# The tool, pip-audit, is installed into a separate folder that is removed afterwards.
# A version that the service does not know is a failure too: it was not checked.
set -eu
venv=$1
python=$2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# duly itself is installed from this folder and not checked.
"$venv/bin/python" -m pip freeze --disable-pip-version-check --exclude-editable --path "$packages" \
    >"$folder/installed.txt"
"$folder/bin/pip-audit" --strict --progress-spinner off --disable-pip --no-deps \
    --requirement "$folder/installed.txt"
