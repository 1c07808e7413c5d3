#!/usr/bin/env python3
"""Small random models of several architectures in every format of weights: what `lathe inspect` accepts, `lathe generate` runs.

Sizes are random, many of them odd for a format or a kernel: a matrix that a format cannot hold stays bf16 in half of the models, as
quantisers leave it, and is written with what its sizes give in the others. Modules are left out at random, too, and formats are mixed.
A refusal is one line that says what was wanted. LATHE_SEED sets the seed, which is printed, and LATHE_TEST_SCALE the number of models.
"""

import concurrent.futures
import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from format_checkpoints import FORMATS, floats, write

LATHE = sys.argv.pop(1)
SEED = int(os.environ.get("LATHE_SEED", "1"))
MODELS = int(120 * float(os.environ.get("LATHE_TEST_SCALE", "1")))
VOCAB = 48


class Random:
    """A model's configuration and tensors. linear: module -> (rows, columns)."""

    def __init__(self, rng):
        self.rng, self.linear, self.tensors = rng, {}, {}
        self.hidden = rng.choice([32, 48, 64, 80, 96, 120, 128, 160, 192, 256, 264])
        self.layers = rng.randint(1, 2)
        self.ffn = rng.choice([16, 32, 56, 64, 72, 96, 128, 136, 192, 256])
        self.kv = rng.choice([1, 2])
        self.heads = self.kv * rng.choice([1, 2, 3])
        self.width = rng.choice([16, 32, 48, 64, 80, 128])
        self.config = {"hidden_size": self.hidden, "num_hidden_layers": self.layers, "intermediate_size": self.ffn, "vocab_size": VOCAB,
                       "num_attention_heads": self.heads, "num_key_value_heads": self.kv, "head_dim": self.width, "max_position_embeddings": 256,
                       "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
        self.matrix("model.embed_tokens.weight", VOCAB, self.hidden)
        self.matrix("lm_head.weight", VOCAB, self.hidden)
        self.norm("model.norm.weight", self.hidden)

    def noise(self, count, reach):
        return floats("BF16", [self.rng.uniform(-reach, reach) for _ in range(count)])

    def matrix(self, name, rows, columns):
        self.tensors[name] = ["BF16", [rows, columns], self.noise(rows * columns, 0.1)]

    def norm(self, name, size):
        self.tensors[name] = ["BF16", [size], floats("BF16", [1.0] * size)]

    def module(self, name, rows, columns):
        self.linear[name] = (rows, columns)

    def mlp(self, name, ffn, names=("gate_proj", "up_proj", "down_proj")):
        self.module(f"{name}.{names[0]}", ffn, self.hidden)
        self.module(f"{name}.{names[1]}", ffn, self.hidden)
        self.module(f"{name}.{names[2]}", self.hidden, ffn)

    def experts(self, name, count, ffn, router, names=("gate_proj", "up_proj", "down_proj")):
        self.matrix(f"{name}.{router}.weight", count, self.hidden)
        for i in range(count):
            self.mlp(f"{name}.experts.{i}", ffn, names)

    def grouped_layer(self, at, bias=False, norms=False):
        for name, heads in (("q", self.heads), ("k", self.kv), ("v", self.kv)):
            self.module(f"{at}.self_attn.{name}_proj", heads * self.width, self.hidden)
            if bias:
                self.tensors[f"{at}.self_attn.{name}_proj.bias"] = ["BF16", [heads * self.width], self.noise(heads * self.width, 0.1)]
        self.module(f"{at}.self_attn.o_proj", self.hidden, self.heads * self.width)
        for name in ("q_norm", "k_norm") if norms else ():
            self.norm(f"{at}.self_attn.{name}.weight", self.width)
        self.norm(f"{at}.input_layernorm.weight", self.hidden)
        self.norm(f"{at}.post_attention_layernorm.weight", self.hidden)

    def each_layer(self):
        return [f"model.layers.{i}" for i in range(self.layers)]


def llama(m):
    for at in m.each_layer():
        m.grouped_layer(at)
        m.mlp(at + ".mlp", m.ffn)
    return "LlamaForCausalLM", "llama"


def qwen2(m):
    for at in m.each_layer():
        m.grouped_layer(at, bias=True)
        m.mlp(at + ".mlp", m.ffn)
    return "Qwen2ForCausalLM", "qwen2"


def qwen3(m):
    for at in m.each_layer():
        m.grouped_layer(at, norms=True)
        m.mlp(at + ".mlp", m.ffn)
    return "Qwen3ForCausalLM", "qwen3"


def qwen3_moe(m):
    count = m.rng.choice([2, 3, 5])
    m.config |= {"num_experts": count, "num_experts_per_tok": m.rng.randint(1, 2), "moe_intermediate_size": m.ffn, "norm_topk_prob": True}
    for at in m.each_layer():
        m.grouped_layer(at, norms=True)
        m.experts(at + ".mlp", count, m.ffn, "gate")
    return "Qwen3MoeForCausalLM", "qwen3_moe"


def mixtral(m):
    count = m.rng.choice([2, 3])
    m.config |= {"num_local_experts": count, "num_experts_per_tok": 2, "sliding_window": None}
    for at in m.each_layer():
        m.grouped_layer(at)
        m.experts(at + ".block_sparse_moe", count, m.ffn, "gate", ("w1", "w3", "w2"))
    return "MixtralForCausalLM", "mixtral"


def deepseek_v3(m):
    rng, latent, rope = m.rng, m.rng.choice([32, 64, 96, 128]), m.rng.choice([16, 32])
    nope, value = rng.choice([16, 32, 48, 64]), rng.choice([16, 32, 48, 64])
    query = rng.choice([None, 32, 64, 96])
    count = rng.choice([2, 4])
    m.config |= {"kv_lora_rank": latent, "qk_rope_head_dim": rope, "qk_nope_head_dim": nope, "v_head_dim": value, "q_lora_rank": query,
                 "num_key_value_heads": m.heads, "n_routed_experts": count, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                 "moe_intermediate_size": m.ffn, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True}
    del m.config["head_dim"]
    for i, at in enumerate(m.each_layer()):
        attn = at + ".self_attn"
        if query is None:
            m.module(attn + ".q_proj", m.heads * (nope + rope), m.hidden)
        else:
            m.module(attn + ".q_a_proj", query, m.hidden)
            m.norm(attn + ".q_a_layernorm.weight", query)
            m.module(attn + ".q_b_proj", m.heads * (nope + rope), query)
        m.module(attn + ".kv_a_proj_with_mqa", latent + rope, m.hidden)
        m.norm(attn + ".kv_a_layernorm.weight", latent)
        m.module(attn + ".kv_b_proj", m.heads * (nope + value), latent)
        m.module(attn + ".o_proj", m.hidden, m.heads * value)
        m.norm(at + ".input_layernorm.weight", m.hidden)
        m.norm(at + ".post_attention_layernorm.weight", m.hidden)
        if i == 0:
            m.mlp(at + ".mlp", m.ffn)
        else:
            m.experts(at + ".mlp", count, m.ffn, "gate")
            m.tensors[at + ".mlp.gate.e_score_correction_bias"] = ["F32", [count], floats("F32", [0.0] * count)]
            m.mlp(at + ".mlp.shared_experts", m.ffn)
    return "DeepseekV3ForCausalLM", "deepseek_v3"


FAMILIES = (llama, qwen2, qwen3, qwen3_moe, mixtral, deepseek_v3)


def divisor(form):
    """Columns and rows that matrices of a format are multiples of."""
    for size in (128, 32):
        if f"g{size}" in form or form == "gptq-v2" and size == 128 or form == "gptq-symmetric" and size == 32:
            return size, 8
    return {"int4-g64-zeros": (64, 8), "awq": (64, 8), "gptq": (64, 8), "nvfp4": (16, 1), "nvfp4-packed": (16, 1), "mxfp4": (32, 1),
            "mxfp4-quark": (32, 1)}.get(form, (1, 1))


def make(rng):
    m = Random(rng)
    m.config["architectures"], m.config["model_type"] = ([name] if i == 0 else name for i, name in enumerate(rng.choice(FAMILIES)(m)))
    form = rng.choice(list(FORMATS))
    m.config["quantization_config"] = copy.deepcopy(FORMATS[form][0])
    others = [f for f in FORMATS if f.split("-")[0] == form.split("-")[0]] if rng.random() < 0.2 else [form]
    tolerant, left_out = rng.random() < 0.5, rng.random() * 0.5 if rng.random() < 0.3 else 0
    for name, (rows, columns) in m.linear.items():
        of = rng.choice(others)
        columns_of, rows_of = divisor(of)
        if rng.random() < left_out or tolerant and (columns % columns_of != 0 or rows % rows_of != 0):
            m.matrix(name + ".weight", rows, columns)
            continue
        for suffix, tensor in FORMATS[of][1](rng, rows, columns).items():
            m.tensors[name + suffix] = tensor
    words = f"{m.config['model_type']}, {form}{' and others' if len(others) > 1 else ''}, hidden {m.hidden}, ffn {m.ffn}, heads {m.heads}/{m.kv} x {m.width}"
    return words, m


def run(command, folder):
    more = [] if command == "inspect" else ["--threads", "1", "--prompt-ids", "1,2,3,4,5,6,7", "--max-new-tokens", "3", "--context-length", "64", "--ignore-eos", "--quiet"]
    where = [str(folder)] if command == "inspect" else ["--model", str(folder)]
    return subprocess.run([LATHE, command, *where, "--device", "cpu", *more], capture_output=True, text=True, timeout=120)


def check(number):
    """(whether it runs, faults)"""
    words, model = make(random.Random(f"{SEED} {number}"))
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "config.json").write_text(json.dumps(model.config))
        write(folder / "model.safetensors", model.tensors)
        inspected, generated = run("inspect", folder), run("generate", folder)
    faults = []
    if (inspected.returncode == 0) != (generated.returncode == 0):
        faults.append(f"model {number} ({words}): inspect {inspected.returncode}, generate {generated.returncode}: {inspected.stderr}{generated.stderr}")
    for done in (inspected, generated):
        line = done.stderr.strip()
        if done.returncode != 0 and (done.returncode not in (1, 2) or "\n" in line or "wanted" not in line):
            faults.append(f"model {number} ({words}): {done.args[1]} {done.returncode}: {line}")
    return generated.returncode == 0, faults


class ModelsInFormats(unittest.TestCase):
    def test_what_inspect_accepts_generates(self):
        print(f"seed {SEED}, {MODELS} models")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(pool.map(check, range(MODELS)))
        faults = [fault for _, found in done for fault in found]
        self.assertEqual([], faults, "\n".join(faults))
        runs = sum(ran for ran, _ in done)
        print(f"{runs} of {MODELS} run")
        self.assertGreater(runs, MODELS / 4)


if __name__ == "__main__":
    unittest.main()
