#!/usr/bin/env python3
"""Writes FOLDER/README.md from the FOLDER/*.json that `lathe eval --all-plans --json` printed.

usage: eval_table.py FOLDER [NOTE]

NOTE is a sentence on the conditions of the run.
"""

import json
import pathlib
import sys

KINDS = {"gather", "inplace", "native"}


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def difference(score: dict) -> str:
    """Nats per token more than the plain plan, with half the width of the 95 % interval."""
    low, high = score["nats_interval_95"]
    return f"{score['nats_more_than_plain']:+.5f} ± {(high - low) / 2:.5f}"


def section(name: str, data: dict) -> list[str]:
    rows = data["rows"]
    plain = rows[0]
    tasks = list(plain["tasks"])
    items = ", ".join(f"{t} {plain['tasks'][t]['items']}" for t in tasks)
    out = [f"## {name}", "", f"![accuracy of every plan, and likelihood of held-out text]({name}.svg)", ""]
    out += [f"Items: {items}. {data['threads']} threads, products in {data['arithmetic']}. Over the plain plan:", ""]
    out += ["| task | accuracy | 95 % interval | invalid | groups |", "| --- | ---: | --- | ---: | --- |"]
    for task in tasks:
        f = plain["tasks"][task]
        low, high = f["interval_95"]
        groups = f["groups"]
        shown = ", ".join(f"{k}: {percent(g['right'] / g['items'])}" for k, g in groups.items())
        if len(groups) > 6:
            worst = min(g["right"] / g["items"] for g in groups.values())
            shown = f"{len(groups)} lengths, the worst {percent(worst)}"
        out.append(f"| {task} | {percent(f['accuracy'])} | {percent(low)} to {percent(high)} | {f['invalid']} | {shown} |")
    low, high = plain["perplexity"]["interval_95"]
    out += ["", f"Perplexity of held-out text over the plain plan: {plain['perplexity']['perplexity']:.1f} ({low:.1f} to {high:.1f}, "
            f"{plain['perplexity']['tokens']} tokens).", ""]

    outside = []
    for row in rows[1:]:
        for task in tasks:
            low, high = plain["tasks"][task]["interval_95"]
            if not low - 1e-9 <= row["tasks"][task]["accuracy"] <= high + 1e-9:
                outside.append(f"{row['layout']} {row['prefill']} -> {row['decode']}, {task}")
    out.append(
        "No plan's accuracy leaves the plain plan's interval on any task."
        if not outside
        else "Outside the plain plan's interval: " + "; ".join(outside) + "."
    )
    two_bytes = [r for r in rows if r["layout"] == plain["layout"] and {r["prefill"], r["decode"]} <= KINDS]
    equal = [r for r in two_bytes if r["equal_tokens"] == r["reference_tokens"]]
    exact = [r for r in two_bytes if r["mean_abs_logit_difference"] == 0]
    out.append(
        f"Of {len(two_bytes)} rows over {plain['layout']} that pair gather, inplace and native, chunk sizes included, "
        f"{len(equal)} agree with the plain one in every token and {len(exact)} in every bit of the compared logits."
    )
    out += ["", "| layout | prefill | decode | chunk | B/token | " + " | ".join(tasks) + " | agree | \\|Δlogit\\| | perplexity | Δnats |"]
    out += ["| --- | --- | --- | ---: | ---: | " + "---: | " * len(tasks) + "---: | ---: | ---: | ---: |"]
    for row in rows:
        cells = [row["layout"], row["prefill"], row["decode"], str(row["chunk"]), f"{row['cache_bytes_per_token']:.0f}"]
        cells += [percent(row["tasks"][t]["accuracy"]) for t in tasks]
        cells += [
            percent(row["equal_tokens"] / row["reference_tokens"], 2),
            f"{row['mean_abs_logit_difference']:.2g}",
            f"{row['perplexity']['perplexity']:.1f}",
            difference(row["perplexity"]),
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out + [""]


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    lines = [
        "# Results",
        "",
        "The reference checkpoints over every legal plan: every pair of prefill and decode kernels over every layout. `make eval` writes",
        "this page, its data and its pictures (`EVAL_LIMIT=1000 make eval`: all items). [docs/evaluation.md](../evaluation.md) says what is measured.",
        *sys.argv[2:3],
        "",
    ]
    for path in sorted(folder.glob("*.json"), reverse=True):
        lines += section(path.stem, json.loads(path.read_text()))
    (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
