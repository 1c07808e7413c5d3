#!/usr/bin/env bash
# run_gpu_tests.sh DIR: runs every program in DIR, each a check (or a bench) on the GPU of this machine. Exit 77 of a program means no
# GPU.
set -uo pipefail
failed=0
for program in "$1"/*; do
  [ -x "$program" ] && [ -f "$program" ] || continue
  echo "== $(basename "$program")"
  "$program"
  rc=$?
  if [ $rc -eq 77 ]; then
    echo "run_gpu_tests: no CUDA device on this machine" >&2
    exit 77
  fi
  [ $rc -eq 0 ] || failed=1
done
exit $failed
