"""Grouped-query attention (Llama, Qwen) with a sliding window: a prompt, then a decode step."""

from __future__ import annotations

import math

import numpy as np

import lathe

HEADS, KV_HEADS, DIM, WINDOW, PROMPT = 8, 2, 64, 100, 300

plan = lathe.plan(
    "gqa", "cpu", heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, window=WINDOW, page_size=16
)
cache = plan.caches[0]
layout, page = lathe.Layout(cache["layout"]), cache["page_size"]
print(f"cache    {layout}, pages of {page}")

rng = np.random.default_rng(0)
table = rng.permutation(-(-(PROMPT + 1) // page)).astype(np.int32)
pool = np.zeros((len(table), layout.page_stride(page)), np.uint8)
at = np.arange(PROMPT + 1)
slots = table[at // page] * page + at % page
# A row: the keys of all key-value heads, then their values.
tokens = rng.standard_normal((PROMPT + 1, layout.row_elems)).astype(np.float32)


def step(phase: str, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Writes tokens `first` and so on and returns q and what their rows attend to."""
    new = slice(first, first + count)
    lathe.encode(tokens[new], slots[new], pool, layout, page)
    q = rng.standard_normal((count, HEADS, DIM)).astype(np.float32)
    batch = {"page_table": table[None], "q_indptr": [0, count], "kv_lens": [first + count]}
    out, lse = lathe.attend(q, pool, plan=plan, phase=phase, **batch)
    oracle, oracle_lse = lathe.attend_reference(
        q, pool, layout, page, attention="gqa", window=WINDOW, **batch
    )
    np.testing.assert_allclose(out, oracle, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse, oracle_lse, rtol=1e-4, atol=1e-5)
    print(f"{phase:<9}{count} rows agree with the oracle: worst {np.abs(out - oracle).max():.1e}")
    return q, out


step("extend", 0, PROMPT)
q, out = step("decode", PROMPT, 1)

# The decode step in numpy: the last WINDOW tokens, and one key-value head for each group of heads.
rows = lathe.gather_decode(pool, slots[-WINDOW:], layout, page, dtype="f32")
keys, values = np.split(rows.reshape(WINDOW, 2 * KV_HEADS, DIM), 2, axis=1)
for head in range(HEADS):
    group = head // (HEADS // KV_HEADS)
    weights = np.exp(keys[:, group] @ q[0, head] / math.sqrt(DIM))
    expected = weights @ values[:, group] / weights.sum()
    np.testing.assert_allclose(out[0, head], expected, rtol=1e-3, atol=1e-4)
print(f"agrees   with numpy over the last {WINDOW} tokens")
