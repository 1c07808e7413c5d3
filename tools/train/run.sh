#!/usr/bin/env bash
# Trains a reference checkpoint on a machine with a GPU, in commands of at most ten minutes each:
#   tools/train/run.sh v32 part1    dense training, exact answers with dense attention
#   tools/train/run.sh v32 part2    indexer, sparse fine-tuning, evaluation, export
#   tools/train/run.sh gqa          tiny-gqa from start to end
#   tools/train/run.sh smoke        every step of both for seconds, to see that the machine can do them
# Results go to $OUT (default out/train). The state between commands stays in build/train. Further arguments go to
# train.py, for example: --seconds dense=300, --resume. On a machine that lost its state, part2 --weights DIR starts
# from the weights-*.safetensors and log.json that part1 handed out.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${OUT:-out/train}
state=build/train
tests=tests/tasks
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p "$out" "$state"

train() { $python tools/train/train.py --config "$1" --state "$state/$1" --out "$out" "${@:2}"; }

finish() {
  $python tools/train/export.py --config "$1" --state "$state/$1" --out "$out" --no-tokenizer
  $python tools/train/check_export.py --config "$1" --state "$state/$1" --model "$out" || true
  # The weights are in model.safetensors; the log is in training_log.json.
  rm -f "$out"/weights-*.safetensors "$out/log.json"
}

what=${1:?usage: run.sh v32 part1 | v32 part2 | gqa | smoke}
shift
case $what in
  v32)
    part=${1:?usage: run.sh v32 part1|part2}
    shift
    case $part in
      part1) train tiny_v32 --phases dense --limit 390 --tests $tests --eval-seconds 1 "$@" ;;
      part2)
        train tiny_v32 --phases index,sparse --resume --limit 430 --tests $tests "$@"
        finish tiny_v32
        ;;
      *) echo "run.sh v32: wanted part1 or part2, offered $part" >&2 && exit 2 ;;
    esac
    ;;
  gqa)
    train tiny_gqa --limit 440 --tests $tests "$@"
    finish tiny_gqa
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
  *) echo "run.sh: wanted v32, gqa or smoke, offered $what" >&2 && exit 2 ;;
esac
ls -l "$out"
