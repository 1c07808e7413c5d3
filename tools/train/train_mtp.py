"""Trains a checkpoint's multi-token-prediction layer behind its frozen trunk, on a GPU in one to five minutes:

    python tools/train/train_mtp.py --config tiny_v32 --model models/tiny-v32 --out out/mtp

Writes mtp.safetensors and mtp_log.json; check_mtp.py measures how many drafts are accepted. The loss of a use is half
cross-entropy of the token, half the divergence from the trunk's own distribution, which determines acceptance at
temperature 1. The layer's indexer, if it has one, learns from its own loss, as in train.py.
"""

import argparse
import importlib
import json
import math
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mtp as mtp_v32  # noqa: E402
import mtp_v4  # noqa: E402
from attention import probe_flash  # noqa: E402
from data import PAD, Batches  # noqa: E402
from model import balance  # noqa: E402
from muon import Muon  # noqa: E402
from train import BALANCE_RATE, WEIGHT_DECAY  # noqa: E402

USE_WEIGHTS = (1.0, 0.7, 0.5)
PROMPT_WEIGHT = 0.1  # of a row whose token is no part of an answer
# Copying is what the layer learns last: it must find a word's place through the trunk's final state alone.
MIXTURE = {"arithmetic": 0.35, "retrieval": 0.35, "copy": 0.3}
# rates of the layer and of its indexer; index: queries per sequence for the indexer's loss. The first phase teaches one
# use over dense attention, which is many times cheaper; "round" passes weights and keys through the stored formats.
PHASES = {
    "deepseek_v32": {
        "first": {"seconds": 60, "uses": 1, "rate": 3e-3, "index_rate": 0.0, "index": 0, "floor": 0.3},
        "dense": {"seconds": 40, "uses": 3, "rate": 1e-3, "index_rate": 0.0, "index": 0, "floor": 0.3},
        "index": {"seconds": 60, "uses": 1, "rate": 0.0, "index_rate": 2e-3, "index": 64, "floor": 0.2},
        "sparse": {"seconds": 140, "uses": 3, "rate": 5e-4, "index_rate": 1e-3, "index": 64, "floor": 0.02, "round": True},
    },
    "deepseek_v4": {
        "first": {"seconds": 80, "uses": 1, "rate": 3e-3, "index_rate": 0.0, "index": 0, "floor": 0.3},
        "chain": {"seconds": 50, "uses": 3, "rate": 1e-3, "index_rate": 0.0, "index": 0, "floor": 0.02, "round": True},
    },
}


def family(architecture: dict):
    """The module that knows the architecture's layer: mtp or mtp_v4."""
    return mtp_v4 if architecture["model_type"] == "deepseek_v4" else mtp_v32


def use_loss(trunk, out, trunk_hidden, tokens, weights, packing, s: int) -> torch.Tensor:
    """Row i's prediction of token i+s+1, against that token and the trunk's distribution for it in row i+s."""
    known = packing.positions + s + 1 < family(trunk.config).sequence_ends(packing)
    target = tokens.roll(-s - 1, 0)
    weight = torch.where(weights.roll(-s - 1, 0) > 0, 1.0, PROMPT_WEIGHT) * known * (target != PAD)
    logits = trunk.logits(out).float()
    with torch.no_grad():
        trunk_log = trunk.logits(trunk_hidden.roll(-s, 0)).float().log_softmax(-1)
    own_log = logits.log_softmax(-1)
    entropy = F.nll_loss(own_log, target, reduction="none")
    divergence = (trunk_log.exp() * (trunk_log - own_log)).sum(-1)
    return (weight * 0.5 * (entropy + divergence)).sum() / weight.sum().clamp_min(1)


