"""attend() on torch's tensors on a Hopper GPU, against float64 in torch; the refusals that need no GPU stand in test_attend_place.py."""

import numpy as np
import pytest

import lathe
from lathe.compat import flash_mla

torch = pytest.importorskip("torch")
if not (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)):
    pytest.skip("no Hopper GPU", allow_module_level=True)

PAGE = 64


def bf16_rows(count, width, seed):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((count, width)).astype(np.float32)).bfloat16()


def make_pool(layout, pages, seed=0):
    """A full pool on the GPU and the float64 rows that it holds."""
    rows = bf16_rows(pages * PAGE, layout.row_elems, seed)
    pool = np.full((pages, layout.page_stride(PAGE)), 0xFF, np.uint8)
    lathe.encode(rows.float().numpy(), np.arange(pages * PAGE), pool, layout, PAGE)
    held = lathe.decode(pool, layout, page_size=PAGE, dtype="f32")
    return torch.from_numpy(pool).cuda(), torch.from_numpy(held).double().cuda()


def queries(rows, heads, width, seed=1):
    return bf16_rows(rows * heads, width, seed).view(rows, heads, width).cuda()


def attention(q, keys, scale, v_dim, sink=None):
    """One row: q [heads, d], keys [n, d] in float64."""
    s = (q.double() @ keys.T) * scale
    lse = torch.logsumexp(s, 1)
    total = lse if sink is None else torch.logaddexp(lse, sink.double())
    return torch.exp(s - total[:, None]) @ keys[:, :v_dim], lse


def near(got, want):
    out, lse = (x.double() for x in got)
    want_out, want_lse = (torch.stack(x) for x in zip(*want))
    apart = (out - want_out).abs()
    assert ((apart <= 1e-2) | (apart <= 2.01 / 128 * want_out.abs())).all(), apart.max()
    cosine = 1 - 2 * (out * want_out).sum() / (out**2 + want_out**2).sum()
    assert cosine <= 5e-6
    torch.testing.assert_close(lse, want_lse, rtol=8.01 / 65536, atol=1e-5)


MLA = ["mla_bf16", "mla_fp8", "mla_fp8_block"]
SCALE = 0.07


