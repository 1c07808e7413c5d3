"""Window and compressed entries (DeepSeek V4): one softmax over two pools, and a sink."""

from __future__ import annotations

import numpy as np

import lathe

HEADS, CONTEXT, TOP_K = 16, 1000, 64

plan = lathe.plan("v4", "cpu", heads=HEADS)
rng = np.random.default_rng(0)


def filled(role: str, entries: int) -> tuple[np.ndarray, lathe.Layout, int]:
    """A pool of the plan's cache with random entries in its first slots."""
    cache = next(c for c in plan.caches if c["role"] == role)
    layout, page = lathe.Layout(cache["layout"]), cache["page_size"]
    pool = np.zeros((-(-entries // page), layout.page_stride(page)), np.uint8)
    rows = rng.standard_normal((entries, layout.row_elems)).astype(np.float32)
    lathe.encode(rows, range(entries), pool, layout, page)
    print(f"{role:<11}{entries:>5} entries of {layout.bytes_per_token} B, pages of {page}")
    return pool, layout, page


pool, layout, page = filled("main", CONTEXT)
extra_pool, extra_layout, extra_page = filled("compressed", CONTEXT // 4)  # one per 4 tokens

# The last two tokens: each sees the window before it, and the compressed entries chosen for it.
q = rng.standard_normal((2, HEADS, layout.row_elems)).astype(np.float32)
chosen = np.stack([rng.permutation(CONTEXT // 4)[:TOP_K] for _ in range(2)]).astype(np.int32)
sink = rng.standard_normal(HEADS).astype(np.float32)
batch = {
    "page_table": np.arange(len(pool), dtype=np.int32)[None],
    "q_indptr": [0, 2],
    "kv_lens": [CONTEXT],
}
out, lse = lathe.attend(
    q, pool, plan=plan, sink=sink, extra={"pool": extra_pool, "indices": chosen}, **batch
)
print(f"decode     window {plan.problem['window']}, {TOP_K} compressed, out {out.shape}")

extra = {"pool": extra_pool, "layout": extra_layout, "page_size": extra_page, "indices": chosen}
oracle, oracle_lse = lathe.attend_reference(
    q, pool, layout, page, attention="v4", sink=sink, extra=extra, **batch
)
np.testing.assert_allclose(out, oracle, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(lse, oracle_lse, rtol=1e-4, atol=1e-5)

# The sink takes its share of the weights and is not part of the LSE.
bare, bare_lse = lathe.attend(q, pool, layout, page, attention="v4", extra=extra, **batch)
share = 1 / (1 + np.exp(sink - bare_lse))
np.testing.assert_allclose(out, bare * share[..., None], rtol=1e-4, atol=1e-5)
print(f"sink       leaves the keys {share.min():.3f} to {share.max():.3f} of the weights")
print(f"agrees     with the oracle: worst {np.abs(out - oracle).max():.1e}")
