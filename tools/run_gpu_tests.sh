#!/usr/bin/env bash
# run_gpu_tests.sh DIR: runs every program in DIR, each a test (or a benchmark) on this machine's GPU. A program exits with 77 if there
# is no GPU.
set -uo pipefail
if [ $# -ne 1 ] || [ ! -d "$1" ]; then
  echo "run_gpu_tests: wanted the folder of the programs (build-cuda/gpu, or its bench), got \"${1-}\"" >&2
  exit 2
fi
failed=0
ran=0
for program in "$1"/*; do
  [ -x "$program" ] && [ -f "$program" ] || continue
  echo "== $(basename "$program")"
  "$program"
  rc=$?
  ran=$((ran + 1))
  if [ $rc -eq 77 ]; then
    echo "run_gpu_tests: no CUDA device on this machine" >&2
    exit 77
  fi
  [ $rc -eq 0 ] || failed=1
done
if [ $ran -eq 0 ]; then
  echo "run_gpu_tests: no program in $1; the targets lathe_gpu_tests and lathe_gpu_benches make them" >&2
  exit 1
fi
exit $failed
