#!/usr/bin/env bash
# make_venv.sh DIR: a virtual environment in DIR with this checkout's Python module and what its tests need.
set -euo pipefail
venv=$1
cd "$(dirname "$0")/.."
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check numpy pytest
"$venv/bin/pip" install --quiet --disable-pip-version-check .
