#!/usr/bin/env python3
"""Writes docs/results/formats.md: perplexity and right answers of the reference checkpoints in every format of weights.

    python3 tools/format_table.py path/to/lathe [LIMIT]     (numpy and ml_dtypes, as in tools/make_venv.sh; LIMIT items of a task, 100)

Each model is requantised by tools/requantise.py, rounding to nearest, and run by `lathe eval` with products in f32.
"""

import gzip
import json
import math
import pathlib
import subprocess
import sys
import tempfile

from requantise import FORMATS, requantise

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ("tiny-gqa", "tiny-v32")
TASKS = ("arithmetic", "chains")
INTRO = """# Formats of weights

The reference checkpoints with their linear layers requantised by rounding to nearest (`tools/requantise.py`), without calibration: what
a format loses, not what a good quantiser reaches. `tools/format_table.py` writes this page; [docs/models.md](../models.md#formats-of-weights) lists the formats.

Perplexity of held-out text, as in [README.md](README.md), with products in f32; Δnats is the mean surprise minus that of bf16. The models
learned to answer and not to ask: they are too sure of what they would not say, and rounding makes them less so. So damage is the size of Δnats,
whatever its sign, and fewer right answers in `chains`, with {limit} items of each task. `tiny-v32` is published in fp8; its bf16 is that, dequantised. In its experts' down projections
a group of 128 is a whole row.
"""


def held_out_text():
    """As tools/eval_results.sh: items in the models' own format."""
    with gzip.open(ROOT / "models/tasks/chains.jsonl.gz", "rt") as lines:
        items = [json.loads(line) for _, line in zip(range(60), lines)]
    return "".join(f"<user>{i['prompt']}<assistant>{i['response']}<eos>" for i in items)


def evaluate(lathe, model, *flags):
    command = [lathe, "eval", "--model", model, "--task-dir", ROOT / "models/tasks", "--json", "--dtype", "float32", *flags]
    return json.loads(subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE).stdout)


def row(form, size, nats, base, right):
    return f"| {form} | {size / 1e6:.1f} | {math.exp(nats):.1f} | {nats - base:+.4f} | " + " | ".join(f"{100 * r:.0f} %" for r in right) + " |"


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    lathe, limit = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) == 3 else 100
    page = [INTRO.format(limit=limit)]
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text(held_out_text())
        for model in MODELS:
            page += [f"## {model}\n", "| format | MB | perplexity | Δnats | " + " | ".join(TASKS) + " |", "| --- | ---: | ---: | ---: |" + " ---: |" * len(TASKS)]
            base = None
            for form in ("bf16", *FORMATS):
                made = pathlib.Path(folder) / f"{model}-{form}"
                requantise(ROOT / "models" / model, form, made)
                nats = math.log(evaluate(lathe, made, "--perplexity", text)["perplexity"]["perplexity"])
                base = nats if base is None else base
                right = [evaluate(lathe, made, "--task", t, "--limit", limit)["tasks"][t]["accuracy"] for t in TASKS]
                page.append(row(form, (made / "model.safetensors").stat().st_size, nats, base, right))
                print(page[-1], flush=True)
            page.append("")
    (ROOT / "docs/results/formats.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
