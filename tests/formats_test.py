#!/usr/bin/env python3
"""Files that are almost in a format of weights: every one ends in one line, and what `lathe inspect` accepts, `lathe generate` runs.

A one-layer Llama with random weights in each format is changed in one place: another group size, 3 or 8 bits, a missing tensor, another
shape or dtype, values that no kernel can multiply by, a cut file, another key of config.json. LATHE_SEED sets the seed, which is printed.
"""

import concurrent.futures
import copy
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

from format_checkpoints import FORMATS, SIZES, floats, write

LATHE = sys.argv.pop(1)
SEED = int(os.environ.get("LATHE_SEED", "1"))
HIDDEN, FFN, VOCAB = 128, 256, 32
LAYER = "model.layers.0."
MODULES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN),
           "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN)}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": 128,
          "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}


class Model:
    def __init__(self, rng, form):
        quantisation, make = FORMATS[form]
        self.config = copy.deepcopy(CONFIG) | {"quantization_config": copy.deepcopy(quantisation)}
        wide = lambda rows, cols: ["BF16", [rows, cols], floats("BF16", [rng.gauss(0, 0.05) for _ in range(rows * cols)])]
        ones = lambda: ["F32", [HIDDEN], floats("F32", [1.0] * HIDDEN)]
        self.tensors = {"model.embed_tokens.weight": wide(VOCAB, HIDDEN), "lm_head.weight": wide(VOCAB, HIDDEN), "model.norm.weight": ones(),
                        LAYER + "input_layernorm.weight": ones(), LAYER + "post_attention_layernorm.weight": ones()}
        for module, (out, into) in MODULES.items():
            for suffix, tensor in make(rng, out, into).items():
                self.tensors[LAYER + module + suffix] = tensor
        self.cut = 0  # bytes off the end of the file

    def write(self, folder):
        write(folder / "model.safetensors", self.tensors, self.cut)
        (folder / "config.json").write_text(json.dumps(self.config))


def run(command, folder):
    args = {"inspect": ["inspect", str(folder), "--device", "cpu"],
            "generate": ["generate", "--model", str(folder), "--device", "cpu", "--threads", "1", "--prompt-ids", "1,2,3", "--max-new-tokens", "2",
                         "--context-length", "64", "--ignore-eos", "--quiet"]}[command]
    return subprocess.run([LATHE, *args], capture_output=True, text=True, timeout=120)


# A change of one tensor: (name, tensors, the tensor's name, rng) -> whether it applied.


def drop(tensors, name, rng):
    del tensors[name]


def other_dtype(tensors, name, rng):
    dtype, shape, data = tensors[name]
    same = [d for d, size in SIZES.items() if size == SIZES[dtype] and d != dtype]
    tensors[name] = [rng.choice(same), shape, data]


