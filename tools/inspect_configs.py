#!/usr/bin/env python3
"""Runs `lathe inspect` on published configurations, and prints a table of what loads and why the rest does not.

    python3 -m venv /tmp/configs && /tmp/configs/bin/pip install --no-deps aiconfigurator-core==0.12.0
    python3 tools/inspect_configs.py build/lathe /tmp/configs/lib/python3*/site-packages/aiconfigurator_core/model_configs

A configuration is OWNER--NAME_config.json, with OWNER--NAME_hf_quant_config.json where ModelOpt wrote one. --generate also
generates two tokens with each one that loads, with random weights (--load-format dummy) of a model of the same kinds of
layers, made small; in bf16 where random weights have no such format. Exit 1 if one that inspect accepts does not generate.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

SUFFIX = "_config.json"
# Sizes of the small model.
SMALL = {"num_hidden_layers": 4, "vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256,
         "max_position_embeddings": 4096, "n_routed_experts": 16, "num_experts": 16, "num_local_experts": 16,
         "num_nextn_predict_layers": 0, "num_mtp_layers": 0, "q_lora_rank": 128, "index_topk": 64, "num_hash_layers": 1}
LISTS = ["layer_types", "mlp_layer_types", "indexer_types", "compress_ratios", "mlp_only_layers", "hybrid_layer_pattern", "moe_layer_freq"]


def shrink(config):
    """The configuration with fewer and smaller layers. Every kind of layer that comes early stays."""
    text = config.get("text_config", config)
    for key, value in SMALL.items():
        if isinstance(text.get(key), int) and text[key] > value:
            text[key] = value
    heads, kv = text["num_attention_heads"], text.get("num_key_value_heads") or text["num_attention_heads"]
    text["num_attention_heads"], text["num_key_value_heads"] = (4, 4) if heads == kv else (4, 2)
    if "swa_num_attention_heads" in text:
        text["swa_num_attention_heads"], text["swa_num_key_value_heads"] = text["num_attention_heads"], text["num_attention_heads"]
    if "o_groups" in text:
        text["num_attention_heads"], text["num_key_value_heads"], text["o_groups"] = 4, kv, 2
        text["o_lora_rank"] = 128
    if isinstance(text.get("index_topk_pattern"), str):
        text["index_topk_pattern"] = text["index_topk_pattern"][: text["num_hidden_layers"]]
    if isinstance(text.get("first_k_dense_replace"), int):
        text["first_k_dense_replace"] = min(text["first_k_dense_replace"], 1)
    for key in LISTS:
        if isinstance(text.get(key), list):
            text[key] = text[key][: text["num_hidden_layers"]]
    for key in ("bos_token_id", "eos_token_id"):
        text.pop(key, None)
        config.pop(key, None)
    if "head_dim" not in text and "kv_lora_rank" not in text:
        text["head_dim"] = 64
    return config


def generate(program, folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return subprocess.run([program, "generate", "--load-format", "dummy", "--model", str(folder), "--prompt-ids", "1,2,3,4,5",
                           "--max-new-tokens", "2", "--context-length", "256", "--ignore-eos", "--device", "cpu", "--quiet"],
                          capture_output=True, text=True)


def reason(stderr):
    """What is refused, in short: an architecture, or a key with the wanted and the offered value."""
    line = stderr.strip().splitlines()[-1] if stderr.strip() else "no message"
    line = line.removeprefix("lathe: ").removeprefix("config.json: ")
    unknown = re.fullmatch(r'architectures: wanted one of .*, got "(\w+)"(?: around a text model of type "(\w+)")?', line)
    if unknown:
        return f"`{unknown[1]}`" + (f" around `{unknown[2]}`" if unknown[2] else "")
    return line.split("; ")[0]  # without the hint


def print_groups(title, rows):
    """rows: (group, name). One line per group, in order of first appearance."""
    groups = {}
    for group, name in rows:
        groups.setdefault(group, []).append(name)
    print(f"| {title} | configurations |\n| --- | --- |")
    for group, names in groups.items():
        print(f"| {group} | {', '.join(names)} |")
    print()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("folder", type=pathlib.Path)
    args.add_argument("--generate", action="store_true")
    flags = args.parse_args()
    rows, failed = [], []
    files = sorted(f for f in flags.folder.glob(f"*{SUFFIX}") if not f.name.endswith("_hf_quant_config.json"))
    for file in files:
        name = file.name[: -len(SUFFIX)]
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            (folder / "config.json").write_bytes(file.read_bytes())
            quantised = file.with_name(f"{name}_hf_quant_config.json")
            if quantised.exists():
                (folder / "hf_quant_config.json").write_bytes(quantised.read_bytes())
            run = subprocess.run([flags.program, "inspect", str(folder / "config.json"), "--device", "sm90"], capture_output=True, text=True)
            why = "" if run.returncode == 0 else reason(run.stderr)
            config = json.loads(file.read_text())
            if not why and flags.generate:
                run = generate(flags.program, folder, shrink(config))
                if "--load-format dummy: wanted weights in" in run.stderr:
                    (folder / "hf_quant_config.json").unlink(missing_ok=True)
                    for part in (config, config.get("text_config", {})):
                        part.pop("quantization_config", None)
                    run = generate(flags.program, folder, config)
                if run.returncode != 0:
                    failed.append(f"{name}: {run.stderr.strip()}")
        rows.append((name.replace("--", "/"), config["architectures"][0], why))
    print(f"{sum(not why for *_, why in rows)} of {len(rows)} load:\n")
    print_groups("`architectures`", [(f"`{architecture}`", name) for name, architecture, why in rows if not why])
    print("The others do not:\n")
    print_groups("refused", [(why, name) for name, _, why in rows if why])
    for line in failed:
        print(f"does not generate: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
