#!/usr/bin/env python3
"""Makes the fixtures formats_* of tests/data/models: checkpoints whose matrices are in many quantised formats, by a formula.

    python3 tools/make_format_fixtures.py OUT_DIR     (torch, transformers >= 5.17 and compressed-tensors; a CPU, a minute)

Every folder has config.json, tensors.json (generated_weights.py) and reference.safetensors, as make_generated_fixtures.py writes them:
logits of transformers with the matrices dequantised to f32, by compressed-tensors' own functions where it has the format, otherwise by
the format's formula: AWQ and GPTQ as in vLLM's awq_triton.py and gptq_utils, NVFP4 as in TensorRT Model Optimizer's nvfp4_tensor.py.
"""

import json
import pathlib
import sys

import torch
import transformers
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import save_file

from generated_weights import generate, write_specs
from make_generated_fixtures import numbers
from make_model_fixtures import CacheRounding, IndexScores, RouterMargins, run

LENGTHS = (7, 100)
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
SPREAD = 0.066  # standard deviation of a matrix's elements


def words(*shape):
    return {"dtype": "I32", "shape": list(shape), "words": True}


def reals(dtype, shape, mean, reach):
    return {"dtype": dtype, "shape": list(shape), "mean": mean, "reach": reach}


# A format: (rows, cols) -> {suffix: tensor's description}, and {suffix: tensor} -> matrix.
def int4_scales(dtype, *shape):
    return reals(dtype, shape, 0.012, 0.004)


