#!/usr/bin/env python3
"""Writes docs/results/formats.md: divergence from bf16, perplexity and right answers of the reference checkpoints in every format of weights.

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

Held-out text, as in [README.md](README.md), with products in f32. `lathe eval --perplexity TEXT --reference BF16` compares the logits of every
scored token with those of the bf16 model: KL(bf16 || format) in nats, |Δ| of the logits over all tokens of the vocabulary, and how often the
most likely token is the same. These are the measure of a format's loss.

Δnats is the mean surprise minus that of bf16. It can be negative: the models learned to answer and not to ask, they are too sure of what they
would not say, and rounding makes them less so. Right answers are those of {limit} items of each task. `tiny-v32` is published in fp8; its bf16 is that, dequantised. In its experts' down projections
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


HEAD = ("format", "MB", "KL", "largest", "mean Δ", "largest Δ", "same token", "perplexity", "Δnats", *TASKS)


def row(form, size, far, nats, base, right):
    cells = [form, f"{size / 1e6:.1f}", f"{far['kl_mean']:.5f}", f"{far['kl_max']:.3f}", f"{far['logit_difference_mean']:.4f}",
             f"{far['logit_difference_max']:.2f}", f"{100 * far['same_most_likely']:.1f} %", f"{math.exp(nats):.1f}", f"{nats - base:+.4f}"]
    return "| " + " | ".join(cells + [f"{100 * r:.0f} %" for r in right]) + " |"


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    lathe, limit = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) == 3 else 100
    page = [INTRO.format(limit=limit)]
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text(held_out_text())
        for model in MODELS:
            page += [f"## {model}\n", "| " + " | ".join(HEAD) + " |", "| --- |" + " ---: |" * (len(HEAD) - 1)]
            base = None
            for form in ("bf16", *FORMATS):
                made = pathlib.Path(folder) / f"{model}-{form}"
                requantise(ROOT / "models" / model, form, made)
                scored = evaluate(lathe, made, "--perplexity", text, "--reference", pathlib.Path(folder) / f"{model}-bf16")
                nats = math.log(scored["perplexity"]["perplexity"])
                base = nats if base is None else base
                right = [evaluate(lathe, made, "--task", t, "--limit", limit)["tasks"][t]["accuracy"] for t in TASKS]
                page.append(row(form, (made / "model.safetensors").stat().st_size, scored["reference"], nats, base, right))
                print(page[-1], flush=True)
            page.append("")
    (ROOT / "docs/results/formats.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
