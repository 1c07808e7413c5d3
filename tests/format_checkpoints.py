"""Random linear layers in every format of weights, as its popular program names them, and safetensors files; without numpy."""

import json
import struct

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8, "F64": 8, "U32": 4, "BOOL": 1, "F8_E5M2": 1}


def floats(dtype, values):
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    return b"".join(struct.pack("<f", v)[2:] for v in values)  # BF16, cut off


def scales(rng, dtype, shape, reach=0.02):
    count = 1
    for n in shape:
        count *= n
    return [dtype, list(shape), floats(dtype, [rng.uniform(reach / 4, reach) for _ in range(count)])]


def codes(rng, dtype, shape):
    count = SIZES[dtype]
    for n in shape:
        count *= n
    return [dtype, list(shape), rng.randbytes(count)]


def e4m3(rng, shape, high=0x58):
    return ["F8_E4M3", list(shape), bytes(rng.randrange(high) | rng.choice((0, 0x80)) for _ in range(shape[0] * shape[1]))]


def fp8(scale_shape, dtype="F32", name=".weight_scale"):
    return lambda rng, out, into: {".weight": e4m3(rng, (out, into)), name: scales(rng, dtype, scale_shape(out, into))}


def pack_quantized(group, zeros):
    def make(rng, out, into):
        made = {".weight_packed": codes(rng, "I32", (out, into // 8)), ".weight_scale": scales(rng, "BF16", (out, into // group)),
                ".weight_shape": ["I64", [2], struct.pack("<2q", out, into)]}
        if zeros:
            made[".weight_zero_point"] = codes(rng, "I32", (out // 8, into // group))
        return made

    return make


def groups(rng, into, group, shuffled):
    order = [i // group for i in range(into)]
    if shuffled:
        rng.shuffle(order)
    return ["I32", [into], struct.pack(f"<{into}i", *order)]


def in_order(make, group):
    return lambda rng, out, into: make(rng, out, into) | {".weight_g_idx": groups(rng, into, group, True)}


def awq(group):
    return lambda rng, out, into: {".qweight": codes(rng, "I32", (into, out // 8)), ".qzeros": codes(rng, "I32", (into // group, out // 8)),
                                   ".scales": scales(rng, "F16", (into // group, out))}


def gptq(group, shuffled, symmetric=False):
    def make(rng, out, into):
        zeros = codes(rng, "I32", (into // group, out // 8))
        if symmetric:
            zeros[2] = b"\x77" * len(zeros[2])  # 8, less the 1 that is added
        return {".qweight": codes(rng, "I32", (into // 8, out)), ".qzeros": zeros, ".scales": scales(rng, "F16", (into // group, out)),
                ".g_idx": groups(rng, into, group, shuffled)}

    return make


def blocks(out, into):
    return -(-out // 128), -(-into // 128)


def fp8_exponents(rng, out, into):
    high, wide = blocks(out, into)
    return {".weight": e4m3(rng, (out, into)), ".weight_scale_inv": ["F8_E8M0", [high, wide], bytes(rng.randrange(118, 122) for _ in range(high * wide))]}


def fp8_mistral(rng, out, into):
    return fp8(lambda *_: (), "BF16", ".weight_scale_inv")(rng, out, into) | {".activation_scale": ["BF16", [], floats("BF16", [1.0])]}


def nvfp4(rng, out, into):
    return {".weight": codes(rng, "U8", (out, into // 2)), ".weight_scale": e4m3(rng, (out, into // 16), 0x38),
            ".weight_scale_2": ["F32", [], floats("F32", [0.05])], ".input_scale": ["F32", [], floats("F32", [1.0])]}


def nvfp4_packed(rng, out, into):
    return {".weight_packed": codes(rng, "U8", (out, into // 2)), ".weight_scale": e4m3(rng, (out, into // 16), 0x38),
            ".weight_global_scale": ["F32", [1], floats("F32", [20.0])]}


def mxfp4(name):
    return lambda rng, out, into: {name: codes(rng, "U8", (out, into // 2)),
                                   ".weight_scale": ["U8", [out, into // 32], bytes(rng.randrange(120, 124) for _ in range(out * into // 32))]}


def compressed(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def int4(group, symmetric=True):
    return compressed(num_bits=4, type="int", strategy="group", group_size=group, symmetric=symmetric)


FORMATS = {
    "fp8-tensor": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(lambda out, into: ())),
    "fp8-channel": (compressed(num_bits=8, type="float", strategy="channel"), fp8(lambda out, into: (out, 1), "BF16")),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [128, 128]},
                  fp8(blocks, name=".weight_scale_inv")),
    "fp8-block-exponents": ({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, fp8_exponents),
    "fp8-block-compressed": (compressed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), fp8(blocks, "BF16")),
    "fp8-mistral": ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, fp8_mistral),
    "int4-g32": (int4(32), pack_quantized(32, False)),
    "int4-g128": (int4(128), pack_quantized(128, False)),
    "int4-g64-zeros": (int4(64, False), pack_quantized(64, True)),
    "int4-g32-order": (int4(32), in_order(pack_quantized(32, False), 32)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, awq(64)),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": False}, gptq(64, True)),
    "gptq-symmetric": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}, gptq(32, False, True)),
    "gptq-v2": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2", "sym": False}, gptq(128, False)),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4),
    "nvfp4-packed": (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16), nvfp4_packed),
    "mxfp4-quark": ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, mxfp4(".weight")),
    "mxfp4": (compressed(num_bits=4, type="float", strategy="group", group_size=32), mxfp4(".weight_packed")),
}


def write(path, tensors, cut=0):
    """tensors: name -> [dtype, shape, bytes]. cut: bytes off the end of the file."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values())
    path.write_bytes(data[:len(data) - cut])
