import copy
import json
import os
import pickle
import subprocess

import pytest

import lathe

# ctest names the command that this checkout built; without it these tests would prove nothing.
COMMAND = os.environ["LATHE_COMMAND"]

LEGAL = [
    {},
    {"attention": "mla", "kv_cache_dtype": "fp8_e4m3", "page_size": 32},
    {"attention": "v4", "compress_ratio": 128, "heads": 32},
    {"attention": "v4", "compress_ratio": 0, "kv_layout": "v4_fp8", "max_running_requests": 7},
    {"attention": "gqa", "heads": 8, "kv_heads": 2, "head_dim": 64, "sink": True, "window": 128},
    {"prefill_attention_backend": "gather", "decode_attention_backend": "native",
     "kv_layout": "mla_fp8", "chunked_prefill_size": 32768, "context_length": 65536,
     "top_k": 1024, "num_layers": 3, "max_total_tokens": 4096, "disable_cuda_graph": True,
     "speculative_num_draft_tokens": 3, "gather_budget": 1 << 28,
     "indexer_logits_budget": 1 << 27},
]  # fmt: skip
REFUSED = [
    {"device": "sm100"},
    {"kv_layout": "mla_fp8_block", "decode_attention_backend": "native"},
    {"kv_layout": "nonsense"},
    {"prefill_attention_backend": "flashinfer"},
    {"heads": 129},
    {"context_length": 0},
    {"attention": "gqa", "kv_layout": "mla_bf16"},
]


def command(options, *more):
    flags = []
    for name, value in {"device": "ref", **options}.items():
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value is True else [flag, str(value)]
    done = subprocess.run([COMMAND, "plan", *flags, *more], capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", LEGAL, ids=str)
def test_a_plan_is_what_the_command_prints(options):
    plan = lathe.plan(**options)
    code, text = command(options, "--json")
    assert code == 0
    assert plan.data == json.loads(text) and plan.to_json() + "\n" == text
    code, text = command(options)
    assert code == 0 and plan.explain() == text and str(plan) == text


@pytest.mark.parametrize(
    "attention, dtype, layout",
    [
        ("dsa", "bfloat16", "mla_bf16"),
        ("dsa", "fp8", "mla_fp8"),
        ("dsa", "fp8_ds_mla", "mla_fp8_block"),
        ("v4", "fp8_ds_mla", "v4_fp8"),
        ("gqa", "fp8", "gqa_fp8"),
    ],
)
def test_vllms_names_of_cache_formats(attention, dtype, layout):
    """As vLLM's --kv-cache-dtype: fp8_ds_mla is its cache of 656 bytes a token, or of V4's 584."""
    same = {"decode_attention_backend": "native"} if layout == "mla_fp8" else {}
    plan = lathe.plan(attention, kv_cache_dtype=dtype, **same)
    assert plan.caches[0]["layout"].startswith(layout + "(")


def test_fp8_ds_mla_is_a_cache_of_latents():
    with pytest.raises(lathe.PlanRefused) as caught:
        lathe.plan("gqa", kv_cache_dtype="fp8_ds_mla")
    assert "mla_fp8_block" in caught.value.reasons[0]["offered"]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_a_refusal_is_what_the_command_prints(options):
    with pytest.raises(lathe.PlanRefused) as caught:
        lathe.plan(**options)
    refused = caught.value
    assert isinstance(refused, ValueError) and not isinstance(refused, lathe.LatheError)
    code, text = command(options, "--json")
    data = json.loads(text)
    assert code == 2 and refused.data == data
    assert refused.headline == data["headline"] and refused.reasons == data["reasons"]
    assert refused.suggestions == data["suggestions"]
    assert set(refused.reasons[0]) == {"rule", "subject", "field", "wanted", "offered", "hint"}
    assert str(refused) == command(options)[1]
    assert pickle.loads(pickle.dumps(refused)).data == data


def test_attributes_are_plain_data():
    plan = lathe.plan("mla", kv_layout=lathe.Layout("mla_fp8"), page_size=None)
    assert plan.device == "ref" and plan.caches[0]["layout"].startswith("mla_fp8(")
    assert plan.phases["decode"]["routes"][0]["kernel"].startswith("ref.dense_latent.")
    assert "phases" in dir(plan) and repr(plan) == "<lathe.Plan dense_latent on ref>"
    with pytest.raises(AttributeError, match="no 'kernel'; it has legal, "):
        getattr(plan, "kernel")  # noqa: B009
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert again == plan and again.explain() == plan.explain()


def test_a_suggestion_makes_the_request_legal():
    with pytest.raises(lathe.PlanRefused) as caught:
        lathe.plan(kv_layout="mla_fp8_block", decode_attention_backend="native")
    flag, value = caught.value.suggestions[0].split()
    options = {"kv_layout": "mla_fp8_block", "decode_attention_backend": "native"}
    options[flag[2:].replace("-", "_")] = value
    assert lathe.plan(**options).data["legal"]


@pytest.mark.parametrize(
    "options, error, says",
    [
        ({"attention": "mha"}, lathe.LatheError, "attention: wanted one of mla, dsa, v4, gqa"),
        ({"device": "sm91"}, lathe.LatheError, "device: wanted one of auto, cuda, ref, cpu"),
        ({"page_size": 0}, lathe.LatheError, "page_size: wanted 1 to 65536, got 0"),
        ({"heads": 2**31}, lathe.LatheError, "heads: wanted an integer from -2147483648 to "),
        ({"context_length": 2**63}, lathe.LatheError, "context_length: wanted "),
        ({"kv_layuot": "mla_fp8"}, TypeError, "plan() knows no kv_layuot; known: prefill_atten"),
        ({"heads": "8"}, TypeError, "heads: wanted an integer, got str"),
        ({"heads": 8.0}, TypeError, "heads: wanted an integer, got float"),
        ({"heads": True}, TypeError, "heads: wanted an integer, got bool"),
        ({"kv_layout": 3}, TypeError, "kv_layout: wanted a string, got int"),
        ({"tp": 2}, lathe.LatheError, "the heads of one rank"),
        ({"sink": 1}, TypeError, "sink: wanted True or False, got int"),
        ({"attention": None}, TypeError, "attention: wanted a string, got NoneType"),
    ],
)
def test_bad_input(options, error, says):
    with pytest.raises(error) as caught:
        lathe.plan(**options)
    assert says in str(caught.value)