def dense(layout, heads=16, rows_of=(1, 3, 1), lens=(700, 130, 64), codes=False):
    """codes: of a q that e4m3 holds."""
    layout = lathe.Layout(layout)
    pool, keys = make_pool(layout, 16)
    width = 11
    table = torch.full((len(lens), width), -1, dtype=torch.int32)
    free = iter(np.random.default_rng(5).permutation(16).tolist() * 2)
    for r, n in enumerate(lens):
        for i in range(-(-n // PAGE)):
            table[r, i] = next(free)
    q = queries(sum(rows_of), heads, layout.row_elems)
    if codes:
        q = q.to(torch.float8_e4m3fn).bfloat16()
    want, row = [], 0
    for r, n in enumerate(rows_of):
        slots = (table[r].long()[:, None] * PAGE + torch.arange(PAGE)).view(-1).cuda()
        for j in range(n):
            want.append(attention(q[row], keys[slots[: lens[r] - n + j + 1]], SCALE, 512))
            row += 1
    indptr = np.concatenate([[0], np.cumsum(rows_of)])
    call = dict(layout=layout, page_size=PAGE, page_table=table.cuda(), attention="mla", scale=SCALE)
    return q, pool, call, indptr, list(lens), want


@pytest.mark.parametrize("layout", MLA)
@pytest.mark.parametrize("heads", [16, 128])
def test_dense_by_page_table(layout, heads):
    q, pool, call, indptr, lens, want = dense(layout, heads)
    near(lathe.attend(q, pool, **call, q_indptr=indptr, kv_lens=lens), want)


@pytest.mark.parametrize("kind", ["gqa_bf16", "gqa_fp8"])
@pytest.mark.parametrize("window", [0, 90])
def test_grouped_queries(kind, window):
    heads, kv_heads, dim, rows_of, lens = 12, 3, 128, (1, 40, 2), (700, 130, 64)
    layout = lathe.Layout(f"{kind}(kv_heads={kv_heads},head_dim={dim})")
    pool, held = make_pool(layout, 20)
    table = torch.full((3, 11), -1, dtype=torch.int32)
    free = iter(np.random.default_rng(5).permutation(20).tolist())
    for r, n in enumerate(lens):
        for i in range(-(-n // PAGE)):
            table[r, i] = next(free)
    q = queries(sum(rows_of), heads, dim)
    want, row = [], 0
    for r, n in enumerate(rows_of):
        slots = (table[r].long()[:, None] * PAGE + torch.arange(PAGE)).view(-1).cuda()
        for j in range(n):
            end = lens[r] - n + j + 1
            seen = held[slots[max(0, end - window) if window else 0 : end]].view(-1, 2, kv_heads, dim)
            outs, sums = [], []
            for h in range(heads):
                keys, values = seen[:, 0, h // 4], seen[:, 1, h // 4]
                scores = q[row, h].double() @ keys.T / dim**0.5
                outs.append(torch.softmax(scores, 0) @ values)
                sums.append(torch.logsumexp(scores, 0))
            want.append((torch.stack(outs), torch.stack(sums)))
            row += 1
    indptr = np.concatenate([[0], np.cumsum(rows_of)])
    call = dict(layout=layout, page_size=PAGE, page_table=table.cuda(), attention="gqa", window=window)
    near(lathe.attend(q, pool, **call, q_indptr=indptr, kv_lens=list(lens)), want)


def test_lengths_on_the_gpu_and_outputs_in_place():
    q, pool, call, indptr, lens, want = dense("mla_fp8_block")
    out = torch.full((5, 16, 512), float("nan"), dtype=torch.bfloat16, device="cuda")
    lse = torch.full((5, 16), float("nan"), device="cuda")
    made = lathe.attend(
        q,
        pool,
        **call,
        q_indptr=torch.tensor(indptr, dtype=torch.int32, device="cuda"),
        kv_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        max_request_rows=3,
        out=out,
        lse=lse,
    )
    assert made[0] is out and made[1] is lse
    near(made, want)


@pytest.mark.parametrize("layout", MLA)
def test_lists_of_slots_and_of_compact_rows(layout):
    layout = lathe.Layout(layout)
    pool, keys = make_pool(layout, 16)
    q = queries(6, 64, layout.row_elems)
    chosen = torch.from_numpy(
        np.stack([np.random.default_rng(i).permutation(16 * PAGE)[:200] for i in range(6)])
    ).int()
    chosen[1, 50:] = -1
    chosen[2] = -1
    chosen[2, 7] = 99999
    want = []
    for r in range(6):
        live = chosen[r][(chosen[r] >= 0) & (chosen[r] < len(keys))].long().cuda()
        want.append(attention(q[r], keys[live], SCALE, 512))
    indices = chosen.cuda()
    near(lathe.attend(q, pool, layout, PAGE, indices=indices, scale=SCALE), want)
    near(lathe.attend(q, pool, layout, PAGE, indices=indices, scale=SCALE, max_request_rows=1), want)
    plan = lathe.plan("dsa", "sm90", heads=64, kv_layout=layout, decode_attention_backend="inplace")
    near(lathe.attend(q, pool, indices=indices, scale=SCALE, plan=plan), want)
    compact = keys.bfloat16()
    near(lathe.attend(q, compact=compact, indices=indices, scale=SCALE, kind="gather"), want)


def test_v4_with_two_sources_and_a_sink():
    layout = lathe.Layout("v4_fp8")
    pool, keys = make_pool(layout, 4)
    extra, entries = make_pool(layout, 8, seed=3)
    q = queries(4, 64, 512)
    window = torch.arange(4)[:, None] * PAGE + torch.arange(PAGE)
    chosen = torch.from_numpy(
        np.stack([np.random.default_rng(i).permutation(8 * PAGE)[:96] for i in range(4)])
    )
    sink = torch.linspace(-1, 1, 64, device="cuda")
    want = [
        attention(q[r], torch.cat([keys[window[r].cuda()], entries[chosen[r].cuda()]]), SCALE, 512, sink)
        for r in range(4)
    ]
    got = lathe.attend(
        q,
        pool,
        layout,
        PAGE,
        attention="v4",
        indices=window.int().cuda(),
        extra={"pool": extra, "layout": layout, "page_size": PAGE, "indices": chosen.int().cuda()},
        sink=sink,
        scale=SCALE,
    )
    near(got, want)


def test_the_current_stream_and_a_graph():
    q, pool, call, indptr, lens, want = dense("mla_fp8")
    lengths = dict(
        q_indptr=torch.tensor(indptr, dtype=torch.int32, device="cuda"),
        kv_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        max_request_rows=3,
    )
    side = torch.cuda.Stream()
    out = torch.empty(5, 16, 512, dtype=torch.bfloat16, device="cuda")
    lse = torch.empty(5, 16, device="cuda")
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # q is not written until this has passed
        late = q * 1
        first = lathe.attend(late, pool, **call, **lengths)
    side.synchronize()
    near(first, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        lathe.attend(late, pool, **call, **lengths, out=out, lse=lse)
    late.zero_()
    graph.replay()
    torch.cuda.synchronize()
    zero = (out, lse)
    late.copy_(q)
    assert not torch.equal(zero[0], first[0])
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first[0]) and torch.equal(lse, first[1])


def test_graphs_outlive_larger_calls_and_lists_that_a_call_makes():
    """A row of each request, or lists alone: nothing of a captured call lies in host memory or in scratch that grows."""
    q, pool, call, _, _, want = dense("mla_fp8_block", rows_of=(1, 1, 1))
    lens = torch.tensor([700, 130, 64], dtype=torch.int32, device="cuda")
    slots = torch.arange(3 * 80, dtype=torch.int32, device="cuda").view(3, 80)
    lists = {**call, "page_table": None, "attention": "dsa", "indices": slots}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        lathe.attend(q, pool, **call, kv_lens=lens)
        by_list = lathe.attend(q, pool, **lists)
    side.synchronize()
    outs = [torch.full((3, 16, 512), 7.0, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        made = lathe.attend(q, pool, **call, kv_lens=lens, out=outs[0])
        lathe.attend(q, pool, **lists, out=outs[1])
    with torch.cuda.stream(side):
        many = queries(600, 128, 576)
        far = torch.arange(600 * 80, dtype=torch.int32, device="cuda").view(600, 80) % 1024
        kept = [lathe.attend(many, pool, **{**lists, "indices": far})]
        kept.append(torch.full((1 << 26,), 77, dtype=torch.int32, device="cuda"))
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        near((outs[0], made[1]), want)
        assert torch.equal(outs[1], by_list[0])
        outs[0].fill_(7)
        outs[1].fill_(7)
    with pytest.raises(lathe.LatheError, match="kv_lens: wanted an array on the GPU while a graph"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
            lathe.attend(q, pool, **call, kv_lens=[700, 130, 64])


def test_lengths_without_rows_are_refused():
    q, pool, call, _, _, _ = dense("mla_bf16", rows_of=(1, 1, 1))
    for requests in (2, 4):
        lens = torch.full((requests,), 64, dtype=torch.int32, device="cuda")
        table = call["page_table"][:1].repeat(requests, 1)
        with pytest.raises(lathe.LatheError, match="q_indptr: wanted the first row of each request"):
            lathe.attend(q, pool, **{**call, "page_table": table}, kv_lens=lens, max_request_rows=2)


def test_a_list_of_no_entries_names_no_key():
    q, pool, call, _, _, _ = dense("mla_fp8_block", rows_of=(1, 1, 1))
    none = torch.empty(3, 0, dtype=torch.int32, device="cuda")
    out, lse = lathe.attend(q, pool, **{**call, "page_table": None, "attention": "dsa", "indices": none})
    assert (out == 0).all() and (lse == -float("inf")).all()


def test_a_plan_in_fp8_arithmetic():
    q, pool, call, indptr, lens, want = dense("mla_fp8", codes=True)
    codes = q.to(torch.float8_e4m3fn).view(torch.uint8)
    plan = lathe.plan("mla", "sm90", heads=16, kv_layout="mla_fp8", decode_attention_backend="native")
    assert plan.phases["decode"]["routes"][-1]["kernel"] == "sm90.dense_latent.native_fp8"
    call = {k: call[k] for k in ("page_table", "scale")}
    out, lse = lathe.attend(codes, pool, **call, q_indptr=indptr, kv_lens=lens, plan=plan)
    want_out, want_lse = (torch.stack(x) for x in zip(*want))
    # Weights are rounded to e4m3, sums have 14 bits.
    assert ((out.double() - want_out).norm() / want_out.norm()) < 0.04
    assert (lse.double() - want_lse).abs().max() < 0.01
    again = lathe.attend(codes, pool, "mla_fp8", PAGE, attention="mla", kind="native", q_indptr=indptr, kv_lens=lens, **call)
    assert torch.equal(again[0], out)


def test_lists_in_fp8_arithmetic():
    pool, keys = make_pool(lathe.Layout("mla_fp8"), 16)
    codes = queries(6, 64, 576).to(torch.float8_e4m3fn)
    chosen = torch.stack([torch.randperm(16 * PAGE)[:300] for _ in range(6)]).int()
    chosen[1, 50:] = -1
    want = []
    for r in range(6):
        live = chosen[r][chosen[r] >= 0].long().cuda()
        want.append(attention(codes[r].float(), keys[live], SCALE, 512))
    plan = lathe.plan("dsa", "sm90", heads=64, kv_layout="mla_fp8", decode_attention_backend="native")
    assert plan.phases["decode"]["routes"][-1]["kernel"] == "sm90.sparse_latent.native_fp8"
    out, lse = lathe.attend(codes.view(torch.uint8), pool, indices=chosen.cuda(), scale=SCALE, plan=plan)
    want_out, want_lse = (torch.stack(x) for x in zip(*want))
    assert ((out.double() - want_out).norm() / want_out.norm()) < 0.04
    assert (lse.double() - want_lse).abs().max() < 0.01


@pytest.mark.parametrize("heads", [16, 128])
def test_scales_that_lie_on_the_gpu_are_read_at_every_replay(heads):
    q, pool, call, indptr, lens, _ = dense("mla_fp8", heads, codes=True)
    codes = q.to(torch.float8_e4m3fn)
    lengths = dict(
        q_indptr=torch.tensor(indptr, dtype=torch.int32, device="cuda"),
        kv_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        max_request_rows=3,
    )
    scales = torch.tensor([0.5, 2.0], device="cuda")
    tensors = dict(q_scale=scales[:1], key_scale=scales[1:])
    first = lathe.attend(codes, pool, kind="native", **call, **lengths, **tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = lathe.attend(codes, pool, kind="native", **call, **lengths, **tensors)
    for q_scale, key_scale in ((0.5, 2.0), (4.0, 0.25)):
        scales.copy_(torch.tensor([q_scale, key_scale]))
        graph.replay()
        numbers = dict(q_scale=q_scale, key_scale=key_scale)
        want = lathe.attend(codes, pool, kind="native", **call, **lengths, **numbers)
        assert torch.equal(out, want[0]) and torch.equal(lse, want[1])
    assert not torch.equal(out, first[0])
    with pytest.raises(lathe.LatheError, match="key_scale: wanted a number where q is bf16"):
        lathe.attend(q, pool, **call, **lengths, key_scale=scales[1:])


class Plain:
    """A tensor that is nobody's but DLPack's."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.shape = tensor.shape

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)


def test_a_workspace_of_the_callers_serves_what_is_below_its_maxima():
    q, pool, call, indptr, lens, want = dense("mla_fp8_block")
    width = call["page_table"].shape[1]
    lengths = dict(
        q_indptr=torch.tensor(indptr, dtype=torch.int32, device="cuda"),
        kv_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        max_request_rows=3,
    )
    bytes_of = lathe.attend_workspace(
        8, 16, "mla_fp8_block", PAGE, pages=16, attention="mla", requests=4, max_request_rows=3,
        max_kv_len=width * PAGE,
    )  # fmt: skip
    guard = 4096
    memory = torch.full((bytes_of + guard,), 7, dtype=torch.uint8, device="cuda")
    near(lathe.attend(q, pool, **call, **lengths, workspace=memory[:bytes_of]), want)
    assert (memory[bytes_of:] == 7).all()
    with pytest.raises(lathe.LatheError, match="workspace: wanted [0-9]+ bytes at a multiple of 256"):
        lathe.attend(q, pool, **call, **lengths, workspace=memory[:256])
    with pytest.raises(lathe.LatheError, match="workspace: wanted [0-9]+ bytes at a multiple of 256"):
        lathe.attend(q, pool, **call, **lengths, workspace=memory[8:])
    # A graph of one and an eager call on another do not meet.
    out, lse = torch.empty(5, 16, 512, dtype=torch.bfloat16, device="cuda"), torch.empty(5, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lathe.attend(q, pool, **call, **lengths, workspace=memory[:bytes_of], out=out, lse=lse)
    graph.replay()
    torch.cuda.synchronize()
    near((out, lse), want)


def test_float16_queries():
    q, pool, call, indptr, lens, want = dense("mla_bf16")
    # Numbers that bfloat16 holds as well.
    half = q.half().bfloat16().half()
    got = lathe.attend(half, pool, **call, q_indptr=indptr, kv_lens=lens)
    same = lathe.attend(half.bfloat16(), pool, **call, q_indptr=indptr, kv_lens=lens)
    assert torch.equal(got[0], same[0]) and torch.equal(got[1], same[1])


def test_without_torch_results_come_by_dlpack():
    q, pool, call, indptr, lens, want = dense("mla_bf16")
    call["page_table"] = Plain(call["page_table"])
    made = lathe.attend(Plain(q), Plain(pool), **call, q_indptr=indptr, kv_lens=lens)
    near([torch.from_dlpack(x) for x in made], want)


def test_refusals_name_what_was_found_and_needed():
    q, pool, call, indptr, lens, _ = dense("mla_fp8")

    def refused(*args, **kwargs):
        with pytest.raises(lathe.LatheError) as caught:
            lathe.attend(*args, **{**call, "q_indptr": indptr, "kv_lens": lens, **kwargs})
        return str(caught.value)

    assert refused(q, pool.cpu()) == "pool: wanted an array on cuda:0, as q, got an array in host memory"
    assert "page_table: wanted int32 on a GPU, got int64" in refused(
        q, pool, page_table=call["page_table"].long()
    )
    assert "q.dtype: wanted bf16 for sm90.dense_latent.inplace, got f32" in refused(q.float(), pool)
    assert "q.dtype: wanted e4m3 for sm90.dense_latent.native_fp8, got bf16" in refused(q, pool, kind="native")
    codes = q.to(torch.float8_e4m3fn).view(torch.uint8)
    assert "q.dtype: wanted bf16 for sm90.dense_latent.inplace, got e4m3" in refused(codes, pool)
    assert "q: wanted a stride of 1 elements on axis 2" in refused(
        q.transpose(1, 2).contiguous().transpose(1, 2), pool
    )
    assert "out: wanted the shape (5, 16, 512)" in refused(q, pool, out=torch.empty_like(q))
    assert "kv_lens[1]: wanted 0, or at least the 3 rows" in refused(q, pool, kv_lens=[700, 2, 64])
    assert "device: wanted None or" in refused(q, pool, device="cpu")
    assert "kind: wanted a plan's route" in refused(q, pool, kind="ragged")


@pytest.mark.parametrize("layout", MLA)
def test_layers_of_a_step_share_a_schedule(layout):
    q, pool, call, indptr, lens, want = dense(layout)
    call |= dict(
        q_indptr=torch.tensor(indptr, dtype=torch.int32, device="cuda"),
        kv_lens=torch.tensor(lens, dtype=torch.int32, device="cuda"),
        max_request_rows=3,
    )
    bytes_of = lathe.attend_workspace(
        5, 16, layout, PAGE, pages=16, attention="mla", requests=3, max_request_rows=3,
        max_kv_len=call["page_table"].shape[1] * PAGE,
    )  # fmt: skip
    memory = torch.full((bytes_of,), 7, dtype=torch.uint8, device="cuda")
    out = torch.full((5, 16, 512), 3.0, dtype=torch.bfloat16, device="cuda")
    lathe.attend(q, pool, **call, workspace=memory, part="schedule", out=out)
    assert (out == 3).all()
    for _ in range(3):
        out.fill_(3)
        near(lathe.attend(q, pool, **call, workspace=memory, part="attention", out=out), want)
    alone, _ = lathe.attend(q, pool, **call)
    assert torch.equal(out, alone)


@pytest.mark.parametrize("inference", [False, True])
def test_flash_mlas_schedule_is_of_a_step(inference):
    """Layers with one schedule object give what calls of their own give; other lengths make another schedule."""
    with torch.inference_mode(inference):
        q, pool, call, _, lens, _ = dense("mla_bf16", rows_of=(1, 1, 1), lens=(700, 130, 64))
        cache = pool.view(torch.bfloat16).view(16, PAGE, 1, 576)
        table = call["page_table"]
        lengths = torch.tensor(lens, dtype=torch.int32, device="cuda")
        one = lambda meta, of, seed: flash_mla.flash_mla_with_kvcache(  # noqa: E731
            queries(3, 16, 576, seed).view(3, 1, 16, 576), cache, table, of, 512, meta, None
        )
        meta = flash_mla.FlashMLASchedMeta()
        for seed in range(4):
            got, want = one(meta, lengths, seed), one(flash_mla.FlashMLASchedMeta(), lengths, seed)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        kept = meta.workspace
        assert kept is not None
        shorter = torch.tensor((70, 3, 64), dtype=torch.int32, device="cuda")
        got, want = one(meta, shorter, 9), one(flash_mla.FlashMLASchedMeta(), shorter, 9)
        assert torch.equal(got[0], want[0]) and meta.workspace is not kept
        if not inference:  # where torch counts writes
            shorter.copy_(torch.tensor((2, 100, 30)))
            got, want = one(meta, shorter, 9), one(flash_mla.FlashMLASchedMeta(), shorter, 9)
            assert torch.equal(got[0], want[0])


def test_flash_mlas_schedule_of_lists_and_in_a_graph():
    layout = lathe.Layout("mla_fp8_block")
    pool, _ = make_pool(layout, 16)
    cache = pool[:, : PAGE * 656].view(16, PAGE, 1, 656)
    generator = torch.Generator().manual_seed(5)
    indices = torch.randint(-1, 16 * PAGE, (6, 1, 300), generator=generator, dtype=torch.int32).cuda()
    counts = torch.tensor((300, 1, 0, 120, 64, 299), dtype=torch.int32, device="cuda")
    one = lambda meta, q, out=None: flash_mla.flash_mla_with_kvcache(  # noqa: E731
        q, cache, None, None, 512, meta, None, 0.05, False, True, indices, topk_length=counts, out=out
    )
    layers = [queries(6, 64, 576, seed).view(6, 1, 64, 576) for seed in range(3)]
    want = [one(flash_mla.FlashMLASchedMeta(), q) for q in layers]
    outs = [torch.zeros(6, 1, 64, 512, dtype=torch.bfloat16, device="cuda") for _ in layers]
    graph, meta = torch.cuda.CUDAGraph(), flash_mla.FlashMLASchedMeta()
    with torch.cuda.graph(graph):
        for q, out in zip(layers, outs):
            one(meta, q, out)
    graph.replay()
    torch.cuda.synchronize()
    for out, (first, _) in zip(outs, want):
        assert torch.equal(out, first)
    # A replay reads lengths again.
    counts.copy_(torch.tensor((10, 300, 5, 0, 299, 64)))
    want = [one(flash_mla.FlashMLASchedMeta(), q)[0] for q in layers]
    graph.replay()
    torch.cuda.synchronize()
    for out, first in zip(outs, want):
        assert torch.equal(out, first)
