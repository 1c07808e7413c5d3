"""attend() with a plan: device, kind, layout and page size follow, compact rows are gathered."""

import numpy as np
import pytest
import reference as ref

import lathe

HEADS = 3


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
    plan = lathe.plan("dsa", "cpu", kv_layout=layout, prefill_attention_backend="gather",
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
    plan = lathe.plan("mla", "cpu", kv_layout="mla_fp8_block", prefill_attention_backend=kind,
                      decode_attention_backend=kind)
    cache, table, _ = pool_of(plan, 200)
    tables = np.full((3, table.shape[1]), -1, np.int32)
    tables[:] = table
    tables[1, 1:] = -1
    paged = {"page_table": tables, "q_indptr": [0, 2, 3, 6], "kv_lens": [200, 7, 129]}
    both_agree(q_of(6, 576), cache, plan, "decode", **paged)
    one_each = {"page_table": tables, "kv_lens": [200, 7, 129]}
    both_agree(q_of(3, 576), cache, plan, "extend", **one_each)


def test_the_ragged_side_takes_the_expansion():
    plan = lathe.plan("mla", "cpu", prefill_attention_backend="ragged")
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
    plan = lathe.plan("gqa", "cpu", window=48, heads=8, kv_heads=2, head_dim=32)
    cache, table, _ = pool_of(plan, 100)
    q = np.random.default_rng(3).standard_normal((4, 8, 32)).astype(np.float32)
    both_agree(q, cache, plan, "extend", page_table=table, q_indptr=[0, 4], kv_lens=[100])


@pytest.mark.parametrize("kind", ("inplace", "gather"))
@pytest.mark.parametrize("by_page", (True, False))
def test_v4_reads_two_pools(kind, by_page):
    plan = lathe.plan("v4", "cpu", prefill_attention_backend=kind)
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


PLAN = lathe.plan("dsa", "cpu", kv_layout="mla_fp8", prefill_attention_backend="gather",
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
        ({"kind": "native"}, lathe.LatheError, "kind: wanted None beside a plan, got native"),
        ({"device": "cpu"}, lathe.LatheError, "device: wanted None beside a plan, got cpu"),
        ({"layout": "mla_bf16"}, lathe.LatheError, "layout: wanted the plan's mla_fp8(nope=512"),
        ({"page_size": 32}, lathe.LatheError, "page_size: wanted the plan's 64, got 32"),
        ({"attention": "mla"}, lathe.LatheError, "attention: wanted the plan's dsa, got mla"),
        ({"phase": "prefill"}, lathe.LatheError, "phase: wanted one of extend, decode, verify"),
        ({"phase": None}, TypeError, "phase: wanted a string"),
        ({"plan": {}}, TypeError, "plan: wanted a lathe.Plan, got dict"),
        ({"indices": [0]}, lathe.LatheError, "indices: wanted integers on 2 axes"),
        ({"index_lengths": [1, 2]}, lathe.LatheError, "index_lengths: wanted 1 entries, got 2"),
        ({"indices": None, "page_table": [[0, 1]], "kv_lens": [65]}, lathe.LatheError,
         "page_table: wanted pages of the pool"),
        ({"indices": None, "page_table": [[0]], "kv_lens": [65]}, lathe.LatheError,
         "page_table: wanted the pages of every key"),
        ({"indices": None, "page_table": [[0]], "kv_lens": [2**31 - 1]}, lathe.LatheError,
         "page_table: wanted the pages of every key"),
        ({"indices": None, "page_table": [[0]]}, lathe.LatheError, "kv_lens: wanted"),
        ({"indices": None, "page_table": [[0]], "kv_lens": [5, 4]}, lathe.LatheError, "q_indptr:"),
    ],
)
def test_bad_input(change, error, says):
    pool = np.zeros((1, 64 * 576), np.uint8)
    args = {"plan": PLAN, "phase": "extend", "indices": [[0]], **change}
    with pytest.raises(error) as caught:
        lathe.attend(q_of(1, 576), pool, **args)
    assert says in str(caught.value)
