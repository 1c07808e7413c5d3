#!/usr/bin/env python3
"""Whole models with random weights on one GPU, beside vLLM's step times on an H200.

    python3 bench/whole_models.py build/lathe                                   all of them: some ten minutes
    python3 bench/whole_models.py build/lathe --only Llama-3.1-8B --json FILE   one, and its figures as data
    python3 bench/whole_models.py build/lathe --only "GLM-4.5-Air, fp8" --quick  one in well under a minute: 32 steps, one run

Prints milliseconds of a prefill and of a decode step, the share of them that the machine needs at least (`lathe bench engine` says of what), and vLLM's time as a multiple. Decode
steps follow prompts of 960 tokens and are 128, medians of two runs. A model is loaded once. vLLM 0.26.0 was measured in another run: torch 2.11, random weights, full graphs, prompts of 960 tokens, a mean context of about
1030. A model whose figures lack there was not measured with it, and one that does not fit the card is left out with the reason. `slice` is a few layers at full width, `TP 8` one GPU's eighth of all layers
without the exchange between GPUs.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

BATCHES = (1, 8, 64, 256)
COMMON = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 0,
          "eos_token_id": 1, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
         "rope_theta": 500000.0,
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192}}
QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936,
        "rope_theta": 1000000.0}
QWEN_8B = QWEN | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
QWEN_32B = QWEN | {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64}
QWEN_30B = QWEN | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
                   "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
                   "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
V3 = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
      "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "rope_theta": 10000}
# DeepSeek V3's architecture at V2-Lite's sizes.
V3_16B = V3 | {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
               "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 2,
               "num_experts_per_tok": 6, "routed_scaling_factor": 2.446, "vocab_size": 102400}
GLM_FLASH = V3 | {"hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47,
                  "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256,
                  "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8,
                  "vocab_size": 154880}
V32 = V3 | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
            "routed_scaling_factor": 2.5, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "vocab_size": 129280,
            "max_position_embeddings": 163840,
            "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                             "mscale": 1.0, "mscale_all_dim": 1.0},
            "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                    "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}
V32_TP8 = V32 | {"num_hidden_layers": 61, "first_k_dense_replace": 3, "intermediate_size": 2304, "moe_intermediate_size": 256,
                 "num_attention_heads": 16, "num_key_value_heads": 16, "index_n_heads": 64, "vocab_size": 16160}
QWEN35_35B = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "head_dim": 256,
              "num_hidden_layers": 40, "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2,
              "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
              "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
              "shared_expert_intermediate_size": 512, "mlp_only_layers": [], "vocab_size": 248320, "attn_output_gate": True,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}}
KIMI_LINEAR = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216,
               "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
               "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
               "mla_use_nope": True, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_renormalize": True,
               "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446,
               "first_k_dense_replace": 1, "moe_layer_freq": 1, "use_grouped_topk": True, "vocab_size": 163840, "rms_norm_eps": 1e-5,
               "model_max_length": 1048576,
               "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                                      "kda_layers": [i for i in range(1, 27) if i % 4], "short_conv_kernel_size": 4}}
GLM_AIR = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096, "head_dim": 128,
           "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46, "num_attention_heads": 96,
           "num_key_value_heads": 8, "attention_bias": True, "partial_rotary_factor": 0.5, "n_routed_experts": 128,
           "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
           "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "use_qk_norm": False, "rope_theta": 1000000, "vocab_size": 151552,
           "rms_norm_eps": 1e-5, "quantization_config": V32["quantization_config"]}
GEMMA4_26B = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 2816, "intermediate_size": 2112,
              "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
              "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 128,
              "top_k_experts": 8, "moe_intermediate_size": 704, "sliding_window": 1024, "final_logit_softcapping": 30.0,
              "hidden_act": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
              "use_double_wide_mlp": False, "tie_word_embeddings": True, "vocab_size": 262144,
              "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
                                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}

# Requests that fit next to the weights (and the states of all of them), if not 256.
LARGEST = {"Qwen3.5-35B-A3B": 64, "Kimi-Linear-48B-A3B": 64, "GLM-4.5-Air, fp8": 64}

# name -> (configuration, --dtype, vLLM's milliseconds: prefill of 1 x 8192 and of 16 x 1024, decode steps of BATCHES)
MODELS = {
    "Llama-3.1-8B": (LLAMA, "auto", (206, 364, 4.93, 5.19, 7.45, 16.78)),
    "Qwen3-8B": (QWEN_8B, "auto", (211, 363, 5.18, 5.67, 7.75, 18.03)),
    "Qwen3-32B": (QWEN_32B, "auto", None),
    "Qwen3-30B-A3B": (QWEN_30B, "auto", (145, 218, 4.15, 8.93, 18.40, 26.15)),
    "V3-16B": (V3_16B, "auto", (100, 174, 3.20, 6.46, 10.31, 12.78)),
    "GLM-4.7-Flash's sizes": (GLM_FLASH, "auto", None),
    "V3.2 slice, 3 + 2 layers, fp8": (V32 | {"num_hidden_layers": 5, "first_k_dense_replace": 3}, "fp8",
                                      (115, 154, 1.93, 3.07, 6.60, 10.21)),
    "V3.2 slice, 1 + 5 layers, fp8": (V32 | {"num_hidden_layers": 6, "first_k_dense_replace": 1}, "fp8", None),
    "V3.2 TP 8, fp8": (V32_TP8, "fp8", None),
    "Qwen3.5-35B-A3B": (QWEN35_35B, "auto", None),
    "Kimi-Linear-48B-A3B": (KIMI_LINEAR, "auto", None),
    "GLM-4.5-Air, fp8": (GLM_AIR, "fp8", None),
    "Gemma 4 26B-A4B": (GEMMA4_26B, "auto", None),
}


def measure(program: str, name: str, quick: bool) -> list[dict]:
    """Rows of `lathe bench engine` in the order of vLLM's figures, without those that do not fit. Raises RuntimeError with its message where it refuses."""
    config, dtype, _ = MODELS[name]
    largest = LARGEST.get(name, max(BATCHES))
    steps, runs = (32, 1) if quick else (128, 2)
    tests = ["pp8192", "pp1024x16", *(f"tg{steps}@960x{batch}" for batch in BATCHES if batch <= largest)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(COMMON | config))
        command = [program, "bench", "engine", "--device", "cuda", "--load-format", "dummy", "--config", str(path), "--dtype", dtype,
                   "--max-running-requests", str(largest), "--chunked-prefill-size", "8192", "--context-length", "8448", "--quiet", "--json",
                   "-r", str(runs), "--tests", ",".join(tests)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip().splitlines()[-1])
    return json.loads(result.stdout)["rows"]


