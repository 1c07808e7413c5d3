#!/usr/bin/env python3
"""Makes the fixtures of tests/data/models with weights that are too large to store: a formula generates them, here and in the tests.

    python3 tools/make_generated_fixtures.py OUT_DIR [NAME...]     (torch and transformers >= 5.17; a CPU, a few minutes)

Every folder has config.json, tensors.json and reference.safetensors. tensors.json is the formula (generated_weights.py). The reference
has the tensors that make_model_fixtures.py writes, for prompts of 7, 160 and 1100 tokens.

Experts in MXFP4 are decoded by transformers' own convert_moe_packed_tensors. Gemma's embeddings are scaled by sqrt(hidden) in
the dtype of the checkpoint, as transformers does in a model of that dtype.
"""

import json
import pathlib
import re
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from generated_weights import TORCH_DTYPES, generate, write_specs
from make_model_fixtures import CacheRounding, IndexScores, RouterMargins, run

LENGTHS = (7, 160, 1100)
TRIALS = {7: 20, 160: 20, 1100: 8}

COMMON = {
    "vocab_size": 211,
    "hidden_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
GPT_OSS = {
    "hidden_act": "silu",
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attention_bias": True,
    "sliding_window": 128,
    "num_experts_per_tok": 2,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}

# name -> (architecture, dtype, configuration)
MODELS = {
    "gpt_oss": (
        "GptOssForCausalLM",
        "BF16",
        GPT_OSS
        | {
            "num_hidden_layers": 4,
            "intermediate_size": 288,
            "num_local_experts": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
            },
        },
    ),
    "gpt_oss_bf16": (
        "GptOssForCausalLM",
        "BF16",
        GPT_OSS | {"num_hidden_layers": 2, "intermediate_size": 96, "num_local_experts": 4, "sliding_window": 100},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "BF16",
        {
            "model_type": "gemma3_text",
            "hidden_size": 576,
            "hidden_activation": "gelu_pytorch_tanh",
            "num_hidden_layers": 7,
            "intermediate_size": 640,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 200,
            "sliding_window": 96,
            "sliding_window_pattern": 6,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "gemma3_new": (
        "Gemma3ForCausalLM",
        "F32",
        {
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "num_hidden_layers": 3,
            "intermediate_size": 320,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "query_pre_attn_scalar": 64,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
            },
        },
    ),
    "mistral": (
        "MistralForCausalLM",
        "F32",
        {
            "hidden_act": "silu",
            "num_hidden_layers": 2,
            "intermediate_size": 640,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 96,
            "sliding_window": 100,
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
        },
    ),
    "qwen2_mixed": (
        "Qwen2ForCausalLM",
        "BF16",
        {
            "hidden_act": "silu",
            "num_hidden_layers": 4,
            "intermediate_size": 640,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 100,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
            "rope_theta": 1000000.0,
        },
    ),
}


def numbers(name, shape, gemma, yarn):
    """mean and reach, chosen so that every part of the model affects the logits."""
    if "norm" in name:
        return 0.0 if gemma else 1.0, 0.4
    if name.endswith("sinks"):
        return 1.0, 3.0
    if name.endswith("router.bias"):
        return 0.0, 1.5
    if name.endswith("bias"):
        return 0.0, 0.5
    if "embed_tokens" in name:
        return 0.0, 0.125 if gemma else 1.75
    depth = shape[-2] if ".experts." in name else shape[-1]  # experts are stored [in, out]
    # YaRN scales cos and sin up, and sharp attention depends on the rounding of single keys.
    spread = (0.9 if yarn else 1.25) if "q_proj" in name or "k_proj" in name else 1.5
    return 0.0, round(spread * (3 / depth) ** 0.5, 6)


def describe(model, dtype, mxfp4):
    gemma, yarn = "Gemma" in type(model).__name__, "GptOss" in type(model).__name__
    out = {}
    for name, t in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        shape = list(t.shape)
        if mxfp4 and re.search(r"experts\.(gate_up|down)_proj$", name):
            experts, cols, rows = shape
            out[name + "_blocks"] = {"dtype": "U8", "shape": [experts, rows, cols // 32, 16], "low": 0, "count": 256}
            out[name + "_scales"] = {"dtype": "U8", "shape": [experts, rows, cols // 32], "low": 120, "count": 3}
            continue
        mean, reach = numbers(name, shape, gemma, yarn)
        out[name] = {"dtype": dtype, "shape": shape, "mean": mean, "reach": reach}
    return out


def fill(model, specs):
    with torch.no_grad():
        for name, t in model.state_dict().items():
            if name in specs:
                t.copy_(generate(name, specs[name]).float())
            elif name + "_blocks" in specs:
                blocks, scales = (generate(name + part, specs[name + part]) for part in ("_blocks", "_scales"))
                t.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))


def build(architecture, dtype, config):
    cls = getattr(transformers, architecture)
    given = {k: v for k, v in config.items() if k not in ("quantization_config", "model_type")}
    hf = cls.config_class.from_dict(json.loads(json.dumps(given)))
    hf._attn_implementation = "eager"
    hf._experts_implementation = "eager"
    model = cls(hf).float().eval()
    if model.config._attn_implementation != "eager":
        raise SystemExit(f"{architecture}: attention is {model.config._attn_implementation}, not eager")
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    embedding = model.model.embed_tokens
    if hasattr(embedding, "embed_scale"):
        embedding.embed_scale = embedding.embed_scale.to(TORCH_DTYPES[dtype]).float()
    specs = describe(model, dtype, "quantization_config" in config)
    fill(model, specs)
    return model, specs


def reference(model, config, generator):
    routers, indexers, rounding = RouterMargins(model), IndexScores(model), CacheRounding(model)
    out = {}
    for length in LENGTHS:
        best = None
        positions = sorted({0, length // 3, length // 2, 7 * length // 8, length - 2, length - 1})
        for _ in range(TRIALS[length] if routers.hooked else 1):
            tokens = torch.randint(0, config["vocab_size"], (length,), generator=generator)
            rounding.on = True
            logits, routed, _ = run(model, tokens, routers, indexers, 0)
            rounding.on = False
            exact, _, _ = run(model, tokens, routers, indexers, 0)
            moved = float(((exact - logits).norm(dim=-1) / exact.norm(dim=-1))[positions].max())
            # Rounding must not change the experts of the stored rows.
            rank = (moved < 0.03, float(routed.min()))
            if best is None or rank > best[0]:
                best = (rank, tokens, logits, exact, routed, moved)
        _, tokens, logits, exact, routed, moved = best
        stem = f"prompt.{length}"
        out[f"{stem}.tokens"] = tokens.to(torch.int32)
        out[f"{stem}.positions"] = torch.tensor(positions, dtype=torch.int32)
        out[f"{stem}.logits"] = exact[positions].contiguous()
        out[f"{stem}.logits_bf16_cache"] = logits[positions].contiguous()
        print(f"  {length}: std {float(logits.std()):.2f}, bf16 cache moves {moved:.2g}, smallest router margin {float(routed.min()):.2g}")
    return out


def main():
    if len(sys.argv) < 2 or any(name not in MODELS for name in sys.argv[2:]):
        raise SystemExit(__doc__)
    for number, (name, (architecture, dtype, own)) in enumerate(MODELS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        print(name)
        config = {"architectures": [architecture], "model_type": getattr(transformers, architecture).config_class.model_type}
        config |= COMMON | own
        model, specs = build(architecture, dtype, config)
        answers = reference(model, config, torch.Generator().manual_seed(2000 + number))
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        write_specs(folder, specs)
        save_file(answers, folder / "reference.safetensors")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
