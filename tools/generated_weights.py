"""Weights by a formula instead of a file: tensors.json, for the tools that make fixtures.

tensors.json gives the dtype, shape and numbers of each tensor of a checkpoint: element i of a tensor is mean + reach * u rounded to
f32 and then to the dtype, or, for bytes, low + hash % count. hash is splitmix64(splitmix64(fnv1a64(name)) + i), and u its upper 32
bits as a signed number times 2^-31. An I32 tensor is `value` everywhere, or has the hashes' upper 32 bits (`words`), or has n elements
i -> (step * i % n) // group, a permutation's groups. src/model/test/generated_checkpoint.h writes the same checkpoint.
"""

import json

import numpy as np
import torch

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn}


def splitmix64(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def generate(name, spec):
    """The tensor that spec describes, in its dtype; exponents (F8_E8M0) as bytes."""
    n = int(np.prod(spec["shape"]))
    if "value" in spec:
        return torch.full(spec["shape"], spec["value"], dtype=torch.int32)
    if "group" in spec:
        return (torch.arange(n) * spec["step"] % n // spec["group"]).to(torch.int32)
    with np.errstate(over="ignore"):
        h = splitmix64(splitmix64(np.full(1, fnv1a64(name), np.uint64)) + np.arange(n, dtype=np.uint64))
    if spec["dtype"] == "I32":
        return torch.from_numpy((h >> np.uint64(32)).astype(np.uint32).view(np.int32)).reshape(spec["shape"])
    if spec["dtype"] in ("U8", "F8_E8M0"):
        values = np.uint64(spec["low"]) + h % np.uint64(spec["count"])
        return torch.from_numpy(values.astype(np.uint8)).reshape(spec["shape"])
    u = (h >> np.uint64(32)).astype(np.uint32).view(np.int32).astype(np.float64) * 2.0**-31
    values = (spec["mean"] + spec["reach"] * u).astype(np.float32)
    return torch.from_numpy(values).reshape(spec["shape"]).to(TORCH_DTYPES[spec["dtype"]])


def write_specs(folder, specs):
    lines = [f" {json.dumps(n)}: {json.dumps(s)}" for n, s in specs.items()]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
