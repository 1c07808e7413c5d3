#!/usr/bin/env python3
"""Runs the plug-ins' methods on a Hopper GPU with torch, with stub objects instead of an engine's.

    python integrations/plugins_on_gpu.py               compare with float64, eager and in a captured graph; then time
    python integrations/plugins_on_gpu.py --json FILE   and also write the figures as JSON

Needs torch and lathe with its CUDA kernels, but no engine. Times are medians of graphs of 20 calls.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
for folder in ("lathe-sglang", "lathe-vllm", "tests"):
    sys.path.insert(0, str(HERE / folder))

import fake_vllm  # noqa: E402

fake_vllm.install()
import oracle  # noqa: E402
import torch  # noqa: E402
from lathe.compat import flash_mla  # noqa: E402
from lathe.compat.plugin import Tally  # noqa: E402
from lathe_sglang import hooks  # noqa: E402
from lathe_vllm.dense import LatheMLAImpl  # noqa: E402
from lathe_vllm.sparse import LatheMLASparseImpl  # noqa: E402

SCALE = 0.1352  # of V3.2 with YaRN
TOPK = 2048
SLOTS = 1 << 16


@functools.cache
def pool_of(fp8: bool, pow2: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A pool, and its numbers in float64."""
    rng = torch.Generator().manual_seed(5)
    if fp8:
        pool = oracle.pages_of_656(rng, SLOTS, pow2)
        return pool.cuda(), oracle.rows_of_fp8(pool)
    pool = torch.randn(SLOTS, 576, generator=rng).bfloat16()
    return pool.cuda(), pool.double()


@functools.cache
def lists_of(rows: int) -> torch.Tensor:
    """Distinct slots for each row, from a contiguous range of 16384."""
    rng = torch.Generator().manual_seed(rows)
    lists = torch.empty(rows, TOPK, dtype=torch.int32)
    for row in lists:
        start = int(torch.randint(0, SLOTS - 16384 + 1, (), generator=rng))
        row.copy_(start + torch.randperm(16384, generator=rng)[:TOPK])
    return lists


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    """The kernels' error bounds for sparse decode, except for elements in which large values cancel.

    Scores reach 16 here. P in 8 to 11 bits, and scales rounded to f16, move each of a row's values of about 1 by up to 2^-8.
    """
    torch.testing.assert_close(got, want, rtol=2.01 / 128, atol=2**-8)
    cosine = 1 - 2 * (got * want).sum() / (got**2 + want**2).sum()
    assert cosine <= 2e-5, cosine


def queries(rows: int, heads: int) -> torch.Tensor:
    rng = torch.Generator("cuda").manual_seed(rows * 1000 + heads)
    return torch.randn(rows, heads, 576, generator=rng, device="cuda")


