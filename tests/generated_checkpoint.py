"""Checkpoints of tests/data/models whose weights are a formula (tools/fixtures/generated_weights.py), for tests without numpy."""

import array
import json
import math
import pathlib
import shutil
import struct
import tempfile

MASK = 2 ** 64 - 1
MODELS = pathlib.Path(__file__).parent / "data/models"
SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
_made: dict[str, tempfile.TemporaryDirectory] = {}


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def fnv1a64(text: str) -> int:
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return h


def values(name: str, spec: dict) -> array.array:
    """A tensor in f32, before it is rounded to its dtype."""
    base = splitmix64(fnv1a64(name))
    mean, reach, out = spec["mean"], spec["reach"], array.array("f")
    for i in range(math.prod(spec["shape"])):
        u = splitmix64((base + i) & MASK) >> 32
        out.append(mean + reach * ((u - 2 ** 32 if u >= 2 ** 31 else u) * 2.0 ** -31))
    return out


def e4m3(x: float) -> int:
    """The code of the nearest e4m3 number, ties to even; |x| is at most 448."""
    size = abs(x)
    exponent = max(math.frexp(size)[1] - 1, -6)  # -6: subnormal numbers
    steps = round(math.ldexp(size, 3 - exponent))  # Eighths of 2^exponent; a sum, as 16 is the next exponent.
    return (x < 0) << 7 | ((exponent + 6) << 3) + steps


def tensor_bytes(name: str, spec: dict) -> bytes:
    numbers = values(name, spec)
    if spec["dtype"] == "F32":
        return numbers.tobytes()
    if spec["dtype"] == "F8_E4M3":
        return bytes(e4m3(x) for x in numbers)
    bits = array.array("I", numbers.tobytes())  # rounded to the nearest, ties to even
    return array.array("H", [(b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits]).tobytes()


def checkpoint(name: str) -> pathlib.Path:
    """The folder of tests/data/models/NAME with its weights in model.safetensors; made once in a process."""
    source = MODELS / name
    if not (source / "tensors.json").exists():
        return source
    if name not in _made:
        _made[name] = tempfile.TemporaryDirectory(prefix=f"lathe_{name}_")
        folder = pathlib.Path(_made[name].name)
        for file in ("config.json", "generation_config.json"):
            shutil.copy(source / file, folder)
        specs = json.loads((source / "tensors.json").read_text())
        header, at, parts = {}, 0, []
        for tensor, spec in specs.items():
            size = SIZES[spec["dtype"]] * math.prod(spec["shape"])
            header[tensor] = {"dtype": spec["dtype"], "shape": spec["shape"], "data_offsets": [at, at + size]}
            parts.append(tensor_bytes(tensor, spec))
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return pathlib.Path(_made[name].name)
