#!/usr/bin/env python3
"""What a call of attention costs through Python, on a Hopper GPU with torch.

    python bench/python_calls.py                                              decode of 128 requests, dense and sparse
    python bench/python_calls.py --program build/gpu/bench/latent_gpu_bench   beside the same call from C++

host: µs that a call takes the host, of 40 on an idle GPU. eager: wall time of 200 calls, one after another, and the wait for the last. graph:
20 calls in a CUDA graph, by events. All are per call, and medians of measurements with a rest before each. C++: `latent_gpu_bench` of the same case, in the same two ways: 200 calls
launched one after another, by events, and a graph of 20, with a rest before each; where a door makes the schedule of the lengths at each call, that does, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import lathe
from lathe.compat import flash_mla

PAGE, REQUESTS, WIDTH = 64, 128, 2048
CONTEXT = {"dense": 4096, "sparse": 32768}
HOST_CALLS, EAGER_CALLS, GRAPH_CALLS = 40, 200, 20
REST = 0.1  # seconds before each measurement: at 128 heads a card that never rests is at its power limit, and a fifth slower


class Case:
    def __init__(self, kind: str, heads: int, requests: int) -> None:
        self.kind, self.heads, self.requests = kind, heads, requests
        self.context = CONTEXT[kind]
        self.layout = lathe.Layout("mla_bf16" if kind == "dense" else "mla_fp8_block")
        numbers = np.random.default_rng(1)
        rows = numbers.standard_normal((PAGE * PAGE, 576), dtype=np.float32)
        few = np.zeros((PAGE, self.layout.page_stride(PAGE)), np.uint8)
        lathe.encode(rows, np.arange(len(rows)), few, self.layout, PAGE)
        pages = requests * self.context // PAGE
        self.pool = torch.from_numpy(few).cuda().repeat(pages // PAGE, 1)
        torch.manual_seed(1)
        self.q = torch.randn(requests, heads, 576, device="cuda").bfloat16()
        first = torch.arange(requests, dtype=torch.int32, device="cuda")
        width = self.context // PAGE
        self.table = first[:, None] * width + torch.arange(width, dtype=torch.int32, device="cuda")
        self.lens = torch.full((requests,), self.context, dtype=torch.int32, device="cuda")
        chosen = torch.rand(requests, self.context).argsort(1)[:, :WIDTH].int().cuda()
        self.lists = (first[:, None] * self.context + chosen).contiguous()

    def keys(self) -> dict[str, Any]:
        if self.kind == "sparse":
            return dict(attention="dsa", indices=self.lists, max_request_rows=1)
        return dict(attention="mla", page_table=self.table, kv_lens=self.lens)

    def attend(self) -> Callable[[], Any]:
        keys = self.keys()
        return lambda: lathe.attend(self.q, self.pool, self.layout, PAGE, **keys)

    def layer(self) -> Callable[[], Any]:
        """A layer that takes the schedule of its step's first one, in memory of the caller's."""
        keys = self.keys()
        most = dict(index_width=WIDTH)
        if self.kind == "dense":
            most = dict(max_kv_len=self.context)
        size = lathe.attend_workspace(
            self.requests, self.heads, self.layout, PAGE, pages=len(self.pool), attention=keys["attention"], **most
        )
        made = dict(
            out=torch.empty(self.requests, self.heads, 512, dtype=torch.bfloat16, device="cuda"),
            lse=torch.empty(self.requests, self.heads, device="cuda"),
            workspace=torch.empty(size, dtype=torch.uint8, device="cuda"),
        )
        lathe.attend(self.q, self.pool, self.layout, PAGE, **keys, **made)
        return lambda: lathe.attend(self.q, self.pool, self.layout, PAGE, **keys, **made, part="attention")

    def flash_mla(self, shared: bool) -> Callable[[], Any]:
        q = self.q.view(self.requests, 1, self.heads, 576)
        if self.kind == "dense":
            cache = self.pool.view(torch.bfloat16).view(-1, PAGE, 1, 576)
            rest: dict[str, Any] = dict(causal=True)
            keys = (cache, self.table, self.lens)
        else:
            cache = self.pool[:, : PAGE * 656].view(-1, PAGE, 1, 656)
            rest = dict(is_fp8_kvcache=True, indices=self.lists.view(self.requests, 1, WIDTH))
            keys = (cache, None, None)
        step, _ = flash_mla.get_mla_metadata()

        def call() -> Any:
            meta = step if shared else flash_mla.get_mla_metadata()[0]
            return flash_mla.flash_mla_with_kvcache(q, *keys, 512, meta, None, **rest)

        return call


def host(call: Callable[[], Any]) -> float:
    """µs of a call, while the GPU works on others."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * took / HOST_CALLS


def eager(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(EAGER_CALLS):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / EAGER_CALLS


def graph(call: Callable[[], Any]) -> Callable[[], float]:
    captured = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    side.synchronize()
    with torch.cuda.graph(captured, stream=side):
        for _ in range(GRAPH_CALLS):
            call()

    def replay() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        captured.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / GRAPH_CALLS

    return replay


def median(take: Callable[[], float], repeats: int) -> float:
    times = []
    for _ in range(3 + repeats):
        time.sleep(REST)
        times.append(take())
    return statistics.median(times[3:])


def from_cpp(program: str, case: Case, schedules: bool, in_graph: bool, repeats: int) -> float:
    """µs of a call from C++."""
    words = ["--layout", case.layout.name, "--b", case.requests, "--rows", 1, "--heads", case.heads]
    words += ["--s", case.context, "--page", PAGE, "--json", "--repeats", repeats, "--rest", REST]
    words += ["--graph", "--calls", GRAPH_CALLS] if in_graph else ["--calls", EAGER_CALLS]
    if schedules:
        words += ["--with-schedule"]
    if case.kind == "sparse":
        words += ["--k", WIDTH]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr[-500:]}")
    return float(json.loads(done.stderr)[0]["microseconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="latent_gpu_bench, from a build for this GPU")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--b", type=int, default=REQUESTS, help="requests")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, lathe {lathe.__version__}, b {options.b}, µs a call")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        print("this torch has no C functions to read its tensors by: every call is checked")
    print(f"{'':40}{'host':>8}{'eager':>9}{'C++':>9}{'more':>7}{'graph':>9}{'C++':>9}{'more':>7}")
    for kind in ("dense", "sparse"):
        for heads in (128, 16):
            case = Case(kind, heads, options.b)
            cpp: dict[bool, list[float]] = {}  # by whether the call makes its schedule: eager, graph
            doors = {
                "attend": (case.attend(), True),
                "attend, a layer of a step": (case.layer(), False),
                "flash_mla, a schedule each call": (case.flash_mla(shared=False), True),
                "flash_mla, a layer of a step": (case.flash_mla(shared=True), False),
            }
            for name, (call, schedules) in doors.items():
                call()
                times = [median(lambda: host(call), options.repeats), median(lambda: eager(call), options.repeats)]
                times.append(median(graph(call), options.repeats))
                if options.program and schedules not in cpp:
                    cpp[schedules] = [
                        from_cpp(options.program, case, schedules, in_graph, options.repeats) for in_graph in (False, True)
                    ]
                line = f"{f'{kind} h {heads}: {name}':40}{times[0]:8.1f}"
                for i, took in enumerate(times[1:]):
                    own = f"{cpp[schedules][i]:9.1f}{took - cpp[schedules][i]:7.1f}" if cpp else f"{'-':>9}{'-':>7}"
                    line += f"{took:9.1f}{own}"
                print(line, flush=True)
            del case, doors, call
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
