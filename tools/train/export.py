"""Writes a trained checkpoint in Hugging Face form:

    python tools/train/export.py --config tiny_v32 --state DIR --out DIR

tiny-v32's linear weights are e4m3 with a float32 `weight_scale_inv` per 128x128 block, as DeepSeek publishes them; the
embedding, norms, router and the indexer's weights_proj are bf16 (the router's correction bias float32). tiny-gqa is
bf16 throughout.
"""

import argparse
import importlib
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from data import BOS, EOS, PAD, TOKENIZER  # noqa: E402
from quantise import (  # noqa: E402
    BLOCK,
    exponent_bytes,
    fp8_block,
    fp8_block_values,
    from_exponent_bytes,
    mx_fp4,
    mx_fp4_values,
)


def published_v4_weights(state: dict[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    """DeepSeek V4's parameters under the published names: the modules have them, but for stacks of experts."""
    weights = {}
    for name, value in state.items():
        value = value.cpu()
        stack = name.rpartition(".")[2]
        if stack.startswith("experts_"):
            for i, expert in enumerate(value):
                path = name.replace(stack, f"experts.{i}.{stack.removeprefix('experts_')}.weight")
                weights[prefix + path] = expert
        elif name == "embed":
            weights["embed.weight"] = value
        else:
            weights[prefix + name.replace("e_score_correction_bias", "bias")] = value
    return weights


def stored_v4_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """fp4 experts and fp8 linears with e8m0 `.scale`s; embedding, norms, compressors and routers bf16; the rest f32."""
    stored = {}
    f32 = ("hc_", "attn_sink", "gate.bias")
    bf16 = ("embed", "compressor", "weights_proj", "gate.weight", "norm")
    for name, value in weights.items():
        scale_name = name.removesuffix("weight") + "scale"
        if name.endswith("tid2eid"):
            stored[name] = value
        elif ".experts." in name:
            codes, scale = mx_fp4(value)
            stored[name] = (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
            stored[scale_name] = exponent_bytes(scale)
        elif any(part in name for part in f32):
            stored[name] = value.float().contiguous()
        elif any(part in name for part in bf16):
            stored[name] = value.to(torch.bfloat16).contiguous()
        else:
            quantised, scale = fp8_block(value)
            stored[name] = quantised.contiguous()
            stored[scale_name] = exponent_bytes(scale)
    return stored


def decoded_v4_weights(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """float32 weights from what stored_v4_weights() gives, under the same names."""
    plain = {}
    for name, value in stored.items():
        if name.endswith(".scale"):
            continue
        scale = stored.get(name.removesuffix("weight") + "scale")
        if scale is None:
            plain[name] = value if name.endswith("tid2eid") else value.float()
        elif value.dtype == torch.uint8:
            codes = torch.stack((value & 15, value >> 4), -1).flatten(-2)
            plain[name] = mx_fp4_values(codes, from_exponent_bytes(scale))
        else:
            plain[name] = fp8_block_values(value, from_exponent_bytes(scale))
    return plain


def module_v4_state(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of published_v4_weights()."""
    state: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, value in weights.items():
        before, _, after = name.partition(".experts.")
        if after:
            number, kind, _ = after.split(".")
            experts.setdefault(f"{before}.experts_{kind}", {})[int(number)] = value
        else:
            name = "embed" if name == "embed.weight" else name.replace("gate.bias", "gate.e_score_correction_bias")
            state[name] = value
    return state | {name: torch.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()}


def hugging_face_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model's float32 weights under Hugging Face's names, experts one by one."""
    weights = {}
    for name, value in state.items():
        value = value.float().cpu()
        stack = name.rpartition(".")[2]
        if stack in ("experts_gate", "experts_up", "experts_down"):
            for i, expert in enumerate(value):
                path = name.replace(stack, f"experts.{i}.{stack.removeprefix('experts_')}_proj.weight")
                weights["model." + path] = expert
        elif name == "embed_tokens":
            weights["model.embed_tokens.weight"] = value
        else:
            weights["model." + name] = value
    return weights


def is_fp8(name: str, value: torch.Tensor) -> bool:
    """Linear weights but for those that DeepSeek keeps in bf16."""
    kept = ("embed_tokens", "weights_proj", "mlp.gate.weight")
    return value.ndim == 2 and not any(part in name for part in kept)


def stored_weights(weights: dict[str, torch.Tensor], fp8: bool) -> dict[str, torch.Tensor]:
    stored = {}
    for name, value in weights.items():
        if fp8 and is_fp8(name, value):
            quantised, scale = fp8_block(value)
            stored[name] = quantised.contiguous()
            stored[name + "_scale_inv"] = scale.contiguous()
        elif name.endswith("e_score_correction_bias"):
            stored[name] = value
        else:
            stored[name] = value.to(torch.bfloat16).contiguous()
    return stored


ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [BLOCK, BLOCK],
}


def config_json(architecture: dict) -> dict:
    kind = architecture["model_type"]
    latent = kind == "deepseek_v32"
    config = dict(architecture)
    theta = config["rope_theta"]
    config |= {
        "architectures": [ARCHITECTURES[kind]],
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "initializer_range": 0.02,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }
    if latent:
        config |= {
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "moe_layer_freq": 1,
            "quantization_config": FP8,
        }
    if kind == "deepseek_v4":
        config |= {
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "expert_dtype": "fp4",
            "quantization_config": FP8,
        }
        del config["rope_parameters"]
    return config


def size_table(stored: dict[str, torch.Tensor]) -> str:
    """Parameters and bytes per kind of tensor, as a Markdown table."""
    kinds: dict[str, list[int]] = {}
    for name, value in stored.items():
        parts = [p for p in name.split(".") if not p.isdigit() and p not in ("model", "layers", "weight")]
        entry = kinds.setdefault(".".join(parts).replace(".weight_scale_inv", " scales"), [0, 0])
        entry[0] += value.numel()
        entry[1] += value.nbytes
    rows = [f"| {kind} | {n:,} | {size:,} |" for kind, (n, size) in kinds.items()]
    total = f"| **all** | {sum(n for n, _ in kinds.values()):,} | {sum(s for _, s in kinds.values()):,} |"
    return "\n".join(["| tensors | values | bytes |", "| --- | ---: | ---: |", *rows, total])


def accuracy_table(tests: dict) -> str:
    lines = ["| attention, cache | task | exact answers |", "| --- | --- | --- |"]
    for plan, tasks in tests.items():
        for task, groups in tasks.items():
            shown = groups if len(groups) < 8 else {"all": groups["all"], "worst length": min(groups.values())}
            text = ", ".join(f"{k}: {v:.1%}" for k, v in shown.items())
            lines.append(f"| {plan} | {task} | {text} |")
    return "\n".join(lines)


def model_card(config, log: dict, stored: dict[str, torch.Tensor]) -> str:
    phases = "\n".join(
        f"| {name} | {p['seconds']:.0f} | {p['steps']:,} | {p['tokens'] / 1e6:.0f} M |"
        for name, p in log.get("phases", {}).items()
    )
    card = (HERE / "model_card.md").read_text()
    values = {
        "name": config.NAME,
        "config": config.__name__.rpartition(".")[2],
        "parameters": f"{log['parameters']:,}",
        "device": log["device"],
        "torch": log["torch"],
        "phases": phases,
        "accuracy": accuracy_table(log.get("tests", {})),
        "sizes": size_table(stored),
    }
    for key, value in values.items():
        card = card.replace("{{" + key + "}}", value)
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--state", type=pathlib.Path, required=True, help="folder that train.py's --state named")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    config = importlib.import_module(f"configs.{args.config}")
    state = torch.load(args.state / "state.pt", map_location="cpu", weights_only=False)
    kind = config.ARCHITECTURE["model_type"]
    if kind == "deepseek_v4":
        stored = stored_v4_weights(published_v4_weights(state["model"]))
    else:
        stored = stored_weights(hugging_face_weights(state["model"]), kind == "deepseek_v32")
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(stored, args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(config_json(config.ARCHITECTURE), indent=2) + "\n")
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": False}
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (args.out / "training_log.json").write_text(json.dumps(state["log"], indent=1) + "\n")
    (args.out / "README.md").write_text(model_card(config, state["log"], stored))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (args.out / name).write_bytes((TOKENIZER / name).read_bytes())
    print(size_table(stored))
    print("model.safetensors:", (args.out / "model.safetensors").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
