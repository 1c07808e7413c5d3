#!/usr/bin/env python3
"""Models of every architecture with random sizes, formats of weights and flags on 2, 4 and 8 ranks of a CPU: what one rank answers, N
ranks answer within the bounds of their sums, or a plan refuses it with flags that work.

The fixtures' configurations get other heads and widths and any format that the configuration can name; weights are random, with the same
bits for every number of ranks. LATHE_SEED sets the seed, which is printed, and LATHE_TEST_SCALE the number of models.
"""

import concurrent.futures
import copy
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

from format_checkpoints import FORMATS, floats, write

ROOT = pathlib.Path(__file__).resolve().parent.parent
LATHE = sys.argv.pop(1)
SEED = int(os.environ.get("LATHE_SEED", "1"))
MODELS = int(60 * float(os.environ.get("LATHE_TEST_SCALE", "1")))
FIXTURES = sorted(path.parent.name for path in ROOT.glob("tests/data/models/*/config.json"))
PROMPT = "1,2,3,4,5,6,7,8,9,10,11"


def of_text(config):
    """Where the language model's sizes are."""
    return config.get("text_config", config)


def set_heads(rng, config, ranks):
    """Heads that the ranks can share, and sometimes not."""
    by = rng.choice([ranks, ranks, ranks, 2 * ranks, 3])
    values = {}
    if "num_attention_heads" in config:
        kv = config.get("num_key_value_heads") or config["num_attention_heads"]
        latent = "kv_lora_rank" in config or "qk_rope_head_dim" in config
        keys = by if latent and kv != 1 else 1 if kv == 1 else rng.choice([1, 2, 4, 8])
        values |= {"num_attention_heads": math.lcm(by, keys), "num_key_value_heads": keys}
    for name in ("linear_num_key_heads", "o_groups"):
        values[name] = by
    values["linear_num_value_heads"] = by * rng.choice([1, 2])
    for name, value in values.items():
        if config.get(name):
            config[name] = value
    if isinstance(config.get("linear_attn_config"), dict):
        config["linear_attn_config"]["num_heads"] = by


def experts_of(config):
    """The number of routed experts."""
    return next((config[key] for key in ("n_routed_experts", "num_experts", "num_local_experts") if config.get(key)), 0)


