"""Measures on this machine's CPU which kind of kernel is faster where: medians, as ratios."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable

import numpy as np

import lathe

HEADS, NOPE, ROPE, PAGE = 16, 512, 64, 64
Call = Callable[[], object]


def medians(calls: dict[str, Call], runs: int) -> dict[str, float]:
    """Milliseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        # In turn, so that another process's load falls on all of them alike.
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if run > 0:  # the first one warms up
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


def filled(text: str, tokens: int) -> tuple[np.ndarray, lathe.Layout, np.ndarray]:
    """Pool, layout and page table of one request of so many keys."""
    layout = lathe.Layout(text)
    pages = -(-tokens // PAGE)
    pool = np.zeros((pages, layout.page_stride(PAGE)), np.uint8)
    rows = np.random.default_rng(0).standard_normal((tokens, NOPE + ROPE)).astype(np.float32)
    lathe.encode(rows, range(tokens), pool, layout, PAGE)
    return pool, layout, np.arange(pages, dtype=np.int32)[None]


def queries(rows: int, dim: int = NOPE + ROPE) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, HEADS, dim)).astype(np.float32)


def extend(context: int, counts: list[int], runs: int) -> None:
    print(f"extend, dense latent, {HEADS} heads, last rows of {context}, mla_bf16: milliseconds")
    pool, layout, table = filled("mla_bf16", context)
    w = np.random.default_rng(2).standard_normal((2, HEADS, 128, NOPE)).astype(np.float32) / 20
    expand = {"kind": "ragged", "w_uk": w[0], "w_uv": w[1]}
    overtakes = None
    for rows in counts:
        batch = {"attention": "mla", "page_table": table, "q_indptr": [0, rows],
                 "kv_lens": [context]}  # fmt: skip
        absorbed, plain = queries(rows), queries(rows, 128 + ROPE)
        t = medians(
            {
                "inplace": lambda: lathe.attend(absorbed, pool, layout, PAGE, **batch),
                "ragged": lambda: lathe.attend(plain, pool, layout, PAGE, **expand, **batch),
            },
            runs,
        )
        ratio = t["ragged"] / t["inplace"]
        print(f"  rows {rows:>4}  inplace {t['inplace']:8.1f}  ragged {t['ragged']:8.1f}", end="")
        print(f"  ragged / inplace {ratio:5.2f}")
        if ratio >= 1:
            overtakes = None
        elif overtakes is None:
            overtakes = rows
    where = "nowhere here" if overtakes is None else f"from {overtakes} rows on"
    print(f"  ragged is the faster one {where}")


def sparse_decode(context: int, top_k: int, batches: list[int], runs: int) -> None:
    print(f"decode, {top_k} of {context} keys, {HEADS} heads, mla_fp8_block: milliseconds")
    pool, layout, _ = filled("mla_fp8_block", context)
    for batch in batches:
        q, rng = queries(batch), np.random.default_rng(3)
        lists = np.stack([rng.choice(context, top_k, replace=False) for _ in range(batch)])
        lists = lists.astype(np.int32)
        rows = np.arange(lists.size, dtype=np.int32).reshape(lists.shape)

        def gather() -> object:
            compact = lathe.gather_decode(pool, lists.reshape(-1), layout, PAGE)
            return lathe.attend(q, compact=compact, layout=layout, indices=rows, kind="gather")

        t = medians(
            {
                "inplace": lambda: lathe.attend(q, pool, layout, PAGE, indices=lists),
                "gather": gather,
            },
            runs,
        )
        print(f"  batch {batch:>3}  inplace {t['inplace']:8.2f}", end="")
        print(f"  gather {t['gather']:8.2f}", end="")
        print(f"  gather / inplace {t['gather'] / t['inplace']:5.2f}")


def dense_decode(context: int, runs: int) -> None:
    print(f"decode, dense latent, {HEADS} heads, one row over {context} keys: milliseconds")
    q, calls = queries(1), {}
    for text in ("mla_bf16", "mla_fp8", "mla_fp8_block", "mla_fp4"):
        pool, layout, table = filled(text, context)
        calls[text] = lambda pool=pool, layout=layout, table=table: lathe.attend(
            q, pool, layout, PAGE, attention="mla", page_table=table, kv_lens=[context]
        )
    t = medians(calls, runs)
    for text, taken in t.items():
        size = lathe.Layout(text).bytes_per_token / lathe.Layout("mla_bf16").bytes_per_token
        print(f"  {text:<14}{taken:8.2f}  {taken / t['mla_bf16']:5.2f} of mla_bf16's time", end="")
        print(f", {size:4.2f} of its bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; shows that it runs")
    quick = parser.parse_args().quick
    runs = 1 if quick else 7
    extend(256 if quick else 4096, [1, 16] if quick else [1, 16, 64, 128, 192, 256, 512], runs)
    sparse_decode(1024 if quick else 32768, 64 if quick else 2048, [1, 8], runs)
    dense_decode(1024 if quick else 32768, 1 if quick else 15)


if __name__ == "__main__":
    main()
