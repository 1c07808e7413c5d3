#!/usr/bin/env python3
"""Compares models of published widths with Hugging Face transformers: two layers, random weights.

    python3 tools/check_wide_models.py PROGRAM [NAME...]     (torch and transformers >= 5.17)

PROGRAM is build/src/lathe_model_test, or on a GPU gpu_model_gpu_test. For each architecture the script writes a temporary
checkpoint with random weights, and transformers' f32 logits of all rows, with keys and values rounded to bf16 as in the cache. The
program's WideModel tests compare the CPU in f32 with them (1e-3), and on a GPU the GPU with the CPU, which replays the GPU's
choices of keys and experts (2e-2). Together they compare every row of the GPU with transformers.

Widths are the published ones; vocabulary, layers and the number of experts are reduced. The indexers' top-k is below the prompt's
length, so that they have to select. Rounding decides a choice between equal scores, so the script tries several random prompts and
keeps the one with the largest margin in its closest choice of experts. The CPU replays transformers' selections of keys, which are
scored in e4m3; it may disagree with few of them.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent / "fixtures"))
from checkpoint import build, store  # noqa: E402
from make_model_fixtures import write  # noqa: E402
from models.parts import FP8, QWEN_VISION, VISION, YARN  # noqa: E402
from reference import CacheRounding, IndexScores, RouterMargins, run  # noqa: E402

LENGTH = 300
TRIALS = 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMMON = {
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "num_hidden_layers": 2,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
QWEN3 = {
    "hidden_act": "silu",
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
LATENT = {
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "index_head_dim": 128,
    "index_topk": 128,
}

# name -> (architecture, configuration, how it is stored)
MODELS = {
    "qwen3-8b": (
        "Qwen3ForCausalLM",
        {**QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8},
        {"dtype": torch.bfloat16},
    ),
    "qwen3-30b-a3b": (
        "Qwen3MoeForCausalLM",
        {
            **QWEN3,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        {"dtype": torch.bfloat16},
    ),
    "llama-3.1-8b": (
        "LlamaForCausalLM",
        {
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        {"dtype": torch.bfloat16},
    ),
    "gpt-oss-20b": (
        "GptOssForCausalLM",
        {
            "hidden_act": "silu",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "swiglu_limit": 7.0,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "max_position_embeddings": 131072,
            "quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
            },
        },
        {"dtype": torch.bfloat16, "as_it_is": True},
    ),
    "gemma-3-12b": (
        "Gemma3ForCausalLM",
        {
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        {"dtype": torch.bfloat16},
    ),
    "deepseek-v3.2": (
        "DeepseekV32ForCausalLM",
        {
            **LATENT,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "n_group": 8,
            "topk_group": 4,
            "index_n_heads": 64,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "rope_scaling": {**YARN, "factor": 40, "original_max_position_embeddings": 4096},
            "quantization_config": FP8,
        },
        {"dtype": torch.bfloat16, "fp8": True},
    ),
    "glm-5": (
        "GlmMoeDsaForCausalLM",
        {
            **LATENT,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "mlp_layer_types": ["dense", "sparse"],
            "indexer_types": ["full", "full"],
            "n_group": 1,
            "topk_group": 1,
            "index_n_heads": 32,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        {"dtype": torch.bfloat16},
    ),
    "glm-4.7-flash": (
        "Glm4MoeLiteForCausalLM",
        {
            **LATENT,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "moe_intermediate_size": 1536,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "mlp_layer_types": ["dense", "sparse"],
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        {"dtype": torch.bfloat16},
    ),
    "deepseek-v2-lite": (
        "DeepseekV2ForCausalLM",
        {
            **LATENT,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 2,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "rope_scaling": {**YARN, "factor": 40, "original_max_position_embeddings": 4096},
        },
        {"dtype": torch.bfloat16},
    ),
    "youtu-2b": (
        "YoutuForCausalLM",
        {
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1600000.0},
        },
        {"dtype": torch.bfloat16},
    ),
    "qwen3-vl-30b-a3b": (
        "Qwen3VLMoeForConditionalGeneration",
        {
            "text_config": {
                **COMMON,
                **QWEN3,
                "model_type": "qwen3_vl_moe_text",
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "moe_intermediate_size": 768,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 5000000.0,
                    "mrope_interleaved": True,
                    "mrope_section": [24, 20, 20],
                },
            },
            "vision_config": QWEN_VISION | {"out_hidden_size": 2048},
            "tie_word_embeddings": False,
        },
        {"dtype": torch.bfloat16, "tower": "model.language_model.", "stacked": True},
    ),
    "ministral-3-8b": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {
                **COMMON,
                "model_type": "ministral3",
                "hidden_act": "silu",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "rms_norm_eps": 1e-5,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1000000.0,
                    "factor": 16.0,
                    "original_max_position_embeddings": 256,  # the prompt passes it, so queries are scaled
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                },
            },
            "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8},
            "tie_word_embeddings": False,
        },
        {"dtype": torch.bfloat16, "tower": "language_model.model."},
    ),
    "qwen3.5-35b-a3b": (
        "Qwen3_5MoeForCausalLM",
        {
            "num_hidden_layers": 4,
            "full_attention_interval": 4,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "head_dim": 256,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
        },
        {"dtype": torch.bfloat16},
    ),
    "gemma-4-26b-a4b": (
        "Gemma4ForCausalLM",
        {
            "model_type": "gemma4_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "head_dim": 256,
            "global_head_dim": 512,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 16,
            "top_k_experts": 4,
            "moe_intermediate_size": 704,
            "final_logit_softcapping": 30.0,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        {"dtype": torch.bfloat16},
    ),
}


def pack_experts(model, generator, tensors):
    """Stores experts in MXFP4, as random codes and exponents. Gives the model the weights that transformers decodes."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    with torch.no_grad():
        for name, t in model.state_dict().items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                continue
            experts, cols, rows = t.shape
            blocks = torch.randint(0, 256, (experts, rows, cols // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(119, 121, (experts, rows, cols // 32), generator=generator, dtype=torch.uint8)
            t.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            del tensors[name]
            tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales


def make(name):
    architecture, own, storage = MODELS[name]
    config = {"architectures": [architecture], "model_type": getattr(transformers, architecture).config_class.model_type}
    config |= own if storage.get("tower") else COMMON | own
    vocabulary = COMMON["vocab_size"]
    generator = torch.Generator(DEVICE).manual_seed(list(MODELS).index(name))
    model = build(architecture, {k: v for k, v in config.items() if k != "model_type"}, generator)
    if architecture.startswith("Gemma3"):  # its norms add one, and its embeddings are scaled
        with torch.no_grad():
            for parameter, t in model.named_parameters():
                if "norm" in parameter:
                    t.sub_(1)
                if "embed_tokens" in parameter:
                    t.div_(config["hidden_size"] ** 0.5)
        model.model.embed_tokens.embed_scale = model.model.embed_tokens.embed_scale.bfloat16().float()
    tensors = store(model, storage)
    if "quantization_config" in config and not storage.get("fp8"):
        pack_experts(model, generator, tensors)

    routers, indexers, rounding = RouterMargins(model), IndexScores(model), CacheRounding(model)
    rounding.on = True
    best = (-1.0,)
    for _ in range(TRIALS if routers.hooked else 1):
        tokens = torch.randint(0, vocabulary, (LENGTH,), generator=generator)
        logits, routed, _ = run(model, tokens, routers, indexers, LENGTH)
        clear = float(routed.min())
        if clear > best[0]:
            best = (clear, tokens, logits, [keys_in_order(chosen) for chosen in indexers.chosen])
    clear, tokens, logits, keys = best
    rounding.on = False
    exact, _, _ = run(model, tokens, routers, indexers, LENGTH)
    answers = {
        f"prompt.{LENGTH}.tokens": tokens.to(torch.int32),
        f"prompt.{LENGTH}.positions": torch.arange(LENGTH, dtype=torch.int32),
        f"prompt.{LENGTH}.logits": exact.contiguous(),
        f"prompt.{LENGTH}.logits_bf16_cache": logits.contiguous(),
        **{f"prompt.{LENGTH}.keys.{i}": chosen for i, chosen in enumerate(keys)},
    }
    print(f"{name}: closest choice of experts {clear:.1e}, logits std {float(logits.std()):.2f}", flush=True)
    return config, storage, {k: v.cpu() for k, v in tensors.items()}, {k: v.cpu() for k, v in answers.items()}


def keys_in_order(chosen):
    """Positions in ascending order, then -1: early rows have fewer keys than the indexer may keep."""
    at = torch.arange(len(chosen), dtype=torch.int32)[:, None]
    past = chosen > at
    out = chosen.to(torch.int32).masked_fill(past, LENGTH).sort(dim=-1)[0]
    return out.masked_fill(out == LENGTH, -1).contiguous()


def main():
    if len(sys.argv) < 2 or any(name not in MODELS for name in sys.argv[2:]):
        raise SystemExit(__doc__)
    torch.set_default_device(DEVICE)
    failed = []
    for name in sys.argv[2:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), *make(name))
            torch.cuda.empty_cache()
            given = {**os.environ, "LATHE_CHECKPOINT": folder}
            ran = subprocess.run([sys.argv[1], "--gtest_filter=WideModel.*", "--gtest_brief=1"], env=given)
            if ran.returncode != 0:
                failed.append(name)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