def optimizers(mtp, phase: dict) -> list[torch.optim.Optimizer]:
    adam_only = set(map(id, mtp.adam_parameters()))
    muon, adam = [], []
    for inside, rate in ((False, phase["rate"]), (True, phase["index_rate"])):
        chosen = [p for n, p in mtp.named_parameters() if (".indexer." in n) == inside]
        for parameter in chosen:
            parameter.requires_grad_(rate > 0)
        if rate == 0 or not chosen:
            continue
        matrices = [p for p in chosen if id(p) not in adam_only]
        muon.append({"params": matrices, "weight_decay": WEIGHT_DECAY, "peak": rate})
        adam.append({"params": [p for p in chosen if id(p) in adam_only], "peak": rate})
    return [Muon(muon, 1.0), torch.optim.AdamW(adam, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)]


def train_phase(title: str, name: str, seconds: float, trunk, mtp, device, args, log: dict) -> None:
    phase = PHASES[trunk.config["model_type"]][name]
    parts, rounding = family(trunk.config), phase.get("round", False)
    mtp.set_rounding(rounding)
    trunk.sparse = False  # its hidden states are nearly the same, and much sooner there
    steppers = optimizers(mtp, phase)
    parameters = [p for o in steppers for g in o.param_groups for p in g["params"]]
    batches = Batches(f"{title} mtp {name}", args.tokens, MIXTURE, args.workers, trunk.width_of)
    pick = random.Random(f"mtp cache {name}")
    shares = trunk.cache_shares
    begun = reported = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - begun) / seconds) < 1:
        batches.set_progress(progress if name == "first" else 1.0)
        factor = phase["floor"] + (1 - phase["floor"]) * 0.5 * (1 + math.cos(math.pi * progress))
        factor *= min(1.0, (step + 1) / 30)
        for group in (g for o in steppers for g in o.param_groups):
            group["lr"] = group["peak"] * factor
        ids, weights, lengths = batches.next()
        tokens, weights = torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device)
        packing = trunk.pack(lengths, device, weights)
        trunk.cache = pick.choices(list(shares), list(shares.values()))[0] if rounding else "none"
        with torch.no_grad():
            states, hidden = parts.trunk_states(trunk, tokens, packing)
        stats: dict = {}
        outs = parts.run_uses(trunk, mtp, tokens, packing, states, phase["uses"], rounding, phase["index"], stats)
        total = torch.zeros((), device=device)
        losses = []
        if phase["rate"] > 0:
            for s, out in enumerate(outs, 1):
                losses.append(use_loss(trunk, out, hidden, tokens, weights, packing, s))
                total = total + USE_WEIGHTS[s - 1] * losses[-1]
        if phase["index"]:
            total = total + stats["index_loss"]
        total.backward()
        torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        if phase["rate"] > 0:
            balance(mtp, [torch.stack([x.detach() for x in stats["load"]]).mean(0)], BALANCE_RATE)
        step += 1
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            entry = {"phase": name, "step": step, "losses": [round(float(x.detach()), 4) for x in losses]}
            if phase["index"]:
                entry["mass"] = round(float(stats["index_mass"]), 4)
            log["curve"].append(entry)
            print(entry, f"starved {batches.waited}", flush=True)
    batches.close()
    trunk.cache = "none"
    log["phases"][name] = {"seconds": seconds, "steps": step, "tokens": step * args.tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="a module of configs/: tiny_v32 or tiny_v4")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of each phase's time")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32768, help="tokens per step")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = importlib.import_module(f"configs.{args.config}")
    architecture, parts = config.ARCHITECTURE, family(config.ARCHITECTURE)
    trunk = parts.load_trunk(args.model, architecture, device)
    if device.type == "cuda":
        probe_flash(device)
    else:
        trunk.dtype = torch.float32
    mtp = parts.MtpLayer(architecture).to(device)
    mtp.start_from(trunk)
    log: dict = {"parameters": sum(p.numel() for p in mtp.parameters()), "curve": [], "phases": {}}
    log["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    for name, phase in PHASES[architecture["model_type"]].items():
        train_phase(config.NAME, name, phase["seconds"] * args.share, trunk, mtp, device, args, log)
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(parts.published(mtp), args.out / "mtp.safetensors", metadata={"format": "pt"})
    (args.out / "mtp_log.json").write_text(json.dumps(log, indent=1) + "\n")
    for path in sorted(args.out.iterdir()):
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
