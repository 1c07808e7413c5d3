#!/usr/bin/env python3
"""Makes tests/data/models: small random checkpoints and their logits from Hugging Face transformers.

    python3 tools/make_model_fixtures.py OUT_DIR [NAME...]     (torch and transformers >= 5.17; a CPU, a few minutes)

Every folder holds config.json, generation_config.json, the weights as safetensors or, to save room, tensors.json, the formula that
generates them (generated_weights.py), and reference.safetensors: for prompts of 1, 7, 64 and 300 tokens the tokens, the stored
positions and their logits in two forms. `logits` are those of the unchanged model (eager attention, f32 throughout).
`logits_bf16_cache` are those with the contents of a bf16 KV cache (keys after RoPE and values, or latent and rotary key) rounded to
bf16 when written, the only difference of an f32 engine with such a cache. Weights stored in a narrower format are rounded first, so
the reference has exactly the numbers of the file.

Routers and indexers choose, and rounding decides a choice between equal scores. So of many random prompts the script keeps the
one with the clearest choices, and stores the smallest margin of each position beside its logits. Indexers have many heads,
because scores are equal if the relu of every head is 0. The indexer's q and k pass through the e4m3 quantisation of DeepSeek's
published inference code (scale 2^ceil(log2(max(amax, 1e-4) / 448)) per row, no Hadamard rotation), as in the cache; transformers
does not quantise them.
"""

import json
import pathlib
import re
import sys

import torch
import transformers
from safetensors.torch import save_file

from generated_weights import TORCH_DTYPES, generate, write_specs

LENGTHS = (1, 7, 64, 300)
TRIALS = {1: 8, 7: 30, 64: 30, 300: 20}
MOVED = 0.04  # of logits, by rounding the cache; more than that is another choice in a stored row
FP8_MAX = 448.0