def choose_all_experts(config):
    """Rows choose all routed experts, so no near tie decides which ones."""
    if not experts_of(config):
        return
    names = [name for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts") if name in config]
    config[names[0] if names else "num_experts_per_tok"] = experts_of(config)
    if config.get("n_group"):
        config["topk_group"] = config["n_group"]


def make(rng):
    name, ranks = rng.choice(FIXTURES), rng.choice([2, 4, 8])
    config = json.loads((ROOT / "tests/data/models" / name / "config.json").read_text())
    text = of_text(config)
    form = rng.choice(["own", "none", *FORMATS])
    set_heads(rng, text, ranks)
    for width in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        if text.get(width) and rng.random() < 0.8:
            text[width] = rng.choice([32, 64, 96, 128, 160, 192, 256, 384])
    if rng.random() < 0.5:
        text["hidden_size"] = rng.choice([128, 256])
    if form != "own":
        config.pop("quantization_config", None)
        text.pop("quantization_config", None)
    if form in FORMATS:
        config["quantization_config"] = copy.deepcopy(FORMATS[form][0])
    integers = form.startswith(("int4", "awq", "gptq"))
    rounded = "int8" if integers else rng.choice(["fp8", "int8"]) if form.startswith("fp8") else "bfloat16"
    dtype = rng.choice(["float32", "float32", "float32", rounded])
    split = rng.choice(["auto", "auto", "width", "number", "2x2" if ranks == 4 else "4x2" if ranks == 8 else "1x2"])
    flags = ["--dtype", dtype]
    if "deepseek_v4" in name and dtype == "float32" and rng.random() < 0.5:
        flags += ["--kv-cache-dtype", "bf16"]
    shares = []
    if dtype != "float32":  # rounded rows of x are others on a share, and near ties of a router then choose others
        choose_all_experts(text)
    if experts_of(text) and split != "auto":
        shares = ["--expert-split", split]
    sizes = {word: text.get(key) for word, key in (("hidden", "hidden_size"), ("ffn", "intermediate_size"), ("experts'", "moe_intermediate_size"),
                                                   ("heads", "num_attention_heads"), ("KV", "num_key_value_heads"))}
    words = f"{name}, {form}, " + ", ".join(f"{word} {n}" for word, n in sizes.items() if n)
    return words, config, ranks, flags, shares


def generate(config, *flags, prompt=PROMPT, tokens=4):
    ranks = flags[flags.index("--tp") + 1] if "--tp" in flags else "1"
    return subprocess.run([LATHE, "generate", "--load-format", "dummy", "--config", str(config), "--model", str(ROOT / "models/tiny-gqa"),
                           "--device", "cpu", "--threads", ranks, "--prompt-ids", prompt, "--max-new-tokens", str(tokens), "--temperature", "0",
                           "--context-length", "64", "--ignore-eos", "--quiet", "--json", "--logprobs", "20", *flags],
                          capture_output=True, text=True, timeout=300)


def float32_at(config, answer):
    """The log-probabilities in float32 of each token of an answer, behind the tokens that the answer has before it."""
    tokens = [str(of["token"]) for of in answer]
    prompts = [",".join([PROMPT, *tokens[:n]]) for n in range(len(tokens))]
    return [answer_of(generate(config, "--dtype", "float32", prompt=prompt, tokens=1))[0] for prompt in prompts]


def answer_of(run):
    """The tokens' log-probabilities."""
    return json.loads(run.stdout.splitlines()[0])["logprobs"]


def behind_the_same_tokens(got, want):
    """The tokens of both answers up to the first that differs, with it: all before them is the same."""
    differ = [n for n, (g, w) in enumerate(zip(got, want)) if g["token"] != w["token"]]
    count = differ[0] + 1 if differ else len(want)
    return got[:count], want[:count]


def difference(got, want):
    """The largest relative norm of the differences of the likeliest tokens' log-probabilities at any token."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        ours, theirs = ({t["token"]: t["logprob"] for t in of["top"]} for of in (g, w))
        both = sorted(ours.keys() & theirs.keys())
        if len(both) < 2:
            return math.inf
        mean = [sum(of[t] for t in both) / len(both) for of in (ours, theirs)]
        spread = sum((theirs[t] - mean[1]) ** 2 for t in both)
        away = sum((ours[t] - mean[0] - theirs[t] + mean[1]) ** 2 for t in both)
        worst = max(worst, math.sqrt(away / spread) if spread else (math.inf if away else 0))
    return worst


def with_way_out(flags, way):
    """The flags with those of a refusal's `try` in their place."""
    words = way.split()
    merged = flags | dict(zip(words[::2], words[1::2]))
    return [word for flag in merged.items() for word in flag]


def check(number):
    """(what happened, the difference over its bound, the model in words, faults)"""
    words, config, ranks, of_both, shares = make(random.Random(f"{SEED} {number}"))
    flags = of_both + shares
    words = f"model {number}: {words}, --tp {ranks} {' '.join(flags)}"
    dtype = flags[1]
    with tempfile.TemporaryDirectory() as made:
        path = pathlib.Path(made) / "config.json"
        path.write_text(json.dumps(config))
        alone = generate(path, *of_both)
        if alone.returncode != 0:
            return "no model", 0, words, [] if alone.returncode == 2 else [f"{words}: {alone.stderr}"]
        shared = generate(path, "--tp", str(ranks), *flags)
        if shared.returncode == 2:
            found = re.search(r"^ *try (.*)", shared.stderr, re.M)
            if not found:
                return "refused", 0, words, [f"{words}: no way out: {shared.stderr}"]
            faults = []
            for way in found[1].split(", or "):
                again = generate(path, *with_way_out({"--tp": str(ranks)} | dict(zip(flags[::2], flags[1::2])), way))
                if again.returncode != 0:
                    faults.append(f"{words}: {shared.stderr}, and then with {way}: {again.stderr}")
            return "refused", 0, words, faults
        if shared.returncode != 0:
            return "failed", 0, words, [f"{words}: exit code {shared.returncode}: {shared.stderr}"]
        shared, alone = behind_the_same_tokens(answer_of(shared), answer_of(alone))
        # In float32 a cached value may round to its neighbour, which moves logits by up to 2e-3 of their norm; about their mean they are
        # smaller. In e4m3, V4's own cache, neighbours are 16 times as far apart. Rounded rows of x are others on a share, so the ranks are
        # as far from one rank as that is from float32 at these tokens.
        in_e4m3 = config.get("model_type") == "deepseek_v4" and "--kv-cache-dtype" not in flags
        exact = 2e-2 if in_e4m3 else 5e-3
        bound = exact if dtype == "float32" else max(2e-2, 3 * difference(alone, float32_at(path, alone)))
    return "served", difference(shared, alone) / bound, words, []


class RanksOfModelsInFormats(unittest.TestCase):
    def test_ranks_answer_as_one(self):
        print(f"seed {SEED}, {MODELS} models")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(pool.map(check, range(MODELS)))
        for what, worst, words, faults in done:
            if os.environ.get("VERBOSE"): print(what, f"{worst:.3f}", words, faults)
        faults = [fault for _, _, _, found in done for fault in found]
        faults += [f"{words}: {worst:.2f} times the bound" for _, worst, words, _ in done if worst > 1]
        self.assertEqual([], faults, "\n".join(faults))
        count = {what: sum(of == what for of, *_ in done) for what in ("served", "refused", "no model")}
        print(", ".join(f"{n} {what}" for what, n in count.items()))
        self.assertGreater(count["served"], MODELS / 2)
        self.assertGreater(count["refused"], 0)


# Architecture, type, the experts' part of a layer, its key of their number and width, and their matrices.
FAMILIES = (("Qwen3MoeForCausalLM", "qwen3_moe", "mlp", "num_experts", "moe_intermediate_size", ("gate_proj", "up_proj", "down_proj")),
            ("MixtralForCausalLM", "mixtral", "block_sparse_moe", "num_local_experts", "intermediate_size", ("w1", "w3", "w2")))
HIDDEN, WIDTH, EXPERTS, VOCAB, HEAD = 128, 256, 4, 48, 32


def write_experts(rng, folder, form, family):
    """A layer with experts in the format. 8 ranks cut its groups and blocks of scales."""
    architecture, kind, part, count, width, (gate, up, down) = family
    config = {"architectures": [architecture], "model_type": kind, "hidden_size": HIDDEN, "num_hidden_layers": 1, "vocab_size": VOCAB, count: EXPERTS,
              "num_experts_per_tok": 2, "intermediate_size": WIDTH, width: WIDTH, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": HEAD,
              "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": None,
              "eos_token_id": None, "sliding_window": None, "norm_topk_prob": True, "quantization_config": copy.deepcopy(FORMATS[form][0])}
    tensors = {}

    def noise(name, *shape, mean=0.0):
        tensors[name + ".weight"] = ["BF16", list(shape), floats("BF16", [mean + rng.uniform(-0.3, 0.3) for _ in range(math.prod(shape))])]

    at = "model.layers.0"
    for name in ("model.embed_tokens", "lm_head"):
        noise(name, VOCAB, HIDDEN)
    for name in ("model.norm", at + ".input_layernorm", at + ".post_attention_layernorm"):
        noise(name, HIDDEN, mean=1.0)
    for name in ("q", "k", "v"):
        noise(f"{at}.self_attn.{name}_proj", 8 * HEAD, HIDDEN)
    noise(at + ".self_attn.o_proj", HIDDEN, 8 * HEAD)
    for name in ("q", "k") if kind == "qwen3_moe" else ():
        noise(f"{at}.self_attn.{name}_norm", HEAD, mean=1.0)
    noise(f"{at}.{part}.gate", EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        for name, rows, columns in ((gate, WIDTH, HIDDEN), (up, WIDTH, HIDDEN), (down, HIDDEN, WIDTH)):
            for suffix, tensor in FORMATS[form][1](rng, rows, columns).items():
                tensors[f"{at}.{part}.experts.{expert}.{name}{suffix}"] = tensor
    (folder / "config.json").write_text(json.dumps(config))
    write(folder / "model.safetensors", tensors)


def check_file(form, family):
    """Faults of the ranks' answers from a file of the format."""
    faults = []
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        write_experts(random.Random(f"{SEED} {form} {family[1]}"), folder, form, family)

        def answer(*flags):
            ranks = flags[1] if flags else "1"
            return subprocess.run([LATHE, "generate", "--model", str(folder), "--device", "cpu", "--threads", ranks, "--prompt-ids", PROMPT,
                                   "--max-new-tokens", "4", "--temperature", "0", "--context-length", "64", "--ignore-eos", "--quiet", "--json",
                                   "--logprobs", "20", "--dtype", "float32", *flags], capture_output=True, text=True, timeout=300)

        alone = answer()
        if alone.returncode != 0:
            return [f"{form}, {family[1]}: {alone.stderr}"]
        for ranks in ("2", "4", "8"):
            words = f"{form}, {family[1]}, seed {SEED}, --tp {ranks}"
            shared = answer("--tp", ranks, "--expert-split", "width")
            if shared.returncode != 0:
                faults.append(f"{words}: {shared.stderr}")
                continue
            away = difference(*behind_the_same_tokens(answer_of(shared), answer_of(alone)))
            if away > 5e-3:
                faults.append(f"{words}: a difference of {away:.2g}")
    return faults


class RanksOfFilesInFormats(unittest.TestCase):
    def test_shares_of_experts_answer_as_one(self):
        """Experts of a file, shared by width: all of a layer are widened where a share cuts groups, blocks or the order of columns."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(pool.map(check_file, *zip(*[(form, family) for form in FORMATS for family in FAMILIES])))
        faults = [fault for found in done for fault in found]
        self.assertEqual([], faults, "\n".join(faults))


if __name__ == "__main__":
    unittest.main()
