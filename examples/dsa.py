"""Sparse latent attention (DeepSeek V3.2): the prefill gathers, the decode reads pages, one cache.

The prefill kernel wants compact bf16 rows, the decode kernel the pages' own fp8. The plan proves
that both read what the cache holds, so both sides agree with one oracle over the same bytes.
"""

from __future__ import annotations

import numpy as np

import lathe

HEADS, PROMPT, TOP_K, KEY_SCALE = 16, 500, 64, 0.5

plan = lathe.plan(
    "dsa",
    "cpu",
    kv_layout="mla_fp8",
    prefill_attention_backend="gather",
    decode_attention_backend="native",
    top_k=TOP_K,
    heads=HEADS,
)
cache = plan.caches[0]
layout, page = lathe.Layout(cache["layout"]), cache["page_size"]
print(f"cache    {layout}, pages of {page}")
for phase in ("extend", "decode"):
    route = plan.phases[phase]["routes"][-1]
    print(f"{phase:<9}{route['kernel']}, reads {route['unit']}")

rng = np.random.default_rng(0)
pages = rng.permutation(-(-(PROMPT + 1) // page))
pool = np.zeros((len(pages), layout.page_stride(page)), np.uint8)
at = np.arange(PROMPT + 1)
slots = pages[at // page] * page + at % page
latents = rng.standard_normal((PROMPT + 1, layout.row_elems)).astype(np.float32)


def step(phase: str, first: int, count: int) -> None:
    """Writes tokens `first` and so on, then lets their rows attend to the keys chosen for them."""
    new = slice(first, first + count)
    lathe.encode(latents[new], slots[new], pool, layout, page, KEY_SCALE)
    q = rng.standard_normal((count, HEADS, layout.row_elems)).astype(np.float32)
    # An indexer would choose; here any earlier tokens do. Rows with fewer keys end in -1.
    chosen = np.full((count, TOP_K), -1, np.int32)
    for row in range(count):
        seen = slots[: first + row + 1]
        picked = rng.permutation(seen)[:TOP_K]
        chosen[row, : len(picked)] = picked
    batch = {"indices": chosen, "key_scale": KEY_SCALE}
    out, lse = lathe.attend(q, pool, plan=plan, phase=phase, **batch)
    oracle, oracle_lse = lathe.attend_reference(q, pool, layout, page, **batch)
    np.testing.assert_allclose(out, oracle, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse, oracle_lse, rtol=1e-4, atol=1e-5)
    print(f"{phase:<9}{count} rows agree with the oracle: worst {np.abs(out - oracle).max():.1e}")


step("extend", 0, PROMPT)
step("decode", PROMPT, 1)
