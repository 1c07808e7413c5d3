"""attend() with a plan: device, kind, layout and page size follow, compact rows are gathered."""

import numpy as np
import pytest
import reference as ref

import lathe

HEADS = 3


def plan_of(attention, device="cpu", **options):
    return lathe.plan(attention, device, **{"heads": HEADS, **options})


def pool_of(plan, tokens, role="main", seed=0, key_scale=1.0):
    """Pages in shuffled order that hold `tokens` keys: pool, page table of one request, slots."""
    cache = next(c for c in plan.caches if c["role"] == role)
    layout, size = lathe.Layout(cache["layout"]), cache["page_size"]
    pages = -(-tokens // size)
    pool = ref.poisoned(layout, pages + 1, size)
    table = np.random.default_rng(seed).permutation(pages + 1)[:pages].astype(np.int32)
    at = np.arange(tokens)
    slots = table[at // size] * size + at % size
    lathe.encode(ref.random_rows(layout, tokens, seed), slots, pool, layout, size, key_scale)
    return {"pool": pool, "layout": layout, "page_size": size}, table[None], slots


def q_of(rows, dim, seed=9):
    return np.random.default_rng(seed).standard_normal((rows, HEADS, dim)).astype(np.float32)


def both_agree(q, cache, plan, phase, **batch):
    got = lathe.attend(q, cache["pool"], plan=plan, phase=phase, **batch)
    attention = {"dense_latent": "mla", "sparse_latent": "dsa", "window_compressed": "v4"}.get(
        plan.problem["kind"], "gqa"
    )
    if "page_table" in batch:
        batch = {"window": plan.problem["window"] or None, **batch}
    expected = lathe.attend_reference(q, **cache, attention=attention, **batch)
    for a, b in zip(got, expected):
        assert a.dtype == np.float32 and b.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("phase", ("extend", "decode"))
@pytest.mark.parametrize("layout", ("mla_fp8", "mla_fp8_block"))
def test_dsa_gathers_prefill_and_reads_pages_in_decode(phase, layout):
    native = layout == "mla_fp8"
    plan = plan_of("dsa", kv_layout=layout, prefill_attention_backend="gather",
                   decode_attention_backend="native" if native else "inplace")
    assert plan.phases["extend"]["routes"][-1]["unit"] == "ragged_row"
    scale = 0.5 if native else 1.0
    cache, table, slots = pool_of(plan, 150, key_scale=scale)
    q = q_of(5, 576)
    lists = np.random.default_rng(1).choice(slots, (5, 40)).astype(np.int32)
    lists[1] = -1
    lists[2, :3] = [-7, 2**30, -1]
    batch = {"key_scale": scale}
    both_agree(q, cache, plan, phase, indices=lists, index_lengths=[40, 9, 17, 0, 1], **batch)
    both_agree(q, cache, plan, phase, indices=lists.tolist(), **batch)
    paged = {"page_table": table, "q_indptr": [0, 5], "kv_lens": [150]}
    both_agree(q, cache, plan, phase, **paged, **batch)


@pytest.mark.parametrize("kind", ("inplace", "gather"))
def test_mla(kind):
    plan = plan_of("mla", kv_layout="mla_fp8_block", prefill_attention_backend=kind,
                   decode_attention_backend=kind)
    cache, table, _ = pool_of(plan, 200)
    tables = np.full((3, table.shape[1]), -1, np.int32)
    tables[:] = table
    tables[1, 1:] = -1
    paged = {"page_table": tables, "q_indptr": [0, 2, 3, 6], "kv_lens": [200, 7, 129]}
    both_agree(q_of(6, 576), cache, plan, "decode", **paged)
    one_each = {"page_table": tables, "kv_lens": [200, 7, 129]}
    both_agree(q_of(3, 576), cache, plan, "extend", **one_each)


def test_gather_keeps_the_plans_budget_and_the_bits():
    """3000 keys through a workspace of 1024 rows; the scales are powers of two, so no bit differs."""
    options = {"kv_layout": "mla_fp8_block", "prefill_attention_backend": "gather",
              "context_length": 4096, "gather_budget": 1024 * 1152}
    plan = plan_of("mla", **options)
    cache, table, _ = pool_of(plan, 3000)
    paged = {"page_table": table, "q_indptr": [0, 5], "kv_lens": [3000]}
    both_agree(q_of(5, 576), cache, plan, "extend", **paged)
    for threads in (1, 3):
        got = lathe.attend(q_of(5, 576), cache["pool"], plan=plan, phase="extend", **paged,
                           threads=threads)
        in_place = lathe.attend(q_of(5, 576), **cache, attention="mla", **paged)
        assert all((a == b).all() for a, b in zip(got, in_place))
    with pytest.raises(lathe.PlanRefused, match="keys of a tile"):
        plan_of("mla", **{**options, "gather_budget": 1024 * 1152 - 1})
    # Rows with lists of their own go a few at a time.
    plan = plan_of("dsa", **{**options, "gather_budget": 64 * 1152, "top_k": 64})
    cache, _, slots = pool_of(plan, 300)
    lists = np.random.default_rng(1).choice(slots, (7, 64)).astype(np.int32)
    both_agree(q_of(7, 576), cache, plan, "extend", indices=lists)


def test_a_missing_page_is_no_key_on_either_route():
    plan = plan_of("mla", kv_layout="mla_fp8_block", prefill_attention_backend="gather")
    cache, table, _ = pool_of(plan, 200)
    table[0, 1] = 1000
    paged = {"page_table": table, "q_indptr": [0, 2], "kv_lens": [200]}
    both_agree(q_of(2, 576), cache, plan, "extend", **paged)


def test_the_ragged_side_takes_the_expansion():
    plan = plan_of("mla", prefill_attention_backend="ragged")
    cache, table, _ = pool_of(plan, 70)
    rng = np.random.default_rng(2)
    w = rng.standard_normal((2, HEADS, 16, 512)).astype(np.float32) / 20
    q = q_of(4, 16 + 64)
    paged = {"page_table": table, "q_indptr": [0, 4], "kv_lens": [70], "w_uk": w[0], "w_uv": w[1]}
    got = lathe.attend(q, cache["pool"], plan=plan, phase="extend", **paged)
    expected = lathe.attend_reference(q, **cache, attention="mla", kind="ragged", **paged)
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_gqa_takes_the_plans_window():
    plan = plan_of("gqa", window=48, heads=8, kv_heads=2, head_dim=32)
    cache, table, _ = pool_of(plan, 100)
    q = np.random.default_rng(3).standard_normal((4, 8, 32)).astype(np.float32)
    both_agree(q, cache, plan, "extend", page_table=table, q_indptr=[0, 4], kv_lens=[100])


@pytest.mark.parametrize("kind", ("inplace", "gather"))
@pytest.mark.parametrize("by_page", (True, False))
def test_v4_reads_two_pools(kind, by_page):
    plan = plan_of("v4", prefill_attention_backend=kind, sink=True)
    main, table, slots = pool_of(plan, 300)
    extra, _, compressed = pool_of(plan, 75, "compressed", seed=4)
    q = q_of(4, 512)
    lists = np.random.default_rng(5).choice(compressed, (4, 12))
    lists[3] = -1
    batch = {"extra": {**extra, "indices": lists, "index_lengths": [12, 3, 12, 12]},
             "sink": np.linspace(-1, 1, HEADS).astype(np.float32)}
    if by_page:
        batch.update(page_table=table, q_indptr=[0, 4], kv_lens=[300])
    else:
        batch["indices"] = np.stack([slots[169 + r : 297 + r] for r in range(4)])
    both_agree(q, main, plan, "extend", **batch)


PLAN = plan_of("dsa", kv_layout="mla_fp8", prefill_attention_backend="gather",
               decode_attention_backend="native")


def test_no_rows_to_gather_for():
    pool = np.zeros((1, 64 * 576), np.uint8)
    paged = {"page_table": np.empty((0, 1), np.int32), "q_indptr": [0], "kv_lens": []}
    for batch in (paged, {"indices": np.empty((0, 4), np.int32)}):
        out, lse = lathe.attend(q_of(0, 576), pool, plan=PLAN, phase="extend", **batch)
        assert out.shape == (0, HEADS, 512) and lse.shape == (0, HEADS)


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"kind": "native"}, lathe.LatheError, "kind: wanted None with a plan, got native"),
        ({"device": "cpu"}, lathe.LatheError, "device: wanted None with a plan, got cpu"),
        ({"layout": "mla_bf16"}, lathe.LatheError, "layout: wanted the plan's mla_fp8(nope=512"),
        ({"page_size": 32}, lathe.LatheError, "page_size: wanted the plan's 64, got 32"),
        ({"attention": "mla"}, lathe.LatheError, "attention: wanted the plan's dsa, got mla"),
        ({"phase": "prefill"}, lathe.LatheError, "phase: wanted one of extend, decode, verify"),
        ({"phase": None}, TypeError, "phase: wanted a string"),
        ({"plan": {}}, TypeError, "plan: wanted a lathe.Plan, got dict"),
        ({"indices": [0]}, lathe.LatheError, "indices"),
        ({"index_lengths": [1, 2]}, lathe.LatheError, "index_lengths: wanted 1 entries"),
        ({"indices": None, "page_table": [[0]], "kv_lens": [65]}, lathe.LatheError,
         "page_table: wanted at least 2 pages"),
        ({"indices": None, "page_table": [[0]], "kv_lens": [131073]}, lathe.LatheError,
         "kv_lens: wanted the plan's 131072 keys at most, got 131073"),
        ({"q": np.zeros((1, 4, 576), np.float32)}, lathe.LatheError,
         "q: wanted the plan's 3 heads, got 4"),
        ({"q": np.zeros((PLAN.max_rows + 1, 3, 576), np.float32)}, lathe.LatheError,
         "rows at most"),
        ({"sink": np.zeros(3, np.float32)}, lathe.LatheError, "sink: wanted the plan's None"),
        ({"plan": plan_of("v4", sink=True)}, lathe.LatheError,
         "sink: wanted the plan's sink per head, got None"),
        ({"top_k": 64}, lathe.LatheError, "top_k: wanted the plan's 2048, got 64"),
        ({"window": 64}, lathe.LatheError, "window: wanted the plan's 0, got 64"),
        ({"indices": None, "page_table": [[0]]}, lathe.LatheError, "kv_lens: wanted"),
        ({"indices": None, "page_table": [[0]], "kv_lens": [5, 4]}, lathe.LatheError, "q_indptr:"),
    ],
)
def test_bad_input(change, error, says):
    pool = np.zeros((1, 64 * 576), np.uint8)
    args = {"q": q_of(1, 576), "plan": PLAN, "phase": "extend", "indices": [[0]], **change}
    with pytest.raises(error) as caught:
        lathe.attend(pool=pool, **args)
    assert says in str(caught.value)
