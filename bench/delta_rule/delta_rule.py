#!/usr/bin/env python3
"""Delta-rule layers (GDN and KDA) on an H200, next to flash-linear-attention in the same process.

    pip install torch flash-linear-attention
    nvcc -O3 -std=c++20 -shared -Xcompiler -fPIC -gencode arch=compute_90a,code=sm_90a -Isrc bench/delta_rule/delta_call.cu -o libdelta.so
    python3 bench/delta_rule/delta_rule.py libdelta.so                        decode, then prefill next to flash-linear-attention
    python3 bench/delta_rule/delta_rule.py libdelta.so --parts gdn --seed 7   only GDN's prefill, other lengths

Sizes are those of Qwen3.5-35B-A3B (GDN: 16 key heads, 32 value heads, all of 128) and Kimi-Linear (KDA: 32 heads of 128). Prefill times are of
chunk_gated_delta_rule() or chunk_kda(), with gates, beta, and normed q and k given, and of Lathe's kernels for the same from the same inputs:
chunks and scan, which compute gates and beta too. A turn is a CUDA graph of one call of each side; times are medians
over turns, in microseconds. `difference` is the norm of the
outputs' difference over the norm of the outputs. One prefill has 8192 rows; the lengths of the others are drawn from a seed.
"""

import argparse
import ctypes
import random
import statistics

import torch

WIDTH, TAPS = 128, 4
ROWS, MIX, CHUNKS, SCAN, FINISH, DECODE = range(6)  # kKernels of delta_call.cu
ONE_LAUNCH = 16  # kDeltaDecodeRequests of delta.h
SEED = 20261129


class Layer:
    """Random inputs and states of a layer: `rows` rows of each request after `cached` ones."""

    def __init__(self, library: str, kda: bool, requests: int, rows: int, cached: int, layers: int = 1):
        self.library = ctypes.CDLL(library)
        self.kda, self.heads, self.key_heads = kda, 32, 32 if kda else 16
        total, values = requests * rows, self.heads * WIDTH
        channels = 2 * self.key_heads * WIDTH + values
        gates = values if kda else self.heads
        chunks = total // 64 + 2 * requests

        def normal(*shape):
            return torch.randn(*shape, device="cuda")

        def ints(values):
            return torch.tensor(list(values), dtype=torch.int32, device="cuda")

        def scratch(*shape, dtype=torch.bfloat16):
            return torch.empty(*shape, device="cuda", dtype=dtype)

        self.decay, self.beta = normal(total, gates), normal(total, self.heads)
        self.a_log, self.dt_bias = torch.log(torch.rand(self.heads, device="cuda") * 3.95 + 0.05), normal(gates) - 3
        self.out, self.mixed = scratch(total, values), scratch(total, channels)
        self.states = [0.1 * normal(requests, self.heads * WIDTH * WIDTH + (TAPS - 1) * channels) for _ in range(layers)]
        tile = 64 * (WIDTH + 8)
        first = [normal(total, channels), self.decay, self.beta, normal(total, values), 0.5 * normal(channels, TAPS), self.a_log,
                 self.dt_bias, 1 + 0.2 * normal(WIDTH), self.out, ints(cached + t for _ in range(requests) for t in range(rows)),
                 ints(r for r in range(requests) for _ in range(rows)), ints(range(0, total + 1, rows)),
                 ints([cached + rows] * requests), ints(range(requests) if cached > 0 else [-1] * requests), ints(range(requests))]
        last = [self.mixed, scratch(chunks * self.heads * tile), scratch(chunks * self.heads * 4 * 64 * 40),
                scratch(chunks * self.heads * 64 * 72), scratch(chunks * self.key_heads * tile), scratch(chunks * self.key_heads * tile),
                scratch(chunks * self.heads * 128, dtype=torch.float32), scratch(chunks * self.heads * 128, dtype=torch.float32)]
        self.arrays = [first, last]
        self.addresses = [(ctypes.c_void_p * 24)(*[t.data_ptr() for t in [*first, state, *last]]) for state in self.states]
        self.counts = (ctypes.c_longlong * 11)(self.heads, self.key_heads, kda, 0, kda, total, requests, 1, 1 << 20, 1, 1)
        self.numbers = (ctypes.c_float * 2)(-5, 1e-6)

    def run(self, *kernels: int, layer: int = 0):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for kernel in kernels:
            status = self.library.delta_call(kernel, self.counts, self.numbers, self.addresses[layer], stream)
            if status != 0:
                raise RuntimeError(f"CUDA error {status} in kernel {kernel}")

    def peer_inputs(self):
        """q, k, v, g and beta as flash-linear-attention wants them, of one request: g is the log of the fade."""
        split = self.key_heads * WIDTH
        q, k, v = self.mixed.tensor_split([split, 2 * split], dim=1)
        g = -self.a_log.exp().view(-1, 1) * torch.nn.functional.softplus(self.decay + self.dt_bias).view(len(q), self.heads, -1)
        return (*(t.reshape(1, len(t), -1, WIDTH).contiguous() for t in (q, k, v)), g.reshape(1, *(g.shape if self.kda else g.shape[:2])).contiguous(),
                torch.sigmoid(self.beta).to(torch.bfloat16)[None])


