#!/usr/bin/env python3
"""Requantises a checkpoint's linear layers, rounding to nearest: for tests of weight formats, not for use.

    python3 tools/requantise.py MODEL FORMAT OUT_DIR     (numpy and ml_dtypes, as in tools/make_venv.sh)

Matrices of the module names below are dequantised (bf16, f32, or fp8 with weight_scale_inv) and written in FORMAT under the names of the
program that made it popular, with its quantization_config; other tensors stay. A matrix whose sizes the format cannot hold stays bf16.

DeepSeek V4 has formats of its own. It is written in bf16, or its experts in nvfp4, as NVIDIA's checkpoints have them.
"""

import json
import pathlib
import shutil
import sys

import ml_dtypes
import numpy as np

DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
    "I8": np.int8,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}
# Quantisers leave routers, embeddings and indexers alone.
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate_proj", "up_proj", "down_proj")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
E4M3_MAX = 448.0


def read(path):
    if not path.is_file():
        raise SystemExit(f"{path}: wanted a checkpoint in one file, got none of that name")
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, t in json.loads(data[8:end]).items():
        if name != "__metadata__":
            begin, stop = t["data_offsets"]
            if t["dtype"] not in DTYPES:
                raise SystemExit(f"{path}: {name}: wanted one of {', '.join(DTYPES)}, got {t['dtype']}")
            out[name] = np.frombuffer(data[end + begin : end + stop], DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def write(path, tensors):
    header, parts, at = {}, [], 0
    for name, t in tensors.items():
        raw = np.ascontiguousarray(t).tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def blocks(scale, shape, side=128):
    return np.repeat(np.repeat(scale, side, 0)[: shape[0]], side, 1)[:, : shape[1]]


def pack(codes, order, axis):
    """32-bit words of eight 4-bit codes along axis; nibble order[i] is code i."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint32)
    codes = codes.reshape(*codes.shape[:-1], -1, 8)
    words = sum(codes[..., i] << np.uint32(4 * n) for i, n in enumerate(order))
    return np.moveaxis(words.astype(np.uint32), -1, axis).view(np.int32)


def groups_of(w, size):
    return w.reshape(w.shape[0], -1, size)


def fp8(w, scale, wide):
    return {".weight": (w / wide).astype(ml_dtypes.float8_e4m3fn), ".weight_scale": scale}


def fp8_tensor(w):
    scale = np.float32(np.abs(w).max() / E4M3_MAX)
    return fp8(w, np.array(scale), scale)


def fp8_channel(w):
    scale = (np.abs(w).max(1, keepdims=True) / E4M3_MAX + 1e-30).astype(ml_dtypes.bfloat16)
    return fp8(w, scale, scale.astype(np.float32))


def fp8_block(w):
    rows, cols = (-(-n // 128) for n in w.shape)
    scale = np.array([[np.abs(w[128 * r : 128 * r + 128, 128 * c : 128 * c + 128]).max() for c in range(cols)] for r in range(rows)])
    scale = (scale / E4M3_MAX + 1e-30).astype(np.float32)
    return fp8(w, scale, blocks(scale, w.shape))


def int4_symmetric(w, size, dtype):
    g = groups_of(w, size)
    scale = (np.abs(g).max(2) / 7.5 + 1e-30).astype(dtype)
    codes = np.clip(np.rint(g / scale.astype(np.float32)[..., None]) + 8, 0, 15)
    return codes.reshape(w.shape), scale


def int4_zeros(w, size, dtype):
    g = groups_of(w, size)
    low, high = np.minimum(g.min(2), 0), np.maximum(g.max(2), 0)
    scale = ((high - low) / 15 + 1e-30).astype(dtype)
    wide = scale.astype(np.float32)
    zero = np.clip(np.rint(-low / wide), 0, 15)
    codes = np.clip(np.rint(g / wide[..., None]) + zero[..., None], 0, 15)
    return codes.reshape(w.shape), scale, zero


def ct_int4(size):
    def make(w):
        codes, scale = int4_symmetric(w, size, ml_dtypes.bfloat16)
        return {".weight_packed": pack(codes, range(8), 1), ".weight_scale": scale, ".weight_shape": np.array(w.shape)}

    return make


def ct_int4_zeros(w):
    codes, scale, zero = int4_zeros(w, 128, ml_dtypes.bfloat16)
    return {
        ".weight_packed": pack(codes, range(8), 1),
        ".weight_scale": scale,
        ".weight_zero_point": pack(zero, range(8), 0),
        ".weight_shape": np.array(w.shape),
    }


def awq(w):
    codes, scale, zero = int4_zeros(w, 128, np.float16)
    return {".qweight": pack(codes.T, AWQ_ORDER, 1), ".qzeros": pack(zero.T, AWQ_ORDER, 1), ".scales": scale.T}


def gptq(ordered):
    def make(w):
        # By descending size of columns, as an order of activations would sort them.
        order = np.argsort(-np.abs(w).sum(0), kind="stable") if ordered else np.arange(w.shape[1])
        codes, scale = int4_symmetric(w[:, order], 128, np.float16)
        group = np.empty(w.shape[1], np.int32)
        group[order] = np.arange(w.shape[1]) // 128
        in_place = np.empty_like(codes)
        in_place[:, order] = codes
        return {
            ".qweight": pack(in_place.T, range(8), 0),
            ".qzeros": np.full((scale.shape[1], w.shape[0] // 8), 0x77777777, np.int32),
            ".scales": scale.T,
            ".g_idx": group,
        }

    return make


def e2m1(x):
    middle = (E2M1[1:] + E2M1[:-1]) / 2
    return (np.searchsorted(middle, np.abs(x)) + 8 * (x < 0)).astype(np.uint8)


def pairs(codes):
    return codes[:, ::2] | codes[:, 1::2] << 4


def nvfp4(w):
    g = groups_of(w, 16)
    factor = np.float32(np.abs(w).max() / (6 * E4M3_MAX))
    scale = (np.abs(g).max(2) / 6 / factor).astype(ml_dtypes.float8_e4m3fn)
    wide = np.maximum(scale.astype(np.float32) * factor, 1e-30)
    codes = e2m1(g / wide[..., None]).reshape(w.shape)
    return {".weight": pairs(codes), ".weight_scale": scale, ".weight_scale_2": np.array(factor)}


def mxfp4(w):
    g = groups_of(w, 32)
    power = np.floor(np.log2(np.abs(g).max(2) + 1e-30)) - 2
    codes = e2m1(g / 2.0 ** power[..., None]).reshape(w.shape)
    return {".weight_packed": pairs(codes), ".weight_scale": (power + 127).astype(np.uint8)}


def compressed(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def gptq_config(ordered):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": ordered}


# name -> (quantization_config, matrix -> tensors by suffix, columns are whole groups of)
FORMATS = {
    "fp8-tensor": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8_tensor, 1),
    "fp8-channel": (compressed(num_bits=8, type="float", strategy="channel"), fp8_channel, 1),
    "fp8-block": (compressed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), fp8_block, 1),
    "int4-g32": (compressed(num_bits=4, type="int", strategy="group", group_size=32), ct_int4(32), 32),
    "int4-g128": (compressed(num_bits=4, type="int", strategy="group", group_size=128), ct_int4(128), 128),
    "int4-g128-zeros": (compressed(num_bits=4, type="int", strategy="group", group_size=128, symmetric=False), ct_int4_zeros, 128),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, awq, 128),
    "gptq": (gptq_config(False), gptq(False), 128),
    "gptq-act-order": (gptq_config(True), gptq(True), 128),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4, 32),
    "mxfp4": (compressed(num_bits=4, type="float", strategy="group", group_size=32), mxfp4, 32),
}


def v4_matrix(codes, scale):
    """A matrix of DeepSeek V4 in f32: e4m3 with scales of blocks of 128 x 128, or pairs of e2m1 with scales of 32 columns."""
    exponents = scale.dtype in (np.uint8, DTYPES["F8_E8M0"])
    wide = 2.0 ** (scale.view(np.uint8).astype(np.float32) - 127) if exponents else scale.astype(np.float32)
    if codes.dtype == DTYPES["F8_E4M3"]:
        return codes.astype(np.float32) * blocks(wide, codes.shape)
    pairs_of = codes.view(np.uint8)
    each = np.stack([pairs_of & 15, pairs_of >> 4], -1).reshape(codes.shape[0], -1)
    return np.where(each & 8, -1, 1) * E2M1[each & 7] * np.repeat(wide, 32, 1)


def requantise_v4(tensors, config, form):
    """The tensors of a DeepSeek V4 in the format, whose entry in `config` is set."""
    if form not in ("bf16", "nvfp4"):
        raise SystemExit(f"FORMAT: wanted bf16 or nvfp4 for DeepSeek V4, which has formats of its own, got {form}")
    if form == "nvfp4" and "quantization_config" not in config:
        raise SystemExit("quantization_config: wanted DeepSeek V4's, next to experts in nvfp4, got none in config.json")
    if form == "bf16":
        config.pop("quantization_config", None)
    else:
        config["quantization_config"]["moe_quant_algo"] = "NVFP4"
    made = {}
    for name, t in tensors.items():
        module = name.removesuffix(".weight")
        scale = tensors.get(module + ".scale")
        expert = ".experts." in name
        if name.endswith(".scale") and (form == "bf16" or expert):
            continue
        if scale is None or not name.endswith(".weight") or (form == "nvfp4" and not expert):
            made[name] = t
        elif form == "bf16":
            made[name] = v4_matrix(t, scale).astype(ml_dtypes.bfloat16)
        else:
            made |= {module + suffix: part for suffix, part in nvfp4(v4_matrix(t, scale)).items()}
    return made


def requantise(model, form, out):
    """Writes the checkpoint in `model` to `out` (paths) in the format; "bf16": dequantised only."""
    config = json.loads((model / "config.json").read_text())
    tensors = read(model / "model.safetensors")
    if config["architectures"][0].startswith("DeepseekV4"):
        write_checkpoint(model, requantise_v4(tensors, config, form), config, out)
        return
    config.pop("quantization_config", None)
    quantise, whole = None, 1
    if form != "bf16":
        config["quantization_config"], quantise, whole = FORMATS[form]
    made = {}
    for name, t in tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith("weight_scale_inv"):
            continue
        if t.ndim == 2 and name + "_scale_inv" in tensors:
            t = t.astype(np.float32) * blocks(tensors[name + "_scale_inv"].astype(np.float32), t.shape)
            t = t.astype(ml_dtypes.bfloat16)
        fits = t.ndim == 2 and t.shape[0] % 8 == 0 and t.shape[1] % whole == 0
        if quantise and fits and module.rsplit(".", 1)[-1] in MODULES:
            made |= {module + suffix: part for suffix, part in quantise(t.astype(np.float32)).items()}
        else:
            made[name] = t
    write_checkpoint(model, made, config, out)


def write_checkpoint(model, tensors, config, out):
    out.mkdir(parents=True, exist_ok=True)
    write(out / "model.safetensors", tensors)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file in model.iterdir():
        if file.name not in ("config.json", "model.safetensors", "mtp.safetensors"):
            shutil.copy(file, out)


def main():
    if len(sys.argv) != 4 or sys.argv[2] not in [*FORMATS, "bf16"]:
        raise SystemExit(f"{__doc__}\nFORMAT: bf16, {', '.join(FORMATS)}")
    requantise(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))


if __name__ == "__main__":
    main()
