"""Writes the held-out test sets: <out>/{arithmetic,retrieval,copy,chains}.jsonl.gz, a thousand items each.

Each line is {"prompt", "response", "answer", ...}: `prompt` is the user's message, `response` the whole text that a
perfect model answers, `answer` what is marked (the number after "####", the number in the sentence, the
list).
"""

import argparse
import gzip
import json
import pathlib
import random

import arithmetic
import copying
import retrieval


def make(items_per_task: int) -> dict[str, list[dict]]:
    rng = random.Random("lathe test sets")
    sets = {}
    sets["arithmetic"] = [arithmetic.item(rng, True, 2 + i % 3) for i in range(items_per_task)]
    sets["retrieval"] = retrieval.test_set(rng, items_per_task)
    borders = copying.LENGTHS
    sets["copy"] = [copying.item(rng, True, borders[i % len(borders)]) for i in range(items_per_task)]
    # Up to one step more than the checkpoints were trained on, which they get right at times.
    sets["chains"] = [arithmetic.item(rng, True, 4 + i % 2) for i in range(items_per_task)]
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--items", type=int, default=1000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, items in make(args.items).items():
        lines = []
        for entry in items:
            lines.append(json.dumps(entry) + "\n")
        path = args.out / f"{name}.jsonl.gz"
        # A fixed time stamp keeps the file the same from run to run.
        with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=9, mtime=0) as out:
            out.write("".join(lines).encode())
        print(f"{path}: {len(items)} items, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
