"""Calls on a Hopper GPU that repeat an earlier one in all but addresses: they give the bits of calls that are checked, and other calls are
not taken for them."""

import pytest

import lathe
from lathe import _repeat
from lathe.compat import flash_mla

torch = pytest.importorskip("torch")
if not (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)):
    pytest.skip("no Hopper GPU", allow_module_level=True)
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("torch before 2.10", allow_module_level=True)

PAGE, ROWS, PAGES, SCALE = 64, 5, 24, 0.05


class Calls:
    """What _repeat.find() has said; with `off` it says nothing."""

    def __init__(self, monkeypatch):
        self.found, self.off, find = [], False, _repeat.find
        monkeypatch.setattr(_repeat, "find", lambda *given: None if self.off else self.note(find(*given)))

    def note(self, call):
        self.found.append(call is not None)
        return call

    def checked(self, make):
        self.off = True
        made = make()
        self.off = False
        return made


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


def same(got, want):
    return all(torch.equal(a, b) for a, b in zip(got, want))


def pool_of(layout, seed, pages=PAGES):
    rows = torch.randn(pages * PAGE, layout.row_elems, generator=torch.Generator().manual_seed(seed)).numpy()
    pool = torch.zeros(pages, layout.page_stride(PAGE), dtype=torch.uint8).numpy()
    lathe.encode(rows, range(pages * PAGE), pool, layout, PAGE)
    return torch.from_numpy(pool).cuda()


def numbers(shape, most, seed):
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32).cuda()


def queries(heads, width, seed, kind=torch.bfloat16):
    q = torch.randn(ROWS, heads, width, generator=torch.Generator().manual_seed(seed))
    return q.bfloat16().cuda().to(kind)


def by_table(heads, seed, layout="mla_bf16", kind=None, **more):
    layout = lathe.Layout(layout)
    q = queries(heads, 576, seed, torch.float8_e4m3fn if kind == "native" else torch.bfloat16)
    return dict(
        q=q, pool=pool_of(layout, seed), layout=layout, page_size=PAGE, attention="mla", kind=kind, scale=SCALE,
        page_table=numbers((ROWS, 6), PAGES, seed), kv_lens=numbers((ROWS,), 6 * PAGE, seed) + 1, **more,
    )  # fmt: skip


def by_list(heads, seed, sink=False):
    layout = lathe.Layout("mla_fp8_block")
    return dict(
        q=queries(heads, 576, seed), pool=pool_of(layout, seed), layout="mla_fp8_block", page_size=PAGE, scale=SCALE,
        indices=numbers((ROWS, 150), PAGES * PAGE, seed), index_lengths=numbers((ROWS,), 151, seed),
        sink=torch.full((heads,), float(seed), device="cuda") if sink else None,
    )  # fmt: skip


def two_sources(heads, seed):
    layout = lathe.Layout("v4_fp8")
    lists = dict(indices=numbers((ROWS, 128), PAGES * PAGE, seed))
    extra = dict(
        pool=pool_of(layout, seed + 10), layout=layout, page_size=PAGE, indices=numbers((ROWS, 70), PAGES * PAGE, seed + 1),
        index_lengths=numbers((ROWS,), 71, seed),
    )  # fmt: skip
    return dict(q=queries(heads, 512, seed), pool=pool_of(layout, seed), layout=layout, page_size=PAGE, attention="v4", extra=extra, **lists)


def rows_of_keys(heads, seed):
    keys = torch.randn(700, 576, generator=torch.Generator().manual_seed(seed)).bfloat16().cuda()
    return dict(q=queries(heads, 576, seed), compact=keys, kind="gather", indices=numbers((ROWS, 90), 700, seed), scale=SCALE)


def grouped(heads, seed):
    layout = lathe.Layout("gqa_bf16(kv_heads=4,head_dim=128)")
    return dict(
        q=queries(heads, 128, seed), pool=pool_of(layout, seed), layout=layout, page_size=PAGE, attention="gqa", window=100,
        page_table=numbers((ROWS, 6), PAGES, seed), kv_lens=numbers((ROWS,), 6 * PAGE, seed) + 1,
    )  # fmt: skip


