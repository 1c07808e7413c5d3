"""Compares an exported checkpoint, loaded by Hugging Face transformers, with the training model's own logits.

Both run in float32 on the decoded weights over one prompt per task, with the indexer's top-k and, to compare the rest
strictly, with a top-k that keeps every position. Exits with 1 if the logits differ by more than the tolerance.
"""

import argparse
import importlib
import json
import pathlib
import random
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from data import Encoder, arithmetic, chat, copying, lay_out, retrieval  # noqa: E402
from export import ARCHITECTURES, decoded_v4_weights, module_v4_state, published_v4_weights, stored_v4_weights  # noqa: E402
from train import build  # noqa: E402
from quantise import fp8_block_values  # noqa: E402

TOLERANCE = 1e-3  # of the largest logit


def decode(folder: pathlib.Path, out: pathlib.Path) -> None:
    """The checkpoint with float32 weights and no quantisation."""
    stored = load_file(folder / "model.safetensors")
    v4 = "embed.weight" in stored
    plain = decoded_v4_weights(stored) if v4 else {}
    for name, value in stored.items() if not v4 else ():
        if name.endswith("_scale_inv"):
            continue
        scale = stored.get(name + "_scale_inv")
        plain[name] = value.float() if scale is None else fp8_block_values(value, scale)
    save_file(plain, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    config.pop("expert_dtype", None)
    config["torch_dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--state", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the exported folder")
    parser.add_argument("--tokens", type=int, default=1024, help="length of the retrieval prompt")
    args = parser.parse_args()
    import transformers

    architecture = importlib.import_module(f"configs.{args.config}").ARCHITECTURE
    state = torch.load(args.state / "state.pt", map_location="cpu", weights_only=False)["model"]
    latent = architecture["model_type"] == "deepseek_v32"
    v4 = architecture["model_type"] == "deepseek_v4"
    own = build(architecture)
    # The checkpoint rounds what it keeps unquantised to bf16.
    rounded = {
        k: v.float() if "correction_bias" in k else v.to(torch.bfloat16).float()
        for k, v in state.items()
        if not latent or v.ndim == 1 or k == "embed_tokens" or "weights_proj" in k or k.endswith("mlp.gate.weight")
    }
    if v4:  # its linears and experts are rounded as in training
        stored = stored_v4_weights(published_v4_weights(state))
        rounded = module_v4_state({k: v.float() for k, v in stored.items() if v.dtype == torch.bfloat16})
    own.load_state_dict(state | rounded)
    own.dtype, own.sparse = torch.float32, own.has_indexer
    own.set_weight_rounding(own.has_indexer)
    kind = getattr(transformers, ARCHITECTURES[architecture["model_type"]])
    encoder = Encoder()
    rng = random.Random("check export")
    prompts = {
        "arithmetic": arithmetic.item(rng, True),
        "copy": copying.item(rng, True, 100),
        "retrieval": retrieval.item(rng, True, args.tokens),
    }
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        decode(args.model, pathlib.Path(scratch))
        theirs, report = kind.from_pretrained(scratch, dtype=torch.float32, output_loading_info=True)
        theirs.eval()
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            left = [k for k in report[key] if k != "lm_head.weight"]
            print(f"{key}: {left or 'none'}")
            failed |= bool(left)
        whole = architecture["max_position_embeddings"]
        for topk in (whole, architecture["index_topk"]) if own.has_indexer else (whole,):
            own.config = architecture | {"index_topk": topk}
            for module in theirs.modules():
                if type(module).__name__.endswith("Indexer"):
                    module.index_topk = topk
            for task, item in prompts.items():
                row = chat(encoder, item)
                ids = torch.tensor(row[0])
                padded, _, lengths = lay_out([row], own.width_of(len(ids)), own.width_of)
                with torch.no_grad():
                    a = own.logits(own(torch.from_numpy(padded), own.pack(lengths, "cpu")))[: len(ids)]
                    b = theirs(ids[None]).logits[0]
                gap = (a - b).abs().amax(-1) / b.abs().max()  # per token
                far = (gap > TOLERANCE).float().mean()
                agree = (a.argmax(-1) == b.argmax(-1)).float().mean()
                print(
                    f"top-k {topk:4} {task:10} {len(ids):5} tokens: gap of the largest logit median {gap.median():.1e},"
                    f" largest {gap.max():.1e}, beyond {TOLERANCE:g} {far:.2%}; same choice {agree:.2%}"
                )
                # Where top-k cuts, rounding may swap two nearly equal scores, and later tokens follow; most must agree.
                failed |= bool(far > 0 if topk == whole else gap.median() > TOLERANCE)
    print("FAILED" if failed else "equal")
    sys.exit(failed)


if __name__ == "__main__":
    main()