def milliseconds(row: dict) -> float:
    tokens = int(row["test"][2:]) if row["test"].startswith("pp") else 1
    return 1e3 * tokens * row["batch"] / row["tokens_per_s"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="build/lathe")
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument("--quick", action="store_true", help="32 decode steps, one run of each")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows of bench engine to this file")
    args = parser.parse_args()
    data, lines, hosts = {}, [], []
    for name in [args.only] if args.only else MODELS:
        try:
            rows = data[name] = measure(args.program, name, args.quick)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        peer = MODELS[name][2] or (None,) * 6
        cells = [f"{milliseconds(r):.{0 if r['test'].startswith('pp') else 2}f}, {r['floor_share']:.2f}"
                 + (f", {p / milliseconds(r):.2f} x" if p else "") for r, p in zip(rows, peer)]
        lines.append(f"| {name} | " + " | ".join(cells + ["does not fit"] * (6 - len(cells))) + " |")
        times = [f"{1e6 * r['host_s']:.0f}, {1e6 * r.get('idle_s', 0):.0f}" for r in rows[2:]]
        hosts.append(f"| {name} | " + " | ".join(times) + " |")
    print("Milliseconds, the share of the floor, and vLLM's time over Lathe's:\n")
    print("| | prefill 8192 | 16 x 1024 | decode 1 | 8 | 64 | 256 |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(lines))
    print("\nMicroseconds of the host in a step, and without a kernel before one:\n")
    print("| | decode 1 | 8 | 64 | 256 |\n| --- | ---: | ---: | ---: | ---: |")
    print("\n".join(hosts))
    if args.json:
        args.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
