#!/usr/bin/env bash
# Shows lathe on the shipped checkpoint: a plan that pairs gathered prefill with native fp8 decode, a word problem and a
# retrieval from held-out test sets, each streamed as it is decoded, with its speed.
# Usage: tools/demo.sh path/to/lathe
set -euo pipefail
lathe=$(realpath "${1:?usage: tools/demo.sh path/to/lathe}")
cd "$(dirname "$0")/.."
model=models/tiny-v32
pair=(--prefill-attention-backend gather --decode-attention-backend native --kv-layout mla_fp8)
prompt=$(mktemp)
trap 'rm -f "$prompt"' EXIT

# Writes the prompt of item $2 of task $1 to $prompt and sets `wanted` to the right answer.
take() {
  wanted=$(python3 - "$1" "$2" "$prompt" <<'P'
import gzip, json, sys
task, number, out = sys.argv[1:]
with gzip.open(f"models/tasks/{task}.jsonl.gz", "rt") as lines:
    item = next(json.loads(line) for i, line in enumerate(lines) if i == int(number))
open(out, "w").write(item["prompt"])
print(item["answer"])
P
  )
}
answer() {
  "$lathe" generate --model $model "${pair[@]}" --apply-chat-template --prompt-file "$prompt" "$@"
  sleep 0.1 # lets stderr's filter print first
  echo "wanted    $wanted"
}

take arithmetic 5
echo "A word problem that training never saw, to $model:"
echo
fold -s -w 100 "$prompt"
echo
echo
answer --explain
take retrieval 2
echo
echo "$(grep -c 'The pair is' "$prompt") pairs of words among $(wc -w < "$prompt") words. The text begins and ends:"
echo
head -n 2 "$prompt"
echo "..."
tail -n 2 "$prompt"
echo
echo
answer 2> >(sed -u -n '/^prefill  *[0-9]\|^decode  *[0-9]\|^plan/p' >&2)
