#!/usr/bin/env bash
# make_venv.sh DIR: a virtual environment in DIR with this checkout's Python module and what its tests need.
set -euo pipefail
venv=$1
cd "$(dirname "$0")/.."
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check numpy ml_dtypes pytest openai anthropic jsonschema rfc3339-validator "scikit-build-core>=0.11" "nanobind>=2.10"
# tools/check_sass.py reads machine code with these; a toolkit may lack them.
if command -v nvcc > /dev/null && ! command -v cuobjdump > /dev/null; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
fi
# Built in this environment: its paths stay the same, so rebuilds are incremental.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation .
