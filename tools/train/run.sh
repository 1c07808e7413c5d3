#!/usr/bin/env bash
# Trains a reference checkpoint on a machine with a GPU, in commands of at most ten minutes each:
#   tools/train/run.sh v32      tiny-v32: dense training, indexer, sparse fine-tuning, evaluation, export
#   tools/train/run.sh v4       tiny-v4: the same phases, and the draft layer
#   tools/train/run.sh gqa      tiny-gqa: dense training, evaluation, export
#   tools/train/run.sh mtp      mtp.safetensors: a draft layer behind the trunk of models/tiny-v32, and its acceptance
#   tools/train/run.sh smoke    every step of both for seconds, to see that the machine can do them
# Checkpoints go to folders of $OUT (default out/train). The state between commands stays in build/train. Further arguments go to
# train.py, for example: --seconds dense=300, --resume.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${OUT:-out/train}
state=build/train
tests=models/tasks
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p "$out" "$state"

train() { $python tools/train/train.py --config "$1" --state "$state/$1" "${@:2}"; }

finish() {
  $python tools/train/export.py --config "$1" --state "$state/$1" --out "$out/${1/_/-}"
  $python tools/train/check_export.py --config "$1" --state "$state/$1" --model "$out/${1/_/-}"
}

what=${1:?usage: run.sh v32 | v4 | gqa | mtp | smoke}
shift
case $what in
  v32)
    train tiny_v32 --limit 480 --tests $tests "$@"
    finish tiny_v32
    ;;
  v4)
    train tiny_v4 --limit 345 --tests $tests "$@"
    finish tiny_v4
    $python tools/train/train_mtp.py --config tiny_v4 --model "$out/tiny-v4" --out "$out/tiny-v4"
    $python tools/train/check_mtp.py --config tiny_v4 --model "$out/tiny-v4" --tests $tests --items 200
    ;;
  gqa)
    train tiny_gqa --limit 440 --tests $tests "$@"
    finish tiny_gqa
    ;;
  mtp)
    $python tools/train/train_mtp.py --config tiny_v32 --model models/tiny-v32 --out "$out/tiny-v32" "$@"
    cp models/tiny-v32/model.safetensors "$out/tiny-v32"
    $python tools/train/check_mtp.py --config tiny_v32 --model "$out/tiny-v32" --tests $tests --items 200
    ;;
  smoke)
    state=build/train-smoke
    mkdir -p $state
    train tiny_v32 --phases dense --seconds dense=11 --limit 100 "$@"
    train tiny_v32 --phases index,sparse --resume --seconds index=11 --seconds sparse=11 --limit 100 \
      --tests $tests --eval-items 100 "$@"
    finish tiny_v32
    train tiny_gqa --seconds dense=11 --limit 100 --tests $tests --eval-items 100 "$@"
    finish tiny_gqa
    ;;
  *) echo "run.sh: wanted v32, v4, gqa, mtp or smoke, offered $what" >&2 && exit 2 ;;
esac
ls -l "$out"/*
