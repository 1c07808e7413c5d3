#!/usr/bin/env bash
# run_fuzzers.sh BUILD_DIR SECONDS: runs each fuzz target for that long, from the seeds in tests/fuzz/seeds/<target>.
set -euo pipefail
build=$1
seconds=$2
cd "$(dirname "$0")/.."
for target in "$build"/tests/fuzz/fuzz_*; do
  [ -x "$target" ] && [ -f "$target" ] || continue
  name=$(basename "$target")
  corpus="$build/corpus/$name"
  mkdir -p "$corpus"
  echo "== $name, $seconds s"
  "$target" -max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=0 -print_funcs=0 -verbosity=0 \
    -artifact_prefix="$build/" "$corpus" "tests/fuzz/seeds/$name"
  echo "   clean"
done