def recorded(call):
    """A graph of the call, so that the host's time is not in its figures."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def microseconds(calls: list, turns: int) -> list[float]:
    """Medians of calls that take turns."""
    for _ in range(3):
        for call in calls:
            call()
    marks = [[(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls] for _ in range(turns)]
    for turn in marks:
        for call, (start, end) in zip(calls, turn):
            start.record()
            call()
            end.record()
    torch.cuda.synchronize()
    return [statistics.median(1e3 * turn[i][0].elapsed_time(turn[i][1]) for turn in marks) for i in range(len(calls))]


def decode(library: str):
    """One row of each request. A graph runs layers with states of their own, more than the L2 cache has room for."""
    print("| decode | requests | us | us for the states at 4.8 TB/s | share |\n| --- | ---: | ---: | ---: | ---: |")
    for kda in (False, True):
        for requests in (1, 8, 64):
            layers = max(2, 64 // requests)
            layer = Layer(library, kda, requests, 1, 100, layers)
            kernels = (DECODE,) if requests <= ONE_LAUNCH else (ROWS, FINISH)
            replay = recorded(lambda: [layer.run(*kernels, layer=i) for i in range(layers)])
            us = microseconds([replay], 30)[0] / layers
            least = 2 * 4 * layer.states[0].numel() / 4.8e6
            print(f"| {'KDA' if kda else 'GDN'} | {requests} | {us:.1f} | {least:.1f} | {least / us:.2f} |", flush=True)


def prefill(library: str, kda: bool, lengths: list[int], peer: bool):
    """Whole prompts, after nothing."""
    if peer and kda:
        from fla.ops.kda import chunk_kda as call_peer
    elif peer:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule as call_peer
    print(f"\n| {'KDA' if kda else 'GDN'} rows | convolution, norms | chunks | scan | gated norm | chunks + scan | flash-linear-attention | ratio | difference |")
    print("| ---: " * 9 + "|")
    for rows in lengths:
        layer = Layer(library, kda, 1, rows, 0)
        layer.run(MIX, CHUNKS, SCAN)
        times = [microseconds([recorded(lambda: layer.run(kernel))], 20)[0] for kernel in (MIX, CHUNKS, SCAN, FINISH)]
        layer.run(SCAN)  # its outputs, which FINISH has normed in place
        cells = [f"{t:.0f}" for t in times]
        if peer:
            q, k, v, g, beta = layer.peer_inputs()
            zeros = torch.zeros(1, layer.heads, WIDTH, WIDTH, device="cuda")
            with torch.inference_mode():
                run_peer = lambda: call_peer(q, k, v, g, beta, scale=1.0, initial_state=zeros, output_final_state=True)
                theirs = run_peer()[0].reshape(rows, -1).float()
                difference = ((layer.out.float() - theirs).norm() / theirs.norm()).item()
                own, other = microseconds([recorded(lambda: layer.run(CHUNKS, SCAN)), recorded(run_peer)], 30)
            cells += [f"{own:.0f}", f"{other:.0f}", f"{other / own:.2f}", f"{difference:.1e}"]
        print(f"| {rows} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="made from delta_call.cu")
    parser.add_argument("--parts", default="decode,gdn,kda", help="of decode, gdn, kda")
    parser.add_argument("--lengths", type=int, default=5, help="lengths to draw besides 8192")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--no-peer", action="store_true", help="without flash-linear-attention, which compiles for a minute and a half")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    generator = random.Random(args.seed)
    lengths = [8192] + [generator.randint(500, 16384) for _ in range(args.lengths)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {args.seed}", flush=True)
    for part in args.parts.split(","):
        if part == "decode":
            decode(args.library)
        else:
            prefill(args.library, part == "kda", lengths, not args.no_peer)


if __name__ == "__main__":
    main()
