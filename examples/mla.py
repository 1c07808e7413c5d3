"""Dense latent attention (DeepSeek V3): rows are written to pages, a decode step reads them."""

from __future__ import annotations

import numpy as np

import lathe

HEADS, NOPE, ROPE, PAGE = 16, 512, 64, 64
LENS = [300, 70]  # keys of two requests, the new token's included
SCALE = 0.1

rng = np.random.default_rng(0)
layout = lathe.Layout("mla_fp8_block")
pool = np.zeros((8, layout.page_stride(PAGE)), np.uint8)
print(f"cache    {layout}, {pool.shape[0]} pages of {pool.shape[1]} B")

# Any free pages in any order; -1 follows a request's last one.
table = np.array([[5, 0, 3, 7, 2], [6, 1, -1, -1, -1]], np.int32)
slots = []
for request, length in enumerate(LENS):
    at = np.arange(length)
    slots.append(table[request, at // PAGE] * PAGE + at % PAGE)
    latents = rng.standard_normal((length, NOPE + ROPE)).astype(np.float32)
    lathe.encode(latents, slots[request], pool, layout, PAGE)
print(f"written  {sum(LENS)} rows, {layout.bytes_per_token} B each instead of 1152 as bf16")

# One absorbed query row per request, as in a decode step.
q = rng.standard_normal((len(LENS), HEADS, NOPE + ROPE)).astype(np.float32)
batch = {"attention": "mla", "page_table": table, "kv_lens": LENS, "scale": SCALE}
out, lse = lathe.attend(q, pool, layout, PAGE, **batch)
print(f"decode   out {out.shape}, lse {lse.shape}, {out.dtype}")

# The same in numpy: the keys are what the cache holds, the values their first 512 numbers.
for request in range(len(LENS)):
    keys = lathe.gather_decode(pool, slots[request], layout, PAGE, dtype="f32").astype(np.float64)
    weights = np.exp(SCALE * q[request] @ keys.T)
    expected = weights @ keys[:, :NOPE] / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out[request], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(lse[request], np.log(weights.sum(axis=1)), rtol=1e-4)

oracle, oracle_lse = lathe.attend_reference(q, pool, layout, PAGE, **batch)
np.testing.assert_allclose(out, oracle, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(lse, oracle_lse, rtol=1e-4, atol=1e-5)
print(f"agrees   with numpy and with the oracle: worst {np.abs(out - oracle).max():.1e}")