COMMON = {
    "vocab_size": 211,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
MLA = {
    "hidden_size": 96,
    "intermediate_size": 72,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 48,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
MOE = {
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
# Experts of a model whose answers are few, and whose router's keys are the class's where absent.
SMALL = {
    "vocab_size": 61,
    "moe_intermediate_size": 20,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
# Text models of towers, and vision models that nothing runs.
TEXT = {
    "vocab_size": 61,
    "hidden_size": 96,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 96,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
DELTA = TEXT | {"vocab_size": 31}
# Layers of a gated delta net for each one of attention with a gate.
GATED = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [4, 2, 2],
    },
}
SHARED_EXPERT = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
# The older spelling, as in DeepSeek's own config.json.
YARN = {
    "type": "yarn",
    "factor": 8,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}

# name -> (architecture, configuration, how it is stored)
MODELS = {
    "llama": (
        "LlamaForCausalLM",
        {
            "hidden_size": 96,
            "intermediate_size": 88,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        {"dtype": torch.float32},
    ),
    "llama_bias": (
        "LlamaForCausalLM",
        {
            "hidden_size": 80,
            "intermediate_size": 120,
            "num_hidden_layers": 3,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000.0},
        },
        {"dtype": torch.float16, "shards": 3},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {
            "hidden_size": 96,
            "intermediate_size": 104,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": 32,
            "max_window_layers": 1,
            "rope_theta": 1000000.0,
        },
        {"dtype": torch.bfloat16},
    ),
    "qwen2_window": (
        "Qwen2ForCausalLM",
        {
            "hidden_size": 64,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
            "use_sliding_window": True,
            "sliding_window": 40,
            "max_window_layers": 0,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 96},
        },
        {"dtype": torch.bfloat16, "shards": 2},
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        {
            "hidden_size": 96,
            "intermediate_size": 72,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {
            "hidden_size": 80,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "tie_word_embeddings": False,
            "rope_theta": 100000.0,
            "moe_intermediate_size": 24,
            "num_experts": 7,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "deepseek_v3_dense": (
        "DeepseekV3ForCausalLM",
        {
            **MLA,
            **MOE,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 2,
            "rms_norm_eps": 0.03,  # the latents' norms keep 1e-6
            "q_lora_rank": None,
            "rope_theta": 10000.0,
            "rope_scaling": None,
        },
        {"dtype": torch.float32, "generated": True},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            **MLA,
            **MOE,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "kv_lora_rank": 128,
            "qk_rope_head_dim": 32,
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
            "rope_theta": 10000,
            "rope_scaling": YARN,
        },
        {"dtype": torch.bfloat16, "generated": True, "mtp": True},
    ),
    "deepseek_v3_fp8": (
        "DeepseekV3ForCausalLM",
        {
            **MLA,
            **MOE,
            "hidden_size": 144,
            "intermediate_size": 200,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "q_lora_rank": 136,
            "kv_lora_rank": 128,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
            "rope_theta": 10000,
            "rope_scaling": YARN,
            "quantization_config": FP8,
        },
        {"dtype": torch.bfloat16, "fp8": True},
    ),
    "deepseek_v32": (
        "DeepseekV32ForCausalLM",
        {
            **MLA,
            **MOE,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "rms_norm_eps": 0.03,
            "index_n_heads": 16,
            "index_head_dim": 32,
            "index_topk": 40,
            "rope_theta": 10000,
            "rope_scaling": YARN,
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "glm_moe_dsa": (
        "GlmMoeDsaForCausalLM",
        {
            **MLA,
            **MOE,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_group": 1,
            "topk_group": 1,
            "n_routed_experts": 6,
            "qk_rope_head_dim": 32,
            "index_n_heads": 8,
            "index_head_dim": 48,
            "index_topk": 40,
            "indexer_types": ["full", "full", "shared"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteForCausalLM",
        {
            **MLA,
            **SMALL,
            "num_hidden_layers": 3,
            "qk_nope_head_dim": 48,
            "v_head_dim": 64,
            "num_nextn_predict_layers": 1,
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        {"dtype": torch.bfloat16, "generated": True, "mtp": True, "leaves_out": ["rms_norm_eps"]},
    ),
    "youtu": (
        "YoutuForCausalLM",
        {**MLA, "vocab_size": 61, "num_hidden_layers": 2, "rope_theta": 1600000},
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "sarvam_mla": (
        "SarvamMLAForCausalLM",
        {
            **MLA,
            "vocab_size": 61,
            "q_lora_rank": None,
            "head_dim": 80,
            "q_head_dim": 48,
            "num_hidden_layers": 2,
            "moe_intermediate_size": 20,
            "num_experts": 6,
            "num_shared_experts": 1,
            "num_experts_per_tok": 2,
            "rope_theta": 10000,
            "rope_scaling": YARN | {"type": "deepseek_yarn"},
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {
            **MLA,
            **SMALL,
            "n_routed_experts": 12,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,  # of two groups: with two, the groups would not matter
            "topk_method": "group_limited_greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 4.0,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "rope_theta": 10000,
            "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "deepseek_v2_lite": (
        "DeepseekV2ForCausalLM",
        {
            **MLA,
            **SMALL,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "rope_theta": 10000,
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    "ministral3_tower": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": TEXT
            | {
                "model_type": "ministral3",
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1000000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 512,
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
        {"dtype": torch.bfloat16, "generated": True, "tower": "language_model.model."},
    ),
    "gemma3_tower": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {
                "model_type": "gemma3_text",
                "vocab_size": 61,
                "hidden_size": 96,
                "intermediate_size": 72,
                "num_hidden_layers": 3,
                "sliding_window": 64,
                "sliding_window_pattern": 2,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "vision_config": VISION | {"model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "image_token_index": 60,
            "eos_token_id": [1, 2],
        },
        {"dtype": torch.float32, "generated": True, "tower": "language_model.model."},
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": TEXT
            | {
                "model_type": "qwen3_vl_text",
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]},
            },
            "vision_config": QWEN_VISION,
            "tie_word_embeddings": True,
        },
        {"dtype": torch.bfloat16, "generated": True, "tower": "model.language_model."},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration",
        {
            "text_config": TEXT
            | {
                "model_type": "qwen3_vl_moe_text",
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "moe_intermediate_size": 24,
                "num_experts": 7,
                "num_experts_per_tok": 2,
                "rope_theta": 5000000,
                "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]},
            },
            "vision_config": QWEN_VISION,
            "tie_word_embeddings": False,
        },
        {"dtype": torch.bfloat16, "generated": True, "tower": "model.language_model.", "stacked": True},
    ),
    "kimi_k25": (
        "KimiK25ForConditionalGeneration",
        {
            "text_config": TEXT
            | MLA
            | SMALL
            | {
                "model_type": "kimi_k2",
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 2.827,
                "num_nextn_predict_layers": 0,
                "rope_theta": 50000.0,
                "rope_scaling": YARN,
            },
            "tie_word_embeddings": False,
        },
        {"dtype": torch.bfloat16, "generated": True, "tower": "language_model.model."},
    ),
    # Prompts longer than the original context: queries grow with their position.
    "ministral3": (
        "Ministral3ForCausalLM",
        TEXT
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 40,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
        },
        {"dtype": torch.bfloat16, "generated": True},
    ),
    # GLM 4.5's dense layers are Qwen 2's, but for the half of each head that does not rotate. YaRN's attention_factor.
    "qwen2_partial": (
        "Qwen2ForCausalLM",
        TEXT
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "max_position_embeddings": 2048,
            "original_max_position_embeddings": 512,
                "attention_factor": 1.25,
                "partial_rotary_factor": 0.5,
            },
        },
        {
            "dtype": torch.float32,
            "generated": True,
            "computed_by": ("Glm4MoeForCausalLM", {"attention_bias": True, "first_k_dense_replace": 2, "use_qk_norm": False}),
        },
    ),
}

BF16 = {"dtype": torch.bfloat16, "generated": True}
# Families of grouped-query layers with other parts than Llama's.
MODELS |= {
    "mixtral": (
        "MixtralForCausalLM",
        TEXT | {"num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 24, "num_local_experts": 7, "num_experts_per_tok": 2},
        BF16 | {"names": "mixtral"},
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        TEXT
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rotary_dim": 16,
            "intermediate_size": 24,
            "num_local_experts": 7,
            "num_experts_per_tok": 2,
            "rope_theta": 5000000.0,
            "scoring_func": "sigmoid",
        },
        BF16 | {"names": "mixtral"},
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        TEXT
        | SMALL
        | {
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.7,
            "attention_bias": True,
            "use_qk_norm": True,
            "num_nextn_predict_layers": 1,
        },
        BF16,
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        TEXT
        | {
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "no_rope_layers": [1, 1, 1, 0, 1],
            "rope_theta": 5000000.0,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
        },
        BF16,
    ),
    "seed_oss": (
        "SeedOssForCausalLM",
        TEXT | {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 32, "attention_out_bias": False, "rope_theta": 1e7},
        BF16,
    ),
    "granite": (
        "GraniteForCausalLM",
        TEXT
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "embedding_multiplier": 1.5,
            "attention_multiplier": 0.35,
            "residual_multiplier": 0.8,
            "logits_scaling": 1.5,
            "tie_word_embeddings": True,
            "rope_theta": 1e7,
        },
        BF16,
    ),
    "olmo2": ("Olmo2ForCausalLM", TEXT | {"num_attention_heads": 6, "num_key_value_heads": 2, "rope_theta": 5e5}, BF16),
    "olmo3": (
        "Olmo3ForCausalLM",
        TEXT
        | {
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
        BF16,
    ),
    "exaone4": (
        "Exaone4ForCausalLM",
        TEXT
        | {
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "sliding_window": 24,
            "sliding_window_pattern": "LLLG",
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_theta": 1000000.0,
        },
        BF16,
    ),
    "glm4": (
        "Glm4ForCausalLM",
        TEXT | {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "partial_rotary_factor": 0.5, "attention_bias": True, "pad_token_id": 0},
        BF16,
    ),
    "phi3": (
        "Phi3ForCausalLM",
        TEXT
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "hidden_size": 192,
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 512,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
            "pad_token_id": 0,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0],
                "long_factor": [1.0, 1.3, 1.9, 2.8, 4.0, 6.5, 9.0, 13.0],
            },
        },
        BF16,
    ),
    "gemma4_moe": (
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                "model_type": "gemma4_text",
                "vocab_size": 41,
                "hidden_size": 96,
                "intermediate_size": 72,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "global_head_dim": 64,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0,
                "sliding_window": 24,
                "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
                "enable_moe_block": True,
                "num_experts": 7,
                "top_k_experts": 2,
                "moe_intermediate_size": 24,
                "final_logit_softcapping": 6.0,
                "max_position_embeddings": 512,
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
            "tie_word_embeddings": True,
        },
        BF16 | {"tower": "model.language_model.", "whole": True},
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        {
            "vocab_size": 41,
            "hidden_size": 96,
            "intermediate_size": 72,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "per_layer_config": {"1": {"head_dim": 48}},
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
        },
        BF16 | {"leaves_out": ["hidden_act", "rms_norm_eps"]},
    ),
}
# Values narrower than keys; more key heads, sinks and another base in layers with a window.
MODELS |= {
    "mimo_v2_flash": (
        "MiMoV2FlashForCausalLM",
        TEXT
        | {
            "vocab_size": 41,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "swa_num_key_value_heads": 2,
            "head_dim": 48,
            "v_head_dim": 32,
            "partial_rotary_factor": 0.334,
            "sliding_window": 24,
            "sliding_window_size": 24,
            "hybrid_layer_pattern": [0, 1, 1],
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "moe_layer_freq": [0, 1, 1],
            "rope_theta": 5000000,
            "swa_rope_theta": 10000,
            "moe_intermediate_size": 20,
            "n_routed_experts": 6,
            "n_shared_experts": None,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "routed_scaling_factor": None,
            "attention_value_scale": 0.707,
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
            "layernorm_epsilon": 1e-5,
            "tie_word_embeddings": False,
        },
        BF16 | {"names": "mimo", "leaves_out": ["rms_norm_eps"]},
    ),
}
# Latents of other widths than 512: of these models the kernels are generic, so widths are as small as in other models.
MODELS |= {
    "mistral4": (
        "Mistral4ForCausalLM",
        TEXT
        | MLA
        | SMALL
        | {
            "vocab_size": 41,
            "first_k_dense_replace": 0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "pad_token_id": None,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 40,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
                "partial_rotary_factor": 16 / 48,
            },
        },
        BF16 | {"whole": True},
    ),
    "minicpm3": (
        "MiniCPM3ForCausalLM",
        TEXT
        | MLA
        | {
            "vocab_size": 41,
            "scale_emb": 3,
            "scale_depth": 1.4,
            "dim_model_base": 64,
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            "rope_scaling": {
                "type": "longrope",
                "original_max_position_embeddings": 512,
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0],
                "long_factor": [1.0, 1.3, 1.9, 2.8, 4.0, 6.5, 9.0, 13.0],
            },
        },
        BF16 | {"leaves_out": ["v_head_dim"]},
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", DELTA | GATED | {"num_hidden_layers": 3, "full_attention_interval": 2, "tie_word_embeddings": True}, BF16),
    "qwen3_5_moe": (
        "Qwen3_5MoeForConditionalGeneration",
        {
            "text_config": DELTA
            | GATED
            | SHARED_EXPERT
            | {
                "model_type": "qwen3_5_moe_text",
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "num_hidden_layers": 3,
                "attn_output_gate": True,
            },
            "vision_config": QWEN_VISION,
            "image_token_id": 5,
            "tie_word_embeddings": False,
        },
        BF16 | {"tower": "model.language_model.", "whole": True},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        DELTA
        | GATED
        | SHARED_EXPERT
        | {
            "num_hidden_layers": 3,
            "full_attention_interval": 3,
            "num_experts": 4,
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "rope_parameters": None,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
        },
        BF16,
    ),
    "kimi_linear": (
        "KimiLinearForCausalLM",
        DELTA
        | MLA
        | {
            "num_hidden_layers": 3,
            "q_lora_rank": None,
            "moe_intermediate_size": 20,
            "num_experts": 3,
            "pad_token_id": 0,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "num_expert_group": 1,
            "topk_group": 1,
            "moe_renormalize": True,
            "routed_scaling_factor": 2.446,
            "first_k_dense_replace": 1,
            "model_max_length": 512,
            "linear_attn_config": {
                "full_attn_layers": [2],
                "kda_layers": [1, 3],
                "head_dim": 16,
                "num_heads": 3,
                "short_conv_kernel_size": 4,
            },
        },
        BF16 | {"names": "kimi", "leaves_out": ["max_position_embeddings"]},
    ),
}
# Two kinds of heads, values that are keys, experts next to a dense part, all of them in one tensor.
MODELS |= {
    "bailing_hybrid": (
        "BailingHybridForCausalLM",
        DELTA
        | MLA
        | {
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "q_lora_rank": None,
            "head_dim": 16,
            "layer_group_size": 3,
            "moe_intermediate_size": 20,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 0,
            "pad_token_id": 0,
            "rope_theta": 6000000.0,
        },
        BF16 | {"names": "bailing"},
    ),
}
# Architectures that transformers computes by another one's class: its name, and the configuration's.
CLASSES = {
    "Gemma4ForConditionalGeneration": ("Gemma4ForCausalLM", "Gemma4TextConfig"),
    "KimiK25ForConditionalGeneration": ("DeepseekV3ForCausalLM", "DeepseekV3Config"),
    "SarvamMLAForCausalLM": ("DeepseekV3ForCausalLM", "SarvamMLAConfig"),
}


def classes(architecture):
    """transformers' class of the model, and of its configuration."""
    if architecture in CLASSES:
        model, config = CLASSES[architecture]
        return getattr(transformers, model), getattr(transformers, config)
    model = getattr(transformers, architecture)
    return model, model.config_class


def build(architecture, config, generator):
    """The model with random f32 weights, scaled so that every part of it affects the logits."""
    cls, config_class = classes(architecture)
    given = {k: v for k, v in config.items() if k != "quantization_config"}
    if "text_config" in given and "vision_config" not in given:  # the text model alone
        given = given["text_config"] | {"tie_word_embeddings": given["tie_word_embeddings"]}
    hf = config_class.from_dict(json.loads(json.dumps(given)))
    hf._attn_implementation = "eager"
    for part in (hf, hf.get_text_config()):
        part._attn_implementation = "eager"
        try:
            part._experts_implementation = "eager"
        except AttributeError:
            pass
    model = cls(hf).float().eval()
    for part in (model.config, model.config.get_text_config()):
        if part._attn_implementation != "eager":
            raise SystemExit(f"{architecture}: attention is {part._attn_implementation}, not eager")
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.get_input_embeddings().weight
    with torch.no_grad():
        named = list(model.named_parameters()) + list(model.named_buffers())
        for name, t in named:
            if "inv_freq" in name or name.endswith("embed_scale"):  # the configuration's
                continue
            mean, deviation = numbers(name, t.shape)
            t.copy_(mean + deviation * torch.randn(t.shape, generator=generator, dtype=torch.float32))
    return model


def numbers(name, shape):
    """mean and standard deviation"""
    if name.endswith("e_score_correction_bias"):
        return 0.0, 0.3
    if "norm" in name and name.endswith("weight"):
        return 1.0, 0.2
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return 0.9, 0.2
    if name.endswith("router.proj.weight"):  # its input is divided by the root of its size
        return 0.0, 1.5
    if name.endswith(("bias", "sinks")):
        return 0.0, 0.3
    if name.endswith("A_log"):  # of decays over some ten tokens
        return -2.0, 0.7
    if "embed_tokens" in name:
        return 0.0, 1.0
    if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj")):
        return 0.0, 1.2 / shape[-1] ** 0.5
    return 0.0, 1.5 / shape[-1] ** 0.5


def quantise_blocks(w, bf16_scales):
    """e4m3 codes and scales of blocks of 128 x 128; a code times its scale is the weight."""
    rows, cols = w.shape
    scales = torch.empty((rows + 127) // 128, (cols + 127) // 128)
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = w[i * 128 : i * 128 + 128, j * 128 : j * 128 + 128]
            s = block.abs().max() / FP8_MAX
            s = s.bfloat16().float() if bf16_scales else s
            scales[i, j] = s
            code = (block / s).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
            codes[i * 128 : i * 128 + 128, j * 128 : j * 128 + 128] = code
    return codes, scales


def dequantise_blocks(codes, scales):
    out = codes.float()
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            out[i * 128 : i * 128 + 128, j * 128 : j * 128 + 128] *= scales[i, j]
    return out


# Renames of tensors, in this order.
RENAMES = {
    "mixtral": [
        (".mlp.", ".block_sparse_moe."),
        (".gate.e_score_correction_bias", ".e_score_correction_bias"),
        (".gate_proj.", ".w1."),
        (".up_proj.", ".w3."),
        (".down_proj.", ".w2."),
    ],
    "mimo": [(".self_attn.sinks", ".self_attn.attention_sink_bias")],
}
# The same with patterns: Kimi-Linear's layers without experts and shared experts keep their names.
PATTERNS = {
    "kimi": [
        (r"\.forget_gate\.", "."),
        (r"\.mlp\.(gate|experts|shared_experts)\.", r".block_sparse_moe.\1."),
        (r"(experts\.\d+)\.gate_proj\.", r"\1.w1."),
        (r"(experts\.\d+)\.up_proj\.", r"\1.w3."),
        (r"(experts\.\d+)\.down_proj\.", r"\1.w2."),
    ],
    "bailing": [
        (r"\.forget_gate\.", "."),
        (r"embed_tokens", "word_embeddings"),
        (r"\.self_attn\.o_proj\.", ".attention.dense."),
        (r"\.self_attn\.", ".attention."),
        (r"e_score_correction_bias", "expert_bias"),
    ],
}


def checkpoint_names(model, storage):
    """(name in a published checkpoint, the view of the parameter that it names)."""
    for name, t in module_names(model, storage):
        for old, new in RENAMES.get(storage.get("names"), []):
            name = name.replace(old, new)
        if storage.get("names") in PATTERNS:
            for old, new in PATTERNS[storage["names"]]:
                name = re.sub(old, new, name)
            if name.endswith(".conv1d.weight"):
                for part, third in zip("qkv", t.chunk(3)):
                    yield name.replace("conv1d", part + "_conv1d"), third
                continue
        yield name, t


def module_names(model, storage):
    """The same with the names of transformers' modules, and each expert's matrices."""
    for name, t in text_parameters(model, storage.get("tower")):
        if name.endswith("lm_head.weight") and model.config.tie_word_embeddings:
            continue
        if storage.get("stacked") and "experts." in name:
            yield name, t.transpose(1, 2)
        elif storage.get("whole"):
            yield name, t
        elif name.endswith("experts.gate_up_proj"):
            half = t.shape[1] // 2
            for e in range(t.shape[0]):
                stem = name[: -len("gate_up_proj")] + str(e)
                yield f"{stem}.gate_proj.weight", t[e, :half]
                yield f"{stem}.up_proj.weight", t[e, half:]
        elif name.endswith("experts.down_proj"):
            for e in range(t.shape[0]):
                yield name[: -len("down_proj")] + f"{e}.down_proj.weight", t[e]
        else:
            yield name, t


def text_parameters(model, tower):
    """The parameters of a model that is no tower (None), or of a tower's text model, whose names get the prefix `tower`."""
    for name, t in model.state_dict().items():
        if tower is None:
            yield name, t
        elif name == "lm_head.weight":
            yield ("language_model." if tower == "language_model.model." else "") + name, t
        elif name.startswith("model.language_model."):
            yield tower + name[len("model.language_model.") :], t
        elif name.startswith("model.") and not hasattr(model.config, "vision_config"):
            yield tower + name[len("model.") :], t


def quantised(name):
    """What DeepSeek stores in fp8: projections, but neither the router nor the head."""
    return name.endswith("proj.weight") or name.endswith("proj_with_mqa.weight")


def store(model, storage):
    """The tensors of the file. Rounds the model's weights in place to the stored numbers."""
    tensors = {}
    with torch.no_grad():
        for i, (name, t) in enumerate(checkpoint_names(model, storage)):
            if storage.get("fp8") and quantised(name):
                # Every fourth has bf16 scales, which some converters write.
                codes, scales = quantise_blocks(t, bf16_scales=i % 4 == 0)
                t.copy_(dequantise_blocks(codes, scales))
                tensors[name] = codes
                tensors[name + "_scale_inv"] = scales.bfloat16() if i % 4 == 0 else scales
                continue
            dtype = torch.float32 if name.endswith("e_score_correction_bias") else storage["dtype"]
            tensors[name] = t.to(dtype).contiguous().clone()
            t.copy_(tensors[name].float())
    return tensors


def describe(model, storage):
    """tensors.json of a checkpoint with generated weights; the model gets its numbers, which have the spread of build()'s."""
    names = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    specs = {}
    with torch.no_grad():
        for name, t in checkpoint_names(model, storage):
            mean, deviation = numbers(name, t.shape)
            dtype = torch.float32 if name.endswith("e_score_correction_bias") else storage["dtype"]
            specs[name] = {"dtype": names[dtype], "shape": list(t.shape), "mean": mean, "reach": round(deviation * 3**0.5, 6)}
            t.copy_(generate(name, specs[name]).float())
    return specs


class IndexScores:
    """Makes transformers' Indexer.forward compute with quantised q and k, and records its scores."""

    def __init__(self, model):
        self.rows = []  # per indexer call: scores [S, T] before the mask
        self.chosen = []  # per indexer call: keys [S, k]
        self.inside = False
        self.calls = 0
        indexers = [m for m in model.modules() if type(m).__name__.endswith("Indexer")]
        if not indexers:
            return
        module = sys.modules[type(indexers[0]).__module__]
        module.torch = self  # the module's own name `torch`; __getattr__ passes the rest through
        for m in indexers:
            m.forward = self.around(m.forward)

    def __getattr__(self, name):
        return getattr(torch, name)

    def around(self, forward):
        def call(*args, **kwargs):
            self.inside, self.calls = True, 0
            try:
                out = forward(*args, **kwargs)
                self.chosen.append(out[0].detach().clone())
                return out
            finally:
                if self.calls != 2:
                    raise SystemExit(f"the indexer made {self.calls} products; 2 were expected")
                self.inside = False

        return call

    def matmul(self, a, b):
        if not self.inside:
            return torch.matmul(a, b)
        self.calls += 1
        if self.calls == 1:  # q [B, S, H, D] times k^T [B, 1, D, T]
            return torch.matmul(quantise_rows(a), quantise_rows(b.transpose(-1, -2)).transpose(-1, -2))
        scores = torch.matmul(a, b)  # weights [B, S, 1, H] times [B, S, H, T]
        self.rows.append(scores[0, :, 0, :].detach().clone())
        return scores


def quantise_rows(x):
    amax = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-4)
    scale = torch.exp2(torch.ceil(torch.log2((amax / FP8_MAX).double()))).float()
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


class CacheRounding:
    """While `on`, attention sees keys and values as read back from a bf16 cache."""

    def __init__(self, model):
        self.on = False
        latent = any(hasattr(m, "expand_kv") for m in model.modules())
        for m in model.modules():
            if hasattr(m, "expand_kv"):
                m.expand_kv = self.rounding(m.expand_kv, 0)
            elif not latent and type(m).__name__.endswith("Attention") and hasattr(sys.modules[type(m).__module__], "eager_attention_forward"):
                module = sys.modules[type(m).__module__]
                if not hasattr(module.eager_attention_forward, "rounds"):
                    module.eager_attention_forward = self.rounding(module.eager_attention_forward, 2)
                module.eager_attention_forward.rounds = self

    def rounding(self, function, first):
        """function with its arguments `first` and `first` + 1 rounded."""

        def call(*args, **kwargs):
            if getattr(call, "rounds", self).on:
                args = list(args)
                for i in (first, first + 1):
                    args[i] = args[i].bfloat16().to(args[i].dtype)
            return function(*args, **kwargs)

        return call


class RouterMargins:
    """Per router call: each row's margin to another choice of experts."""

    def __init__(self, model):
        self.rows = []
        self.hooked = 0
        for m in model.modules():
            if any(part in type(m).__name__ for part in ("TopkRouter", "TopKRouter", "Gemma4TextRouter")):
                m.register_forward_hook(self.hook)
                self.hooked += 1

    def hook(self, module, args, output):
        if hasattr(module, "per_expert_scale"):  # probabilities are in its output
            best = output[0].log().sort(dim=-1, descending=True)[0]
            k = module.config.top_k_experts
            self.rows.append(best[:, k - 1] - best[:, k])
            return
        x = args[0].reshape(-1, args[0].shape[-1]).float()
        logits = x @ module.weight.float().T
        if getattr(module, "bias", None) is not None:
            logits = logits + module.bias.float()
        k = module.top_k
        if getattr(module, "topk_method", None) == "group_limited_greedy":
            groups = logits.view(len(x), module.num_group, -1)
            order, kept = groups.amax(dim=-1).sort(dim=-1, descending=True)
            mask = torch.full_like(groups, float("-inf"))
            mask.scatter_(1, kept[:, : module.topk_group, None].expand(-1, -1, groups.shape[2]), 0.0)
            best = (groups + mask).view(len(x), -1).sort(dim=-1, descending=True)[0]
            group_gap = order[:, module.topk_group - 1] - order[:, module.topk_group]
            self.rows.append(torch.minimum(best[:, k - 1] - best[:, k], group_gap))
            return
        if not hasattr(module, "e_score_correction_bias"):
            best = logits.sort(dim=-1, descending=True)[0]
            self.rows.append(best[:, k - 1] - best[:, k])
            return
        choice = logits.sigmoid() + module.e_score_correction_bias
        group_count = getattr(module, "num_group", 1)
        groups = choice.view(len(x), group_count, -1)
        if group_count > 1:
            sums = groups.topk(2, dim=-1)[0].sum(dim=-1)
            order, kept = sums.sort(dim=-1, descending=True)
            group_gap = order[:, module.topk_group - 1] - order[:, module.topk_group]
            mask = torch.full_like(groups, float("-inf"))
            mask.scatter_(1, kept[:, : module.topk_group, None].expand(-1, -1, groups.shape[2]), 0.0)
            choice = (groups + mask).view(len(x), -1)
        else:
            group_gap = torch.full((len(x),), float("inf"))
        best = choice.sort(dim=-1, descending=True)[0]
        # A sigmoid's slope is at most 1/4: in units of logits.
        self.rows.append(4 * torch.minimum(best[:, k - 1] - best[:, k], group_gap))


def index_margins(scores, top_k):
    """Gap between the last chosen and the first left out, over the spread of the row's scores; rows with at most top_k keys: inf."""
    n = scores.shape[0]
    out = torch.full((n,), float("inf"))
    for row in range(top_k, n):
        seen = scores[row, : row + 1].sort(descending=True)[0]
        out[row] = (seen[top_k - 1] - seen[top_k]) / seen.std()
    return out


def run(model, tokens, routers, indexers, top_k):
    routers.rows.clear()
    indexers.rows.clear()
    indexers.chosen.clear()
    with torch.no_grad():
        logits = model(input_ids=tokens[None], use_cache=False).logits[0].float()
    n = len(tokens)
    inf = torch.full((n,), float("inf"))
    routed = torch.stack([inf, *routers.rows]).amin(dim=0)
    indexed = torch.stack([inf, *[index_margins(s, top_k) for s in indexers.rows]]).amin(dim=0)
    return logits, routed, indexed


def clearest(length, routed, indexed):
    """The last row, and of each of a few stretches before it the one with the clearest choices."""
    positions = {length - 1}
    edges = torch.linspace(0, length - 1, 6).long().tolist() if length > 1 else [0]
    for a, b in zip(edges[:-1], edges[1:]):
        if b > a:
            stretch = torch.minimum(routed[a:b] / 0.005, indexed[a:b] / 0.03)
            positions.add(a + int(stretch.argmax()))
    return torch.tensor(sorted(positions))


def reference(model, config, generator):
    config = config.get("text_config", config)
    routers, indexers, rounding = RouterMargins(model), IndexScores(model), CacheRounding(model)
    top_k = config.get("index_topk", 0)
    out, notes = {}, []
    for length in LENGTHS:
        best = None
        for _ in range(TRIALS[length]):
            tokens = torch.randint(0, config["vocab_size"], (length,), generator=generator)
            rounding.on = True
            logits, routed, indexed = run(model, tokens, routers, indexers, top_k)
            # Every row's choices shape its keys; those of the last row show in its logits at once.
            worst = min(float(routed.min()) / 0.005, float(indexed.min()) / 0.0005)
            clear = min(worst, float(indexed[-1]) / 0.03, 100.0)
            if best is not None and clear <= best[0]:
                continue
            positions = clearest(length, routed, indexed)
            rounding.on = False
            exact, _, _ = run(model, tokens, routers, indexers, top_k)
            moved = float(((exact - logits).norm(dim=-1) / exact.norm(dim=-1))[positions].max())
            if best is None or moved < MOVED:
                best = (clear, tokens, positions, logits, exact, routed, indexed, moved)
            if best[0] >= 100.0:
                break
        _, tokens, positions, logits, exact, routed, indexed, moved = best
        if moved >= MOVED:
            raise SystemExit(f"a prompt of {length} tokens: rounding the cache moves {moved:.2g}")
        stem = f"prompt.{length}"
        out[f"{stem}.tokens"] = tokens.to(torch.int32)
        out[f"{stem}.positions"] = positions.to(torch.int32)
        out[f"{stem}.logits"] = exact[positions].contiguous()
        out[f"{stem}.logits_bf16_cache"] = logits[positions].contiguous()
        out[f"{stem}.router_margins"] = routed[positions].clamp(max=1e9).contiguous()
        out[f"{stem}.index_margins"] = indexed[positions].clamp(max=1e9).contiguous()
        notes.append(f"{length}: bf16 cache moves {moved:.2g}, router {float(routed.min()):.2g} (rows kept {float(routed[positions].min()):.2g}), "
                     f""
                     f"index {float(indexed.min()):.2g} (rows kept {float(indexed[positions].min()):.2g})")
    return out, notes


def write(folder, config, storage, tensors, answers):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": [1, 2], "do_sample": True, "temperature": 0.6, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    shards = storage.get("shards", 1)
    names = list(tensors)
    if storage.get("generated"):
        write_specs(folder, tensors)
    elif shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        where = {}
        for s in range(shards):
            file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
            mine = names[s::shards]
            save_file({n: tensors[n] for n in mine}, folder / file, metadata={"format": "pt"})
            where.update({n: file for n in mine})
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=0) + "\n")
    save_file(answers, folder / "reference.safetensors")


def main():
    if len(sys.argv) < 2 or any(name not in MODELS for name in sys.argv[2:]):
        raise SystemExit(__doc__)
    out = pathlib.Path(sys.argv[1])
    torch.use_deterministic_algorithms(True, warn_only=True)
    total = 0
    for number, (name, (architecture, own, storage)) in enumerate(MODELS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        generator = torch.Generator().manual_seed(1000 + number)
        config = {"architectures": [architecture], "model_type": classes(architecture)[1].model_type}
        config |= own if storage.get("tower") else COMMON | own
        for key in storage.get("leaves_out", []):
            del config[key]
        torch.manual_seed(number)
        computed_by, more = storage.get("computed_by", (architecture, {}))
        model = build(computed_by, config | more, generator)
        generated = storage.get("generated", False)
        tensors = (describe if generated else store)(model, storage)
        if storage.get("mtp"):  # a draft layer past the last one, as DeepSeek publishes it
            layer = f"model.layers.{config['num_hidden_layers']}"
            ones = {"dtype": "BF16", "mean": 1.0, "reach": 0.0}
            tensors[f"{layer}.enorm.weight"] = ones | {"shape": [config["hidden_size"]]}
            tensors[f"{layer}.eh_proj.weight"] = ones | {"shape": [4, 2]}
        if storage.get("tower"):  # a tensor of the vision model
            other = {"dtype": "BF16", "shape": [4], "mean": 1.0, "reach": 0.0}
            tensors["model.visual.merger.norm.bias" if "visual" in dir(model.model) else "vision_tower.norm.bias"] = other
        answers, notes = reference(model, config, generator)
        write(out / name, config, storage, tensors, answers)
        size = sum(f.stat().st_size for f in (out / name).iterdir())
        total += size
        spread = float(answers["prompt.64.logits"].std())
        print(f"{name}: {size / 1024:.0f} KiB, logits std {spread:.2f}")
        for note in notes:
            print(f"  smallest margins, {note}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {total / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