def ct_int4(group, dtype, zeros=False, order=0):
    def describe(rows, cols):
        out = {".weight_packed": words(rows, cols // 8), ".weight_scale": int4_scales(dtype, rows, cols // group)}
        if zeros:
            out[".weight_zero_point"] = words(rows // 8, cols // group)
        if order:
            out[".weight_g_idx"] = {"dtype": "I32", "shape": [cols], "group": group, "step": order}
        out[".weight_shape"] = {"dtype": "I32", "shape": [2], "value": 0}
        return out

    def widen(t, rows, cols):
        codes = unpack_from_int32(t[".weight_packed"], 4, torch.Size([rows, cols])).float()
        scale = t[".weight_scale"].float()
        groups = t[".weight_g_idx"].long() if order else torch.arange(cols) // group
        if zeros:
            codes = codes - unpack_from_int32(t[".weight_zero_point"], 4, scale.shape, packed_dim=0).float()[:, groups]
        return codes * scale[:, groups]

    return describe, widen


def nibbles(t, order, dim):
    """Each word's nibbles order[0], order[1], ... as consecutive elements along dim."""
    return torch.stack([t >> (4 * i) & 15 for i in order], dim + 1).flatten(dim, dim + 1)


def awq(group):
    def describe(rows, cols):
        return {
            ".qweight": words(cols, rows // 8),
            ".qzeros": words(cols // group, rows // 8),
            ".scales": int4_scales("F16", cols // group, rows),
        }

    def widen(t, rows, cols):
        codes, zeros = (nibbles(t[k], AWQ_ORDER, 1).float() for k in (".qweight", ".qzeros"))
        groups = torch.arange(cols) // group
        return ((codes - zeros[groups]) * t[".scales"].float()[groups]).T

    return describe, widen


def gptq(group, order=0, symmetric=False):
    def describe(rows, cols):
        zeros = {"dtype": "I32", "shape": [cols // group, rows // 8], "value": 0x77777777}
        return {
            ".qweight": words(cols // 8, rows),
            ".qzeros": zeros if symmetric else words(cols // group, rows // 8),
            ".scales": int4_scales("F16", cols // group, rows),
            ".g_idx": {"dtype": "I32", "shape": [cols], "group": group, "step": order or 1},
            ".bias": {"dtype": "F16", "shape": [rows], "mean": 0, "reach": 0},
        }

    def widen(t, rows, cols):
        codes = nibbles(t[".qweight"], range(8), 0).float()
        zeros = nibbles(t[".qzeros"], range(8), 1).float() + 1
        groups = t[".g_idx"].long()
        return ((codes - zeros[groups]) * t[".scales"].float()[groups]).T

    return describe, widen


def nvfp4(codes, factor, divides):
    def describe(rows, cols):
        mean = SPREAD / 3
        return {
            codes: {"dtype": "U8", "shape": [rows, cols // 2], "low": 0, "count": 256},
            ".weight_scale": reals("F8_E4M3", (rows, cols // 16), 1, 0.5),
            factor: reals("F32", (1,), 1 / mean if divides else mean, 0),
        }

    def widen(t, rows, cols):
        value = unpack_fp4_from_uint8(t[codes], rows, cols).float()
        scale = t[".weight_scale"].float().repeat_interleave(16, 1)
        return value * scale / t[factor] if divides else value * scale * t[factor]

    return describe, widen


def mxfp4(codes):
    def describe(rows, cols):
        return {
            codes: {"dtype": "U8", "shape": [rows, cols // 2], "low": 0, "count": 256},
            ".weight_scale": {"dtype": "U8", "shape": [rows, cols // 32], "low": 120, "count": 3},
        }

    def widen(t, rows, cols):
        scale = decompress_mx_scale(t[".weight_scale"]).float()
        return unpack_fp4_from_uint8(t[codes], rows, cols).float() * scale.repeat_interleave(32, 1)

    return describe, widen


def fp8(name, dtype, shape):
    """shape: "row", "rows" (1-D), "tensor", "one" ([1]) or "block"."""

    def describe(rows, cols):
        blocks = [-(-rows // 128), -(-cols // 128)]
        shapes = {"row": [rows, 1], "rows": [rows], "tensor": [], "one": [1], "block": blocks}
        scale = reals(dtype, shapes[shape], SPREAD, 0.03)
        if dtype == "F8_E8M0":
            scale = {"dtype": dtype, "shape": shapes[shape], "low": 122, "count": 3}
        out = {".weight": reals("F8_E4M3", (rows, cols), 0, 1.75), name: scale}
        if shape in ("tensor", "one"):
            out[".input_scale" if name == ".weight_scale" else ".activation_scale"] = reals("F32", [], 1, 0)
        return out

    def widen(t, rows, cols):
        scale = t[name]
        scale = 2.0 ** (scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
        if shape == "block":
            scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        elif shape == "rows":
            scale = scale[:, None]
        return t[".weight"].float() * scale

    return describe, widen


QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 61,
    "hidden_size": 512,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
EXPERTS = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 61,
    "hidden_size": 512,
    "intermediate_size": 640,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}

NV_MODELOPT = nvfp4(".weight", ".weight_scale_2", False)
NV_CT = nvfp4(".weight_packed", ".weight_global_scale", True)
CT_FP8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": False}

# name -> (configuration, [(part of a module's name, its format)]); the first that matches counts, and none means bf16.
MODELS = {
    "formats_fp8": (
        QWEN3 | {"intermediate_size": 608, "quantization_config": CT_FP8},
        [
            ("0.self_attn.q_proj", fp8(".weight_scale", "BF16", "row")),
            ("0.self_attn.k_proj", fp8(".weight_scale", "F32", "rows")),
            ("0.self_attn.v_proj", fp8(".weight_scale", "F32", "tensor")),
            ("0.self_attn.o_proj", fp8(".weight_scale_inv", "BF16", "one")),
            ("0.mlp.gate_proj", fp8(".weight_scale", "F32", "block")),
            ("0.mlp.up_proj", fp8(".weight_scale_inv", "F8_E8M0", "block")),
            ("1.self_attn.k_proj", fp8(".weight_scale_inv", "F16", "block")),
            ("1.mlp.down_proj", fp8(".weight_scale", "F16", "row")),
        ],
    ),
    "formats_int4": (
        QWEN3 | {"quantization_config": GPTQ},
        [
            ("0.self_attn.q_proj", ct_int4(32, "BF16")),
            ("0.self_attn.k_proj", ct_int4(128, "F16", zeros=True)),
            ("0.self_attn.v_proj", awq(128)),
            ("0.self_attn.o_proj", gptq(128)),
            ("0.mlp.gate_proj", gptq(128, order=37)),
            ("0.mlp.up_proj", ct_int4(64, "BF16")),
            ("0.mlp.down_proj", ct_int4(32, "BF16", zeros=True, order=91)),
            ("1.self_attn.q_proj", gptq(32, symmetric=True)),
            ("1.self_attn.o_proj", gptq(64, order=11)),
            ("1.mlp.gate_proj", awq(32)),
        ],
    ),
    "formats_fp4": (
        QWEN3 | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        [
            ("0.self_attn.q_proj", NV_MODELOPT),
            ("0.self_attn.k_proj", NV_CT),
            ("0.self_attn.v_proj", mxfp4(".weight_packed")),
            ("0.self_attn.o_proj", mxfp4(".weight")),
            ("0.mlp.gate_proj", NV_CT),
            ("0.mlp.up_proj", NV_MODELOPT),
            ("0.mlp.down_proj", fp8(".weight_scale", "BF16", "row")),
            ("1.mlp.down_proj", NV_MODELOPT),
        ],
    ),
    "formats_experts": (
        EXPERTS
        | {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}},
            }
        },
        [
            ("experts.0.down", NV_CT),
            ("experts.1.down", NV_CT),
            ("experts.2.down", NV_CT),
            ("experts.3.down", NV_CT),
            (".experts.", ct_int4(32, "BF16")),
            ("shared_experts.up", NV_MODELOPT),
            ("0.self_attn.kv_b_proj", ct_int4(32, "BF16")),
            ("1.self_attn.kv_b_proj", fp8(".weight_scale", "BF16", "row")),
            ("q_b_proj", awq(128)),
        ],
    ),
}


def split_experts(state):
    """transformers stores experts stacked; checkpoints have them one by one."""
    out = {}
    for name, t in state.items():
        if name.endswith("experts.gate_up_proj"):
            for i, both in enumerate(t):
                half = both.shape[0] // 2
                stem = name.removesuffix("gate_up_proj") + str(i)
                out[f"{stem}.gate_proj.weight"], out[f"{stem}.up_proj.weight"] = both[:half], both[half:]
        elif name.endswith("experts.down_proj"):
            for i, one in enumerate(t):
                out[f"{name.removesuffix('down_proj')}{i}.down_proj.weight"] = one
        else:
            out[name] = t
    return out


def build(config, rules):
    cls = getattr(transformers, config["architectures"][0])
    hf = cls.config_class.from_dict({k: v for k, v in config.items() if k != "quantization_config"})
    hf._attn_implementation = "eager"
    hf._experts_implementation = "eager"
    model = cls(hf).float().eval()
    specs = {}
    with torch.no_grad():
        for name, t in split_experts(model.state_dict()).items():
            module = name.removesuffix(".weight")
            form = next((f for part, f in rules if part in module), None) if t.dim() == 2 else None
            if form is None:
                mean, reach = numbers(name, list(t.shape), False, False)
                specs[name] = reals("BF16", t.shape, mean, reach)
                t.copy_(generate(name, specs[name]).float())
                continue
            own = form[0](*t.shape)
            specs |= {module + suffix: spec for suffix, spec in own.items()}
            t.copy_(form[1]({suffix: generate(module + suffix, spec) for suffix, spec in own.items()}, *t.shape))
    return model, specs


def reference(model, config, generator):
    routers, indexers, rounding = RouterMargins(model), IndexScores(model), CacheRounding(model)
    out = {}
    for length in LENGTHS:
        positions = sorted({0, length // 2, length - 2, length - 1})
        best = None
        for _ in range(20 if routers.hooked else 1):
            tokens = torch.randint(0, config["vocab_size"], (length,), generator=generator)
            rounding.on = True
            logits, routed, _ = run(model, tokens, routers, indexers, 0)
            rounding.on = False
            exact, _, _ = run(model, tokens, routers, indexers, 0)
            if best is None or float(routed.min()) > best[0]:
                best = (float(routed.min()), tokens, logits, exact)
        margin, tokens, logits, exact = best
        moved = float(((exact - logits).norm(dim=-1) / exact.norm(dim=-1))[positions].max())
        stem = f"prompt.{length}"
        out[f"{stem}.tokens"] = tokens.to(torch.int32)
        out[f"{stem}.positions"] = torch.tensor(positions, dtype=torch.int32)
        out[f"{stem}.logits"] = exact[positions].contiguous()
        out[f"{stem}.logits_bf16_cache"] = logits[positions].contiguous()
        print(f"  {length}: std {float(logits.std()):.2f}, bf16 cache moves {moved:.2g}, smallest router margin {margin:.2g}")
    return out


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for number, (name, (config, rules)) in enumerate(MODELS.items()):
        print(name)
        model, specs = build(config, rules)
        answers = reference(model, config, torch.Generator().manual_seed(3000 + number))
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        write_specs(folder, specs)
        save_file(answers, folder / "reference.safetensors")


if __name__ == "__main__":
    main()
