#!/usr/bin/env bash
# Trains a reference checkpoint on a machine with a GPU, in commands of at most ten minutes each:
#   tools/train/run.sh v32      tiny-v32: dense training, indexer, sparse fine-tuning, evaluation, export
#   tools/train/run.sh v4       tiny-v4: the same phases, and the draft layer
#   tools/train/run.sh gqa      tiny-gqa: dense training, evaluation, export
#   tools/train/run.sh mtp      mtp.safetensors: a draft layer behind the trunk of models/tiny-v32, and its acceptance
#   tools/train/run.sh smoke    every step of all, or of one (smoke tiny_v4), for seconds: that the machine can do them.
#                               Without a GPU, on small batches, in some ten minutes each
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

# mtp CONFIG FOLDER ITEMS...: the draft layer of the checkpoint in FOLDER, and its acceptance on ITEMS of each task
mtp() {
  $python tools/train/train_mtp.py --config "$1" --model "$2" --out "$2" "${@:4}"
  $python tools/train/check_mtp.py --config "$1" --model "$2" --tests $tests --items "$3"
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
    mtp tiny_v4 "$out/tiny-v4" 200
    ;;
  gqa)
    train tiny_gqa --limit 440 --tests $tests "$@"
    finish tiny_gqa
    ;;
  mtp)
    mkdir -p "$out/tiny-v32"
    cp models/tiny-v32/model.safetensors "$out/tiny-v32"
    mtp tiny_v32 "$out/tiny-v32" 200 "$@"
    ;;
  smoke)
    state=build/train-smoke
    mkdir -p $state
    small=() items=100
    command -v nvidia-smi >/dev/null || small=(--tokens 1024 --workers 1) items=2
    for model in ${1:-tiny_v32 tiny_v4 tiny_gqa}; do
      train $model --phases dense --seconds dense=11 --limit 100 "${small[@]}" --tests $tests --eval-items $items
      if [ $model != tiny_gqa ]; then
        train $model --phases index,sparse --resume --seconds index=11 --seconds sparse=11 --limit 100 "${small[@]}" \
          --tests $tests --eval-items $items
      fi
      finish $model
      [ $model = tiny_gqa ] || mtp $model "$out/${model/_/-}" $items --share 0.1 "${small[@]}"
    done
    ;;
  *) echo "run.sh: wanted v32, v4, gqa, mtp or smoke, offered $what" >&2 && exit 2 ;;
esac
ls -l "$out"/*
