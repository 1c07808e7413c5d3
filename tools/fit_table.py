#!/usr/bin/env python3
"""Which models fit which machines: a table of `lathe plan` for published configurations.

usage: fit_table.py [--check | --write] LATHE [DOCUMENT]

Prints a Markdown table; --write puts it into the document (docs/several-gpus.md) between its marks, --check exits with 1 if it differs there.
No machine and no weights are needed: every cell is `lathe plan --config FILE --device h200 --tp N --json`.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "tests/data/configs"
MODELS = [("DeepSeek V3.2, fp8", "deepseek-v3.2"), ("DeepSeek V4 Flash, fp8 and MXFP4", "deepseek-v4-flash"), ("GLM-5, fp8", "glm-5-fp8"),
          ("Kimi K2, fp8", "kimi-k2"), ("Qwen3-235B, fp8", "qwen3-235b-fp8"), ("Llama 3.x 70B, bf16", "llama-3.1-70b"),
          ("gpt-oss-120b, MXFP4", "gpt-oss-120b"), ("Qwen3-32B, bf16", "qwen3-32b")]
RANKS = (1, 2, 4, 8)
MACHINES = ("h200", "h100")
MARKS = re.compile(r"(<!-- fit table -->\n)(.*?)(<!-- end of fit table -->)", re.S)
FLAGS = ["--context-length", "32768", "--max-running-requests", "64", "--chunked-prefill-size", "8192"]


def plan(lathe: str, config: str, machine: str, ranks: int) -> dict:
    command = [lathe, "plan", "--config", str(CONFIGS / f"{config}.json"), "--device", machine, "--tp", str(ranks), "--json", *FLAGS]
    result = subprocess.run(command, capture_output=True, text=True)
    if not result.stdout:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def tokens(plans: dict[str, dict]) -> str:
    """Tokens of the cache, "1.1M, 48k": on an H200, on an H100."""
    def one(p: dict) -> str:
        if not p["legal"]:
            return "-"
        n = p["memory"]["cache_tokens"]
        return f"{n / 1e6:.1f}M" if n >= 1e6 else f"{n // 1000}k"
    return ", ".join(one(plans[m]) for m in MACHINES)


def cell(plans: dict[str, dict]) -> str:
    legal = [p for p in plans.values() if p["legal"]]
    if not legal:
        return "-"
    return f"{legal[0]['memory']['weight_bytes'] / 1e9:.1f} GB; {tokens(plans)}"


def table(lathe: str) -> str:
    jobs = [(config, n, m) for _, config in MODELS for n in RANKS for m in MACHINES]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        plans = dict(zip(jobs, pool.map(lambda j: plan(lathe, j[0], j[2], j[1]), jobs)))
    lines = ["| model | " + " | ".join("1 GPU" if n == 1 else f"--tp {n}" for n in RANKS) + " |", "| --- |" + " ---: |" * len(RANKS)]
    for title, config in MODELS:
        lines.append(f"| {title} | " + " | ".join(cell({m: plans[config, n, m] for m in MACHINES}) for n in RANKS) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lathe", help="build/lathe")
    parser.add_argument("document", nargs="?", type=pathlib.Path, default=ROOT / "docs/several-gpus.md")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    args = parser.parse_args()
    made = table(args.lathe)
    if not args.check and not args.write:
        print(made, end="")
        return 0
    text = args.document.read_text()
    if not MARKS.search(text):
        sys.exit(f"{args.document}: no <!-- fit table -->")
    wanted = MARKS.sub(lambda m: m[1] + made + m[3], text)
    if wanted == text:
        return 0
    if args.write:
        args.document.write_text(wanted)
        return 0
    print(f"{args.document}: the table differs; {sys.argv[0]} --write {args.lathe} makes it:\n{made}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
