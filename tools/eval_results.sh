#!/usr/bin/env bash
# Writes docs/results/: the checkpoints over every plan, on LIMIT items of each task.
# Usage: [EVAL_NOTE=TEXT] tools/eval_results.sh path/to/lathe LIMIT [more flags of lathe eval]
set -euo pipefail
lathe=$(realpath "${1:?usage: tools/eval_results.sh path/to/lathe LIMIT}")
limit=${2:?usage: tools/eval_results.sh path/to/lathe LIMIT}
shift 2
cd "$(dirname "$0")/.."
mkdir -p docs/results
text=$(mktemp)
trap 'rm -f "$text"' EXIT
# Held-out text in the models' own format. The models were trained on answers, not on questions, so the
# questions make the perplexity large, and differences between plans as large.
zcat models/tasks/chains.jsonl.gz | python3 -c '
import json, sys
for line in list(sys.stdin)[:60]:
    item = json.loads(line)
    sys.stdout.write("<user>" + item["prompt"] + "<assistant>" + item["response"] + "<eos>")' > "$text"
for model in tiny-gqa tiny-v32 tiny-v4; do
  "$lathe" eval --model models/$model --all-plans --task all --limit "$limit" --perplexity "$text" --json --svg docs/results/$model.svg "$@" \
    | python3 -m json.tool --no-indent > docs/results/$model.json  # indentation is half of its bytes
done
python3 tools/eval_table.py docs/results ${EVAL_NOTE:+"$EVAL_NOTE"}
