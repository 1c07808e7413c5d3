"""The oracle of the plug-ins' tests: sparse latent attention in float64, and fp8 records read byte by byte.

Independent of Lathe and of the engines.
"""

from __future__ import annotations

import math

import torch


def rows_of_fp8(cache: torch.Tensor) -> torch.Tensor:
    """[..., 656] bytes as float64 [n, 576]: e4m3 [512] times float32 [4], bfloat16 [64]; [..., 528], without the last, as [n, 512]."""
    data = cache.reshape(-1, cache.shape[-1]).view(torch.uint8)
    nope = data[:, :512].contiguous().view(torch.float8_e4m3fn).double()
    scale = data[:, 512:528].contiguous().view(torch.float32).double()
    rope = data[:, 528:].contiguous().view(torch.bfloat16).double()
    return torch.cat([(nope.view(-1, 4, 128) * scale[:, :, None]).view(-1, 512), rope], 1)


def attend(
    q: torch.Tensor, keys: torch.Tensor, lists: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, heads, d], keys [rows, d], lists [n, topk] with -1 for none: out [n, heads, 512], natural-log lse [n, heads]."""
    n, heads, _ = q.shape
    out = torch.zeros(n, heads, 512, dtype=torch.float64)
    lse = torch.full((n, heads), -math.inf, dtype=torch.float64)
    for i in range(n):
        mine = keys[lists[i][lists[i] >= 0].long()].double()
        if len(mine) == 0:
            continue
        scores = q[i].double() @ mine.T * scale
        lse[i] = torch.logsumexp(scores, -1)
        out[i] = torch.softmax(scores, -1) @ mine[:, :512]
    return out, lse


def check(out: torch.Tensor, want: torch.Tensor) -> None:
    # bfloat16 results have eight bits.
    torch.testing.assert_close(out.double().cpu(), want, rtol=2**-7, atol=1e-3)


def lists(rng: torch.Generator, rows: int, counts: list[int], topk: int) -> torch.Tensor:
    """For each count that many distinct rows, padded with -1."""
    made = torch.full((len(counts), topk), -1, dtype=torch.int32)
    for i, count in enumerate(counts):
        made[i, :count] = torch.randperm(rows, generator=rng)[:count].int()
    return made


def pages_of_656(rng: torch.Generator, rows: int, pow2: bool) -> torch.Tensor:
    """uint8 [rows, 656] of random tokens, with scales amax / 448, unrounded or rounded up to powers of two."""
    x = torch.randn(rows, 4, 128, generator=rng) * torch.rand(rows, 4, 1, generator=rng).add(0.1)
    scale = x.abs().amax(-1, keepdim=True) / 448
    if pow2:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    data = torch.empty(rows, 656, dtype=torch.uint8)
    data[:, :512] = (x / scale).to(torch.float8_e4m3fn).view(rows, 512).view(torch.uint8)
    data[:, 512:528] = scale.view(rows, 4).contiguous().view(torch.uint8)
    rope = torch.randn(rows, 64, generator=rng).bfloat16()
    data[:, 528:] = rope.view(torch.uint8)
    return data