class Case:
    """Rows that each attend to TOPK slots, or with `short` some of them to fewer."""

    def __init__(self, rows: int, heads: int, fp8: bool, pow2: bool, short: bool = False):
        self.rows, self.heads, self.fp8 = rows, heads, fp8
        self.pool, self.keys = pool_of(fp8, pow2)
        self.q = queries(rows, heads).bfloat16()
        self.lists = lists_of(rows).clone()
        if short:  # a short context, one key, and the padding row of a captured batch
            for row, count in ((0, 100), (1, 1), (2, 0)):
                self.lists[row, count:] = -1
        self.counts = (self.lists >= 0).sum(1).int().cuda()
        self.lists_gpu = self.lists.cuda()

    def check(self, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
        some = sorted({*range(min(self.rows, 4)), self.rows // 2, self.rows - 1})
        want = oracle.attend(self.q[some].cpu(), self.keys, self.lists[some], SCALE)
        got = out.view(self.rows, self.heads, 512)[some]
        near(got.double().cpu(), want[0])
        if lse is not None:
            torch.testing.assert_close(lse[some].double().cpu(), want[1], rtol=8.01 / 65536, atol=2e-3)


def sglang_kv(case: Case):
    backend = SimpleNamespace(
        dsa_kv_cache_store_fp8=case.fp8, kv_cache_dim=656 if case.fp8 else 576
    )
    layer = SimpleNamespace(tp_q_head_num=case.heads, head_dim=576, v_head_dim=512)
    cache = case.pool.view(-1, 1, case.pool.shape[1])
    if case.fp8:
        cache = cache.view(torch.float8_e4m3fn)
    hook = hooks.forward_flashmla_kv(Tally("lathe_sglang", strict=True))
    return lambda: hook(
        None, backend, q_all=case.q, kv_cache=cache, v_head_dim=512, sm_scale=SCALE, layer=layer,
        metadata=None, page_table_1=case.lists_gpu,
    )  # fmt: skip


def sglang_sparse(case: Case):
    hook = hooks.forward_flashmla_sparse(Tally("lathe_sglang", strict=True))
    cache = case.pool.view(-1, 1, 576)
    return lambda: hook(
        None, None, q_all=case.q, kv_cache=cache, v_head_dim=512, page_table_1=case.lists_gpu,
        sm_scale=SCALE, topk_length=case.counts,
    )  # fmt: skip


def vllm_kernel(case: Case):
    made = object.__new__(LatheMLASparseImpl)
    made.kv_cache_dtype = "fp8_ds_mla" if case.fp8 else "bfloat16"
    made.scale, made.kv_lora_rank, made.need_to_return_lse_for_decode = SCALE, 512, True
    cache = case.pool.view(-1, 64, case.pool.shape[1])
    pair = (case.q[..., :512].contiguous(), case.q[..., 512:].contiguous())
    return lambda: made._forward_mqa_kernel(
        pair, cache, case.lists_gpu, case.counts, layer=None, block_size=64, is_decode=True
    )


class DenseCase:
    """One request of 2048 keys per row, with `short` some shorter ones, on pages of 64 tokens; fp8: queries and keys."""

    def __init__(self, rows: int, heads: int, fp8: bool, pow2: bool, short: bool = False):
        rng = torch.Generator().manual_seed(rows * 1000 + heads)
        self.rows, self.heads, self.fp8 = rows, heads, fp8
        self.table = torch.randint(0, SLOTS // 64, (rows, TOPK // 64), generator=rng, dtype=torch.int32)
        self.lens = torch.full((rows,), TOPK, dtype=torch.int32)
        if short:
            self.lens[:3] = torch.tensor([100, 1, 0])
        self.kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
        self.q = queries(rows, heads).to(self.kind)
        self.pool = pool_of(False, False)[0].to(self.kind).view(-1, 64, 576)

    def check(self, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
        some = sorted({*range(min(self.rows, 4)), self.rows // 2, self.rows - 1})
        lists = torch.full((len(some), TOPK), -1)
        for i, row in enumerate(some):
            at = torch.arange(int(self.lens[row]))
            lists[i, : len(at)] = self.table[row, at // 64] * 64 + at % 64
        keys = self.pool.view(-1, 576).to(torch.bfloat16).double().cpu()
        want = oracle.attend(self.q[some].to(torch.bfloat16).cpu(), keys, lists, SCALE)[0]
        got = out[some].double().cpu()
        if self.fp8:  # P is e4m3: the bar of latent_native_gpu_test.cc
            assert (got - want).square().mean().sqrt() <= 0.04 * want.square().mean().sqrt()
        else:
            near(got, want)


def vllm_dense(case: DenseCase):
    made = object.__new__(LatheMLAImpl)
    made.kv_cache_dtype = "fp8" if case.fp8 else "bfloat16"
    made.scale, made.kv_lora_rank = SCALE, 512
    decode = SimpleNamespace(block_table=case.table.cuda(), seq_lens=case.lens.cuda())
    metadata = SimpleNamespace(decode=decode, num_decodes=case.rows)
    layer = SimpleNamespace(_q_scale_float=1.0, _k_scale_float=1.0)
    return lambda: made.forward_mqa(case.q, case.pool, metadata, layer)


def captured(call, times: int = 1) -> tuple[torch.cuda.CUDAGraph, object]:
    """A graph of calls, warmed up on a stream other than the captured one, as in engines."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            made = call()
    return graph, made


def microseconds(call, times: int = 20, repeats: int = 15) -> float:
    graph, _ = captured(call, times)
    taken = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1000 / times)
    return statistics.median(taken)


METHODS = {
    "sglang flashmla_kv, 656 B raw scales": (sglang_kv, True, False),
    "sglang flashmla_kv, bf16 pool": (sglang_kv, False, False),
    "sglang flashmla_sparse, bf16 rows": (sglang_sparse, False, False),
    "vllm, fp8_ds_mla": (vllm_kernel, True, True),
    "vllm, bfloat16": (vllm_kernel, False, False),
    "vllm dense, bfloat16": (vllm_dense, False, False),
    "vllm dense, fp8 queries and keys": (vllm_dense, True, False),
}


def case_of(method, *shape, **short):
    return (DenseCase if method is vllm_dense else Case)(*shape, **short)


def split(made):
    return made if isinstance(made, tuple) else (made, None)


def dense_facade() -> None:
    """SGLang's facade on dense bf16 pages."""
    rng = torch.Generator().manual_seed(3)
    cache = torch.randn(64, 64, 1, 576, generator=rng).bfloat16().cuda()
    q = torch.randn(4, 2, 16, 576, generator=rng).bfloat16().cuda()
    table = torch.randperm(64, generator=rng).view(4, 16).int()
    lens = torch.tensor([700, 65, 2, 1024], dtype=torch.int32)
    hook = hooks.flash_mla_with_kvcache(Tally("lathe_sglang", strict=True))
    out, lse = hook(
        None, q=q, k_cache=cache, block_table=table.cuda(), cache_seqlens=lens.cuda(), head_dim_v=512,
        tile_scheduler_metadata=None, softmax_scale=SCALE, causal=True,
    )  # fmt: skip
    lists = torch.full((8, 1024), -1)
    for row in range(8):
        at = torch.arange(int(lens[row // 2]) - 1 + row % 2)
        lists[row, : len(at)] = table[row // 2, at // 64] * 64 + at % 64
    keys = cache.view(-1, 576).double().cpu()
    want = oracle.attend(q.view(8, 16, 576).cpu(), keys, lists, SCALE)
    near(out.view(8, 16, 512).double().cpu(), want[0])
    got = lse.transpose(1, 2).reshape(8, 16).double().cpu()
    torch.testing.assert_close(got, want[1], rtol=8.01 / 65536, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(8)
    for name, (method, fp8, pow2) in METHODS.items():
        for rows, heads in ((5, 8), (64, 16), (128, 128), (700, 32)):
            case = case_of(method, rows, heads, fp8, pow2, short=True)
            call = method(case)
            case.check(*split(call()))
            graph, made = captured(call)
            for part in split(made):
                if part is not None:
                    part.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            case.check(*split(made))
        print(f"right: {name}", flush=True)
    dense_facade()
    print("right: sglang flash_mla_with_kvcache, dense bf16", flush=True)
    assert flash_mla.scale_policy == "raw_f32"

    figures = []
    print(f"\n{torch.cuda.get_device_name()}, {TOPK} keys a row, µs a call in a graph")
    print(f"{'method':<40}{'rows':>6}{'8 heads':>9}{'16':>9}{'32':>9}{'64':>9}{'128':>9}")
    for name, (method, fp8, pow2) in METHODS.items():
        for rows in (1, 32, 128, 4096):
            line = f"{name:<40}{rows:>6}"
            for heads in (8, 16, 32, 64, 128):
                case = case_of(method, rows, heads, fp8, pow2)
                us = microseconds(method(case), 20 if rows < 4096 else 4)
                figures.append({"method": name, "rows": rows, "heads": heads, "us": round(us, 1)})
                line += f"{us:>9.1f}"
            print(line, flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"device": torch.cuda.get_device_name(), "figures": figures}))


if __name__ == "__main__":
    main()