def scales_on_the_gpu(heads, seed):
    scales = {name: torch.full((1,), 0.5 + seed, device="cuda") for name in ("q_scale", "key_scale")}
    return by_table(heads, seed, "mla_fp8", "native", **scales)


CASES = {
    "table": by_table,
    "table of fp8": lambda heads, seed: by_table(heads, seed, "mla_fp8_block", empty_lse_plus_inf=True),
    "fp8 products": lambda heads, seed: by_table(heads, seed, "mla_fp8", "native", q_scale=0.5, key_scale=0.25),
    "scales on the GPU": scales_on_the_gpu,
    "lists": by_list,
    "lists of many requests": lambda heads, seed: by_list(heads, seed) | dict(max_request_rows=1),
    "a sink": lambda heads, seed: by_list(heads, seed, sink=True),
    "two sources": two_sources,
    "rows": rows_of_keys,
    "grouped queries": grouped,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("heads", [16, 128])
def test_a_repeated_call_gives_what_a_checked_one_gives(calls, case, heads):
    first, second = CASES[case](heads, 1), CASES[case](heads, 2)
    lathe.attend(**first)
    calls.found.clear()
    got = [lathe.attend(**second), lathe.attend(**first)]
    assert calls.found == [True, True]
    want = [calls.checked(lambda: lathe.attend(**c)) for c in (second, first)]
    assert all(same(*pair) for pair in zip(got, want)) and not torch.equal(got[0][0], got[1][0])
    # To arrays of the caller's, and as a graph replays it.
    out, lse = (torch.zeros_like(x) for x in want[0])
    lathe.attend(**first, out=out, lse=lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = lathe.attend(**second, out=out, lse=lse)
        in_graph = lathe.attend(**second)
    # torch captures on a stream of its own, whose calls are checked.
    assert calls.found[2:] == [False, False, False] and made[0] is out and made[1] is lse
    graph.replay()
    torch.cuda.synchronize()
    assert same((out, lse), want[0]) and same(in_graph, want[0])


def test_a_workspace_of_the_callers(calls):
    call = by_table(16, 1)
    size = lathe.attend_workspace(ROWS, 16, "mla_bf16", PAGE, pages=PAGES, attention="mla", max_kv_len=6 * PAGE)
    first, other = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    want = lathe.attend(**call, workspace=first)
    # The second one's schedule is not the first one's.
    assert same(lathe.attend(**call, workspace=other), want) and calls.found == [False, True]
    lathe.attend(**call, workspace=first, part="attention")
    assert same(lathe.attend(**call, workspace=other, part="attention"), want)
    assert calls.found == [False, True, False, True]
    assert torch.equal(first[:256], other[:256])
    with pytest.raises(lathe.LatheError, match="workspace: wanted [0-9]+ bytes at a multiple of 256"):
        lathe.attend(**call, workspace=torch.zeros(size + 8, dtype=torch.uint8, device="cuda")[8:])


def test_what_differs_is_checked(calls):
    call = by_table(16, 1)
    lathe.attend(**call)
    wider = dict(call, page_table=numbers((ROWS, 7), PAGES, 3))
    for changed in (dict(scale=0.06), dict(max_kv_len=100), dict(lse_base_2=True), dict(page_table=wider["page_table"])):
        calls.found.clear()
        made = lathe.attend(**{**call, **changed})
        assert calls.found == [False]
        assert same(made, calls.checked(lambda: lathe.attend(**{**call, **changed})))
    q = call["q"]
    refused = {
        "page_table: wanted int32": dict(page_table=call["page_table"].long()),
        "q.dtype: wanted bf16": dict(q=q.float()),
        "pool: wanted an array on cuda:0": dict(pool=call["pool"].cpu()),
        "out: wanted the shape": dict(out=torch.empty_like(q)),
        "require": dict(q=q.detach().requires_grad_()),
        "window": dict(window=True),
        "max_request_rows: wanted an integer, got bool": dict(max_request_rows=True),
    }
    lathe.attend(**call, max_request_rows=1)
    for message, changed in refused.items():
        with pytest.raises((lathe.LatheError, TypeError), match=message):
            lathe.attend(**{**call, **changed})
    with pytest.raises(lathe.LatheError, match="q: wanted an address that is a multiple of 16|a multiple of 16"):
        lathe.attend(**{**call, "q": torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view(q.shape)})


def test_a_call_on_another_stream(calls):
    call, side = by_table(16, 1), torch.cuda.Stream()
    want = lathe.attend(**call)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        first, second = lathe.attend(**call), lathe.attend(**call)
    by_number = lathe.attend(**call, stream=side.cuda_stream)
    torch.cuda.synchronize()
    # The first one makes what calls on that stream keep; `stream` is not the current one.
    assert calls.found[2:] == [True, False]
    assert same(first, want) and same(second, want) and same(by_number, want)


def test_a_stream_captures_a_larger_call_than_before():
    other, side = torch.cuda.Stream(), torch.cuda.Stream()
    for heads, warm in ((16, other), (128, torch.cuda.current_stream())):
        call = by_table(heads, heads)
        torch.cuda.synchronize()
        with torch.cuda.stream(warm):
            want = lathe.attend(**call)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            made = lathe.attend(**call)
        graph.replay()
        torch.cuda.synchronize()
        assert same(made, want)


def fp8_dense(cache, table, lens, heads, seed):
    q = queries(heads, 576, seed, torch.float8_e4m3fn).view(ROWS, 1, heads, 576)
    one = torch.full((1,), 0.5, device="cuda")
    return (q, cache, table, lens), dict(causal=True, is_fp8_kvcache=True, descale_q=one, descale_k=one)


def flash_call(kind, heads, seed):
    layout = lathe.Layout({"dense": "mla_bf16", "fp8": "mla_fp8", "sparse": "mla_fp8_block"}[kind])
    pool = pool_of(layout, seed)
    if kind == "sparse":
        q = queries(heads, 576, seed).view(ROWS, 1, heads, 576)
        cache = pool[:, : PAGE * 656].view(PAGES, PAGE, 1, 656)
        lists = dict(indices=numbers((ROWS, 1, 150), PAGES * PAGE, seed), topk_length=numbers((ROWS,), 151, seed))
        return (q, cache, None, None), dict(is_fp8_kvcache=True, **lists)
    table, lens = numbers((ROWS, 6), PAGES, seed), numbers((ROWS,), 6 * PAGE, seed)
    if kind == "fp8":
        return fp8_dense(pool.view(torch.float8_e4m3fn).view(PAGES, PAGE, 1, 576), table, lens, heads, seed)
    q = queries(heads, 576, seed).view(ROWS, 1, heads, 576)
    return (q, pool.view(torch.bfloat16).view(PAGES, PAGE, 1, 576), table, lens), dict(causal=True)


@pytest.mark.parametrize("kind", ["dense", "fp8", "sparse"])
@pytest.mark.parametrize("heads", [16, 128])
def test_flash_mla_repeats(calls, kind, heads):
    def attend(call, meta, **more):
        given, rest = call
        return flash_mla.flash_mla_with_kvcache(*given, 512, *meta, **rest, **more)

    first, second = flash_call(kind, heads, 1), flash_call(kind, heads, 2)
    lens = first[0][3] if kind != "sparse" else first[1]["topk_length"]
    lens[1] = 0  # a row without keys
    attend(first, flash_mla.get_mla_metadata())
    calls.found.clear()
    for call in (second, first):
        step = flash_mla.get_mla_metadata()
        got = [attend(call, step) for _ in range(3)]
        want = calls.checked(lambda: attend(call, flash_mla.get_mla_metadata()))
        assert all(same(x, want) and x[1].stride() == want[1].stride() for x in got)
    assert calls.found == [True] * 6 and (want[1][1] == float("inf")).all()
    # Lengths that change make another schedule.
    lens[0] = lens[0] // 2
    got, want = attend(first, step), calls.checked(lambda: attend(first, flash_mla.get_mla_metadata()))
    assert same(got, want) and calls.found[-1]
    # A schedule object of other shapes is refused as ever.
    (q, *rest), named = first
    with pytest.raises(AssertionError, match="tile_scheduler_metadata.h_q"):
        attend(((torch.cat([q, q], 2)[:, :, : heads // 2], *rest), named), step)
    # The older pair of tensors.
    pair = flash_mla.get_mla_metadata(lens, heads, 1)
    attend(first, pair)
    assert same(attend(first, pair), want) and calls.found[-2:] == [False, True]
