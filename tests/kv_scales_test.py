#!/usr/bin/env python3
"""Scales of fp8 caches as a user meets them: in checkpoints, from `lathe calibrate`, by --kv-scales.

A model whose keys and values are larger by powers of two, and whose products take those out again, gives the very
bits of the plain one where the cache's scales are those powers: whatever is not scaled, or scaled twice, shows.
"""

import array
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from generated_checkpoint import checkpoint

LATHE = sys.argv.pop(1)
DATA = pathlib.Path(__file__).parent / "data"
TEXT = "the lathe turns and the cache holds what it has seen. " * 8
KEY, VALUE = 2.0 ** 9, 2.0 ** -12


def lathe(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([LATHE, *args], capture_output=True, text=True, timeout=120)


def read_safetensors(path: pathlib.Path) -> dict[str, tuple[list[int], array.array]]:
    """Tensors of F32."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:end]).items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "F32", name
        first, last = t["data_offsets"]
        out[name] = (t["shape"], array.array("f", data[end + first:end + last]))
    return out


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[list[int], array.array]]) -> None:
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for _, v in tensors.values()))


def scale_rows(tensor: tuple[list[int], array.array], rows, factor: float) -> None:
    (_, *rest), values = tensor
    width = rest[0] if rest else 1
    for row in rows:
        for i in range(row * width, (row + 1) * width):
            values[i] *= factor


def enlarge(config: dict, tensors: dict) -> None:
    """Keys KEY times and values VALUE times as large (a latent is both: KEY), and the same answers."""
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}.self_attn."
        every = lambda name: range(tensors[stem + name][0][0])
        whole = lambda name, factor: scale_rows(tensors[stem + name], every(name), factor)
        if "kv_lora_rank" not in config:
            whole("k_proj.weight", KEY)
            whole("q_proj.weight", 1 / KEY)
            whole("v_proj.weight", VALUE)
            whole("o_proj.weight", 1 / VALUE)
            continue
        latent, nope, rope = (config[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"))
        whole("kv_a_layernorm.weight", KEY)
        whole("kv_b_proj.weight", 1 / KEY)
        scale_rows(tensors[stem + "kv_a_proj_with_mqa.weight"], range(latent, latent + rope), KEY)
        scale_rows(tensors[stem + "q_proj.weight"],
                   [r for r in every("q_proj.weight") if r % (nope + rope) >= nope], 1 / KEY)


class Scales(unittest.TestCase):
    LAYOUTS = {"deepseek_v3_dense": ("mla_fp8", "mla_bf16"), "llama": ("gqa_fp8", "gqa_bf16")}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.config = {}
        for model in cls.LAYOUTS:
            source = checkpoint(model)
            cls.config[model] = json.loads((source / "config.json").read_text())
            plain = read_safetensors(source / "model.safetensors")
            large = {name: (shape, array.array("f", values)) for name, (shape, values) in plain.items()}
            enlarge(cls.config[model], large)
            for kind, tensors in (("plain", plain), ("large", large)):
                cls.make(model, kind, tensors)
            for kind, names in (("own", ("k_scale", "v_scale")), ("proj", ("k_proj.k_scale", "v_proj.v_scale"))):
                cls.make(model, kind, large | cls.scales(model, names))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def scales(cls, model: str, names: tuple[str, str], key: float = KEY) -> dict:
        out = {}
        for layer in range(cls.config[model]["num_hidden_layers"]):
            for name, scale in zip(names, (key, VALUE)):
                if model == "llama" or "k_scale" in name:
                    out[f"model.layers.{layer}.self_attn.{name}"] = ([], array.array("f", [scale]))
        return out

    @classmethod
    def make(cls, model: str, kind: str, tensors: dict) -> str:
        folder = cls.root / f"{model}-{kind}"
        folder.mkdir(exist_ok=True)
        shutil.copy(DATA / "models" / model / "config.json", folder)
        tokenizer = json.loads((DATA / "tokenizer/qwen2/tokenizer.json").read_text())
        vocab = cls.config[model]["vocab_size"]
        tokenizer["model"]["vocab"] = {t: i for t, i in tokenizer["model"]["vocab"].items() if i < vocab}
        tokenizer["model"]["merges"] = []
        tokenizer["added_tokens"] = []
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        template = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
        (folder / "tokenizer_config.json").write_text(json.dumps(template))
        write_safetensors(folder / "model.safetensors", tensors)
        return str(folder)

    def flags(self, model: str, kind: str, layout: str) -> list[str]:
        return ["--model", str(self.root / f"{model}-{kind}"), "--kv-layout", layout]

    def logprobs(self, model: str, kind: str, layout: str, *more: str) -> tuple[list, str]:
        result = lathe("generate", *self.flags(model, kind, layout), "--prompt", TEXT, "--json", "--logprobs", "5",
                       "--ignore-eos", "--max-new-tokens", "16", *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["logprobs"], result.stderr

    def lost(self, stderr: str) -> tuple[int, int]:
        found = re.search(r"kv values (\d+) stored, (\d+) saturated .*, (\d+) flushed to zero", stderr)
        self.assertTrue(found, stderr)
        self.assertGreater(int(found[1]), 0)
        return int(found[2]), int(found[3])

    def refused(self, *args: str) -> str:
        result = lathe(*args)
        self.assertEqual((result.returncode, result.stdout), (2, ""), (args, result.stderr))
        return result.stderr.splitlines()[-1]

    def test_scales_of_the_checkpoint_give_the_same_bits(self):
        for model, (fp8, _) in self.LAYOUTS.items():
            want, told = self.logprobs(model, "plain", fp8)
            self.assertEqual(self.lost(told)[0], 0)
            for kind in ("own", "proj"):
                for pair in ([], ["--prefill-attention-backend", "inplace", "--decode-attention-backend", "gather"]):
                    if pair and model == "llama":
                        pair = ["--device", "ref"]
                    same = self.logprobs(model, "plain", fp8, *pair)[0] if pair else want
                    got, told = self.logprobs(model, kind, fp8, *pair)
                    self.assertEqual(got, same, (model, kind, pair))
                    self.assertEqual(self.lost(told)[0], 0)
                    self.assertIn("from the checkpoint", told)
            wrong, told = self.logprobs(model, "large", fp8)
            self.assertNotEqual(wrong, want)
            saturated, flushed = self.lost(told)
            self.assertGreater(saturated, 0)
            if model == "llama":
                self.assertGreater(flushed, 0)
            self.assertIn("lathe calibrate", told)

    def test_calibrate_finds_the_scales(self):
        for model, (fp8, exact) in self.LAYOUTS.items():
            text = self.root / "text"
            text.write_text(TEXT)
            found = {}
            for kind in ("plain", "large"):
                file = self.root / f"{model}-{kind}.json"
                result = lathe("calibrate", "--model", str(self.root / f"{model}-{kind}"), "--text", str(text),
                               "--output", str(file), "--window", "64")
                self.assertEqual(result.returncode, 0, result.stderr)
                found[kind] = json.loads(file.read_text())
                self.assertEqual(len(found[kind]["key"]), self.config[model]["num_hidden_layers"])
            self.assertEqual(found["large"]["key"], [s * KEY for s in found["plain"]["key"]])
            self.assertEqual("value" in found["plain"], model == "llama")
            if model == "llama":
                self.assertEqual(found["large"]["value"], [s * VALUE for s in found["plain"]["value"]])
            scales = ["--kv-scales", str(file)]
            got, told = self.logprobs(model, "large", fp8, *scales)
            self.assertEqual(self.lost(told)[0], 0)
            self.assertEqual(got, self.logprobs(model, "plain", fp8, "--kv-scales", str(self.root / f"{model}-plain.json"))[0])
            # The file comes before the checkpoint's own.
            self.assertEqual(self.logprobs(model, "own", fp8, *scales)[0], got)
            near = self.logprobs(model, "large", exact)[0]
            for a, b in zip(got[:1], near[:1]):
                self.assertAlmostEqual(a["logprob"], b["logprob"], delta=0.5)
            self.every_subcommand_takes_it(model, fp8, scales, text)

    def every_subcommand_takes_it(self, model: str, fp8: str, scales: list[str], text: pathlib.Path) -> None:
        flags = self.flags(model, "large", fp8)
        plan = lathe("plan", *flags, *scales)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn(f"scales    keys ", plan.stdout)
        for command in (["eval", "--perplexity", str(text), "--window", "64"], ["bench", "engine", "-p", "32", "-n", "4", "-r", "1"]):
            result = lathe(*command, *flags, *scales)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.lost(result.stderr)[0], 0)
        ppl = lambda *more: float(json.loads(lathe("eval", "--perplexity", str(text), "--window", "64", "--json", *flags, *more).stdout)
                                  ["perplexity"]["perplexity"])
        self.assertNotEqual(ppl(), ppl(*scales))

    def test_bad_scales_are_one_line(self):
        model, (fp8, exact) = "deepseek_v3_dense", self.LAYOUTS["deepseek_v3_dense"]
        layers = self.config[model]["num_hidden_layers"]
        good = {"architecture": "DeepseekV3ForCausalLM", "key": [1.0] * layers}
        file = self.root / "bad.json"
        commands = (["generate", "--prompt", "a"], ["chat"], ["serve", "--port", "0"], ["bench", "engine", "-p", "32"], ["plan"],
                    ["eval", "--perplexity", str(DATA / "models" / model / "config.json"), "--all-plans"])
        for content, wanted in (("{", "bad.json"), (json.dumps({}), "architecture"),
                                (json.dumps(good | {"key": [1.0]}), f"wanted {layers} scales"),
                                (json.dumps(good | {"key": [0] * layers}), "key[0]: wanted a scale"),
                                (json.dumps(good | {"value": [1.0] * layers}), "value: wanted nothing")):
            file.write_text(content)
            for command in commands:
                self.assertIn(wanted, self.refused(*command, *self.flags(model, "plain", fp8), "--kv-scales", str(file)))
        file.write_text(json.dumps(good))
        for command in commands[:5]:
            line = self.refused(*command, *self.flags(model, "plain", exact), "--kv-scales", str(file))
            self.assertIn("--kv-scales: wanted a cache that has one scale a layer, got mla_bf16; --kv-layout mla_fp8", line)
        self.assertIn("a model with it", self.refused("plan", "--attention", "mla", "--kv-scales", str(file)))
        text = self.root / "short"
        text.write_text("a")
        plain = str(self.root / f"{model}-plain")
        self.assertIn("two tokens", self.refused("calibrate", "--model", plain, "--text", str(text), "--output", "-"))
        self.assertIn("--output", self.refused("calibrate", "--model", plain, "--text", str(file), "--output", "/no/dir/x"))

    def test_bad_scales_of_a_checkpoint_are_named(self):
        tensors = read_safetensors(self.root / "llama-plain/model.safetensors")
        stem = "model.layers.0.self_attn."
        for kind, more, wanted in (
                ("one", {stem + "k_scale": ([], array.array("f", [2]))}, stem + "v_scale"),
                ("negative", self.scales("llama", ("k_scale", "v_scale"), -1.0), "k_scale = -1 (wanted a scale"),
                ("shape", self.scales("llama", ("k_scale", "v_scale")) | {stem + "k_scale": ([2], array.array("f", [2, 2]))}, "wanted one F32")):
            folder = self.make("llama", kind, tensors | more)
            self.assertIn(wanted, self.refused("generate", "--model", folder, "--prompt", "a"))


if __name__ == "__main__":
    unittest.main()