def as_dtype(dtype):
    """The same shape in a dtype that no format has for its codes or scales."""
    def apply(tensors, name, rng):
        was, shape, data = tensors[name]
        if was == dtype:
            return False
        count = len(data) // SIZES[was] * SIZES[dtype]
        tensors[name] = [dtype, shape, (data * (count // max(1, len(data)) + 1))[:count]]

    return apply


def shape_before_packing(rows, cols):
    def apply(tensors, name, rng):
        if not name.endswith(".weight_shape"):
            return False
        was = struct.unpack("<2q", tensors[name][2])
        tensors[name] = ["I64", [2], struct.pack("<2q", rows(*was), cols(*was))]

    return apply


def reshaped(change):
    """Another shape with as many bytes as it needs."""
    def apply(tensors, name, rng):
        dtype, shape, data = tensors[name]
        made = change(list(shape))
        if made is None or made == shape:
            return False
        count = SIZES[dtype]
        for n in made:
            count *= n
        tensors[name] = [dtype, made, (data * (count // max(1, len(data)) + 1))[:count]]

    return apply


def axis(i, scale):
    def change(shape):
        if len(shape) <= i or int(shape[i] * scale) < 1:
            return None
        shape[i] = int(shape[i] * scale)
        return shape

    return change


def value(number, dtypes=("F32", "F16", "BF16")):
    def apply(tensors, name, rng):
        dtype, shape, data = tensors[name]
        if dtype not in dtypes or "scale" not in name:
            return False
        one = floats(dtype, [number])
        at = rng.randrange(len(data) // len(one)) * len(one)
        tensors[name] = [dtype, shape, data[:at] + one + data[at + len(one):]]

    return apply


def code(byte, dtype, part):
    def apply(tensors, name, rng):
        if tensors[name][0] != dtype or part not in name:
            return False
        data = tensors[name][2]
        at = rng.randrange(len(data))
        tensors[name][2] = data[:at] + bytes([byte]) + data[at + 1:]

    return apply


def order(number):
    def apply(tensors, name, rng):
        if not name.endswith("g_idx"):
            return False
        data = tensors[name][2]
        at = 4 * rng.randrange(len(data) // 4)
        tensors[name][2] = data[:at] + struct.pack("<i", number) + data[at + 4:]

    return apply


def rename(tensors, name, rng):
    tensors[name + "x"] = tensors.pop(name)


TENSOR_CHANGES = {
    "missing": drop,
    "renamed": rename,
    "another dtype": other_dtype,
    "twice the rows": reshaped(axis(0, 2)),
    "half the rows": reshaped(axis(0, 0.5)),
    "twice the columns": reshaped(axis(1, 2)),
    "half the columns": reshaped(axis(1, 0.5)),
    "3 of 4 bits": reshaped(axis(1, 0.75)),
    "one row more": reshaped(lambda s: [s[0] + 1, *s[1:]] if s else None),
    "transposed": reshaped(lambda s: s[::-1] if len(s) == 2 else None),
    "an axis more": reshaped(lambda s: [*s, 1]),
    **{f"dtype {dtype}": as_dtype(dtype) for dtype in ("I64", "F64", "U32", "BOOL", "F8_E5M2")},
    "weight_shape: another width": shape_before_packing(lambda r, c: r, lambda r, c: c + 8),
    "weight_shape: turned": shape_before_packing(lambda r, c: c + 1, lambda r, c: r),
    "weight_shape: negative": shape_before_packing(lambda r, c: -r, lambda r, c: c),
    "weight_shape: huge": shape_before_packing(lambda r, c: r + 2 ** 32, lambda r, c: c),
    "NaN": value(float("nan")),
    "inf": value(float("inf")),
    "-inf": value(float("-inf")),
    "2^120": value(2.0 ** 120, ("F32", "BF16")),
    "0": value(0.0),
    "negative": value(-0.01),
    "an exponent of NaN": code(0xff, "U8", "_scale"),
    "an exponent too large": code(250, "U8", "_scale"),
    "an e4m3 NaN": code(0x7f, "F8_E4M3", "_scale"),
    "a group out of range": order(99),
    "a negative group": order(-1),
    "an uneven group": order(0),
}
# What no format reads.
NOT_READ = (".input_scale", ".activation_scale", ".input_global_scale", ".output_scale")
FACTORS = (".weight_scale_2", ".weight_global_scale")


def must_be_refused(what):
    """Whether the change of a tensor leaves no matrix that anybody meant: "FORM: CHANGE: NAME"."""
    form, _, rest = what.partition(": ")
    change, _, name = rest.rpartition(": ")
    if change not in TENSOR_CHANGES or name.endswith(NOT_READ):
        return False
    if change == "negative":  # int4: AutoRound writes negative scales
        return not form.startswith(("int4", "awq", "gptq"))
    if change == "a negative group":  # compressed-tensors: columns are in order
        return not name.endswith("weight_g_idx")
    if change == "0":
        return name.endswith(FACTORS)
    return change in ("NaN", "inf", "-inf") or change.startswith(("dtype ", "weight_shape")) or change.endswith(" group")

SHAPES = ("twice ", "half ", "3 of 4", "one row", "transposed", "an axis", "another dtype", "dtype ")


def named_badly(what, line, was):
    """Why a refusal of one changed tensor does not say what this checkpoint's own format has there, or None. was: the tensor before."""
    _, _, rest = what.partition(": ")
    change, _, name = rest.rpartition(": ")
    if name.endswith(NOT_READ):
        return None
    if change == "renamed" and f"got 1 unexpected: {name}x;" in line:
        return None  # one that the format may lack
    if change in ("missing", "renamed"):
        return None if re.search(rf"1 missing: {re.escape(name)};", line) else f"not missing: {name}"
    if not change.startswith(SHAPES):
        return None
    told = re.search(rf"{re.escape(name)} \S+ \[.*?\] \(wanted (.*)\); ", line)
    if not told:
        return f"no word about {name}"
    offers = told[1].split(", or ")
    if len(set(offers)) < len(offers) or was[0] not in told[1]:
        return f"not once {was[0]}"
    codes = name.endswith((".weight", ".weight_packed", ".qweight"))
    return f"not {was[1]}" if codes and str(was[1]) not in told[1] else None


FORMAT_TEXTS = {
    "fp8-tensor": "fp8 per tensor", "fp8-mistral": "fp8 per tensor", "fp8-channel": "fp8 per channel", "fp8-block": "fp8 in blocks of 128 x 128",
    "fp8-block-exponents": "fp8 in blocks", "fp8-block-compressed": "fp8 in blocks", "int4-g32": "int4 (compressed-tensors), groups of 32\n",
    "int4-g128": "int4 (compressed-tensors), groups of 128\n", "int4-g64-zeros": "int4 (compressed-tensors), groups of 64 with zero points\n",
    "int4-g32-order": "int4 (compressed-tensors), groups of 32, in act order\n", "awq": "int4 (AWQ), groups of 64 with zero points\n",
    "gptq": "int4 (GPTQ), groups of 64\n", "gptq-symmetric": "int4 (GPTQ), groups of 32\n", "gptq-v2": "int4 (GPTQ), groups of 128\n",
    "nvfp4": "7 matrices in NVFP4 (ModelOpt)\n", "nvfp4-packed": "7 matrices in NVFP4 (compressed-tensors)\n", "mxfp4": "7 matrices in MXFP4 (compressed-tensors)\n",
    "mxfp4-quark": "7 matrices in MXFP4 (Quark)\n",
}

UNREAD = (".input_scale", ".activation_scale", ".weight_shape")

CONFIG_CHANGES = {
    "bits": [3, 8], "group_size": [16, 256, -1], "version": ["gemv"], "checkpoint_format": ["marlin"], "quant_method": ["bitsandbytes", "gguf", "hqq"],
    "quant_algo": ["W4A8_AWQ"], "weight_block_size": [[32, 32]], "num_bits": [3, 8], "transform_config": [{"a": 1}], "sym": [True],
}


def change_config(config, key, to):
    q = config["quantization_config"]
    weights = q.get("config_groups", {}).get("group_0", {}).get("weights", {})
    for part in (q, weights):
        if key in part or key in ("quant_method", "transform_config", "checkpoint_format") and part is q:
            part[key] = to
            return True
    return False


def cases():
    """(what, model, words of which one has to be in a refusal, the changed tensor as it was or None)"""
    for form in FORMATS:
        rng = random.Random(f"{SEED} {form}")
        good = Model(rng, form)
        yield f"{form}: good", good, None, None
        module = LAYER + rng.choice(list(MODULES))
        names = [n for n in good.tensors if n.startswith(module + ".")]
        for what, apply in TENSOR_CHANGES.items():
            for name in names:
                made = copy.deepcopy(good)
                if apply(made.tensors, name, rng) is not False and made.tensors != good.tensors:
                    yield f"{form}: {what}: {name}", made, (module,), good.tensors[name]
        for key, values in CONFIG_CHANGES.items():
            for to in values:
                made = copy.deepcopy(good)
                if change_config(made.config, key, to):
                    yield f"{form}: {key} {to}", made, (key, "zero points", LAYER), None
        for cut in (1, 1000):
            made = copy.deepcopy(good)
            made.cut = cut
            yield f"{form}: cut by {cut}", made, ("model.safetensors",), None


class AlmostAFormat(unittest.TestCase):
    def check(self, what, model, words, was):
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            model.write(folder)
            inspected, generated = run("inspect", folder), run("generate", folder)
        if words is None:
            if FORMAT_TEXTS[what.split(":")[0]] not in inspected.stdout:
                return [f"{what}: inspect does not name the format: {inspected.stdout}"]
            return [] if inspected.returncode == generated.returncode == 0 else [f"{what}: {inspected.stderr}{generated.stderr}"]
        wrong = []
        # Without scales or zero points codes are other numbers; without an order they are where config.json says that there is one.
        needed = not what.endswith(UNREAD) and (not what.endswith("g_idx") or what.startswith("gptq:"))
        if (": missing: " in what or ": renamed: " in what) and needed and generated.returncode == 0:
            wrong.append("a tensor that the format needs is missing, and nothing says so")
        if must_be_refused(what) and generated.returncode == 0:
            wrong.append("runs")
        if (inspected.returncode == 0) != (generated.returncode == 0):
            wrong.append(f"inspect {inspected.returncode}, generate {generated.returncode}: {generated.stderr}{inspected.stderr}")
        for done in (inspected, generated):
            if done.returncode == 0:
                continue
            line = done.stderr.strip()
            whole = "formats of weights:" in line or "1 unexpected:" in line or "use a checkpoint in one of" in line or "model.safetensors" in words
            if done.returncode not in (1, 2) or "\n" in line or "wanted" not in line or not any(w in line for w in words) or not whole:
                wrong.append(f"{done.args[1]} {done.returncode}: {line}")
            elif was is not None and (bad := named_badly(what, line, was)):
                wrong.append(f"{bad}: {line}")
        return [f"{what}: {w}" for w in wrong]

    def test_ends_in_one_line_or_runs(self):
        print(f"seed {SEED}")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [w for found in pool.map(lambda case: self.check(*case), cases()) for w in found]
        self.assertEqual([], wrong, "\n".join(wrong))


class Unnamed(unittest.TestCase):
    def test_a_format_that_config_json_does_not_name(self):
        """Plans, parts of ranks and answers are those of a config.json that names it."""
        for form in FORMATS:
            if form.startswith("gptq"):
                continue  # tensors do not say how their zero points are meant
            with self.subTest(form), tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                model = Model(random.Random(SEED), form)
                seen = []
                for _ in range(2):
                    model.write(folder)
                    outputs = []
                    for ranks in ("1", "2"):
                        outputs.append(subprocess.run([LATHE, "plan", "--model", name, "--device", "h200", "--tp", ranks, "--json"],
                                                      capture_output=True, text=True).stdout)
                        result = subprocess.run([LATHE, "generate", "--model", name, "--device", "cpu", "--threads", "2", "--tp", ranks,
                                                 "--prompt-ids", "1,2,3", "--max-new-tokens", "4", "--quiet", "--logprobs", "2", "--json"],
                                                capture_output=True, text=True)
                        outputs.append((result.returncode, result.stdout.split('"timings"')[0], result.stderr))
                    seen.append(outputs)
                    model.config.pop("quantization_config", None)
                self.assertEqual(seen[0], seen[1])


if __name__ == "__main__":
    unittest.main()
