"""Trains one reference checkpoint from scratch: python tools/train/train.py --config tiny_v32 --phases dense

Phases come from the configuration (configs/*.py). A phase lasts a given time, not a number of steps: learning rate,
document lengths and cache noise follow the elapsed share of that time, so that a slower GPU runs the same schedule in
fewer steps. The state is saved every minute; --resume continues from it.
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

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from attention import probe_flash  # noqa: E402
from data import Batches  # noqa: E402
from evaluate import Probe, evaluate  # noqa: E402
from model import Model, balance  # noqa: E402
from model_v4 import ModelV4  # noqa: E402
from muon import Muon  # noqa: E402

UNTIMED_STEPS = 3  # compilation and the allocator's growth happen here
BALANCE_RATE = 1e-3
PROBE_SECONDS = 20
WEIGHT_DECAY = 0.1  # on matrices


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="a module of configs/, for example tiny_v32")
    parser.add_argument("--phases", default="", help="comma-separated; default: all of the configuration")
    parser.add_argument("--seconds", action="append", default=[], metavar="PHASE=S", help="another length for a phase")
    parser.add_argument("--limit", type=float, default=560, help="end of training, seconds from the process's start")
    parser.add_argument("--state", type=pathlib.Path, required=True, help="folder of the state that --resume reads")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--tests", type=pathlib.Path, help="folder of the test sets: probes, and figures at the end")
    parser.add_argument("--eval-items", type=int, default=1000)
    parser.add_argument("--eval-seconds", type=float, default=90)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--tokens", type=int, help="tokens per step, instead of the configuration's")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def build(architecture: dict):
    return (ModelV4 if architecture["model_type"] == "deepseek_v4" else Model)(architecture)


def weighted_loss(model: Model, hidden: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of predicting each next token, by that token's weight."""
    logits = model.logits(hidden[:-1]).float()
    losses = F.cross_entropy(logits, tokens[1:], reduction="none")
    return (losses * weights[1:]).sum() / weights[1:].sum().clamp_min(1.0)


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.began = time.monotonic()
        self.config = importlib.import_module(f"configs.{args.config}")
        self.device = torch.device(args.device)
        torch.manual_seed(1)
        self.model = build(self.config.ARCHITECTURE).to(self.device)
        if self.device.type == "cpu":
            self.model.dtype = torch.float32
        self.log: dict = {"name": self.config.NAME, "parameters": self.count(), "curve": [], "phases": {}}
        self.log["device"] = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        self.log["torch"] = torch.__version__
        self.done: dict[str, float] = {}  # seconds spent per phase
        self.steps: dict[str, int] = {}
        self.optimizer_states = (None, [])
        self.loss = weighted_loss
        self.probe = Probe(args.tests, self.device, args.eval_items) if args.tests else None
        self.compiled = False
        args.state.mkdir(parents=True, exist_ok=True)
        if args.resume and (args.state / "state.pt").exists():
            self.load()
        elif args.resume:
            raise SystemExit(f"--resume: no state.pt in {args.state}")

    def count(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f}s] {text}", flush=True)

    # State

    def load(self) -> None:
        state = torch.load(self.args.state / "state.pt", map_location=self.device, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.log, self.done, self.steps = state["log"], state["done"], state["steps"]
        self.optimizer_states = state["optimizers"]
        self.say(f"resumed; seconds spent per phase: {self.done}")

    def save(self, phase: str | None, optimizers: list[torch.optim.Optimizer]) -> None:
        state = {
            "model": self.model.state_dict(),
            "log": self.log,
            "done": self.done,
            "steps": self.steps,
            "optimizers": (phase, [o.state_dict() for o in optimizers]),
        }
        scratch = self.args.state / "state.tmp"
        torch.save(state, scratch)
        scratch.rename(self.args.state / "state.pt")

    # Training

    def optimizers(self, phase: dict) -> list[torch.optim.Optimizer]:
        """Muon for matrices and stacks of them, AdamW for the embedding, the routers and vectors."""
        adam_only = set(map(id, self.model.adam_parameters()))
        index = set(map(id, self.model.indexer_parameters())) if self.model.has_indexer else set()
        muon, adam = [], []
        for rate, chosen in (
            (phase["rate"], [p for p in self.model.parameters() if id(p) not in index]),
            (phase["index_rate"], [p for p in self.model.parameters() if id(p) in index]),
        ):
            for parameter in chosen:
                parameter.requires_grad_(rate > 0)
            if rate == 0:
                continue
            matrices = [p for p in chosen if id(p) not in adam_only]
            others = [p for p in chosen if p.ndim > 1 and id(p) in adam_only]
            vectors = [p for p in chosen if p.ndim == 1]
            muon.append({"params": matrices, "weight_decay": WEIGHT_DECAY, "peak": rate})
            adam.append({"params": others, "weight_decay": WEIGHT_DECAY, "peak": rate})
            adam.append({"params": vectors, "weight_decay": 0.0, "peak": rate})
        fused = self.device.type == "cuda"
        adam = [g for g in adam if g["params"]]
        return [
            Muon(muon, phase["rate"]),
            torch.optim.AdamW(adam, lr=phase["rate"], betas=(0.9, 0.95), eps=1e-10, fused=fused),
        ]

    def compile(self) -> None:
        if self.args.no_compile or self.compiled or self.device.type != "cuda":
            return
        try:
            torch._dynamo.config.cache_size_limit = 64
            torch._dynamo.config.suppress_errors = True  # a frame that fails to compile runs as it is
            torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=self.device))
            self.model.compile()
            self.loss = torch.compile(weighted_loss, dynamic=False)
            self.compiled = True
        except Exception as error:  # no compiler or no Triton on the machine: run uncompiled
            self.say(f"torch.compile is not available here ({type(error).__name__}); running uncompiled")

    def run_phase(self, name: str, seconds: float) -> None:
        phase = self.config.PHASES[name]
        args, model = self.args, self.model
        tokens = args.tokens or phase["tokens"]
        model.index_rows = phase.get("index_rows", 0)
        model.sparse = name == "sparse"
        model.set_weight_rounding(phase.get("fp8", False))
        model.set_index_quantise(phase.get("fp8", False))
        optimizers = self.optimizers(phase)
        if self.optimizer_states[0] == name:
            for optimizer, kept in zip(optimizers, self.optimizer_states[1], strict=True):
                optimizer.load_state_dict(kept)
        self.optimizer_states = (None, [])
        if phase["rate"] > 0:
            self.compile()
        spent, step = self.done.get(name, 0.0), self.steps.get(name, 0)
        batches = Batches(f"{self.config.NAME} {name} {step}", tokens, self.config.MIXTURE, args.workers, model.width_of)
        pick = random.Random(f"cache {name} {step}")
        shares = model.cache_shares
        batches.set_progress(1.0 if name != "dense" else spent / seconds)
        self.say(f"phase {name}: {seconds:.0f} s, {tokens} tokens a step, {args.workers} workers")
        sums: dict[str, torch.Tensor] = {}
        begun = reported = saved = probed = time.monotonic()
        reported_step = first = step
        progress = spent / seconds
        while True:
            if step == first + UNTIMED_STEPS:
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                self.say(f"first {UNTIMED_STEPS} steps took {time.monotonic() - begun:.1f} s")
                begun = reported = probed = time.monotonic()
                reported_step = step
                sums, batches.waited = {}, 0
            now = time.monotonic()
            if step >= first + UNTIMED_STEPS:
                # The time that the limit leaves may be less than the phase asks for.
                room = min(seconds - spent, self.began + args.limit - begun)
                progress = (spent + now - begun) / (spent + max(room, 1e-3))
                batches.set_progress(1.0 if name != "dense" else progress)
                if progress >= 1:
                    break
            factor = min(1.0, (step + 1) / phase["warm_up"])
            factor *= phase["floor"] + (1 - phase["floor"]) * 0.5 * (1 + math.cos(math.pi * min(progress, 1)))
            for group in (g for o in optimizers for g in o.param_groups):
                group["lr"] = group["peak"] * factor
            model.cache = "none"
            if progress >= phase.get("cache_from", 2):
                model.cache = pick.choices(list(shares), list(shares.values()))[0]
            for key, value in self.step(model, optimizers, batches).items():
                sums[key] = sums.get(key, 0) + value
            step += 1
            now = time.monotonic()
            if now - reported > 10 and step > first + UNTIMED_STEPS:
                count = step - reported_step
                means = {k: float(v) / count for k, v in sums.items()}
                now = time.monotonic()
                speed = count * tokens / (now - reported)
                self.log["curve"].append(
                    {"phase": name, "step": step, "progress": round(progress, 4), "tokens_per_s": round(speed)}
                    | {k: round(v, 5) for k, v in means.items()}
                )
                shown = " ".join(f"{k} {v:.4f}" for k, v in means.items())
                self.say(
                    f"{name} {progress:6.1%} step {step} {shown} | {speed / 1e6:.3f} M tok/s, lr x{factor:.3f},"
                    f" starved {batches.waited}, {self.memory()}"
                )
                batches.waited = 0
                sums, reported, reported_step = {}, now, step
            timed = step > first + UNTIMED_STEPS
            if self.probe and timed and phase["rate"] > 0 and now - probed > PROBE_SECONDS:
                with model.uncompiled():
                    figures = {k: round(v, 5) for k, v in self.probe(model).items()}
                self.log["curve"].append({"phase": name, "step": step, "progress": round(progress, 4)} | figures)
                self.say("probe: " + " ".join(f"{k} {v:.4f}" for k, v in figures.items()))
                probed = now
            if now - saved > 60:
                self.done[name], self.steps[name] = spent + now - begun, step
                self.save(name, optimizers)
                saved = now
        self.done[name], self.steps[name] = seconds, step
        self.log["phases"][name] = {
            "seconds": round(spent + time.monotonic() - begun, 1),
            "steps": step,
            "tokens": step * tokens,
        }
        batches.close()
        model.cache, model.index_rows = "none", 0
        self.save(None, [])
        self.say(f"phase {name} done: {step} steps, {step * tokens / 1e6:.0f} M tokens")

    def step(self, model: Model, optimizers: list, batches: Batches) -> dict[str, torch.Tensor]:
        ids, weights, lengths = batches.next()
        tokens, weights = self.to_device(ids), self.to_device(weights)
        packing = self.model.pack(lengths, self.device, weights)
        stats: dict[str, list] = {}
        hidden = model(tokens, packing, stats)
        shown = {}
        total = 0.0
        if hidden.requires_grad:
            loss = self.loss(model, hidden, tokens, weights)
            total = total + loss
            shown["loss"] = loss.detach()
        if "index_loss" in stats:
            index_loss = torch.stack(stats["index_loss"])
            total = total + index_loss.sum()
            shown["kl"] = index_loss.detach().mean()
            shown["mass"] = torch.stack(stats["index_mass"]).mean()
            shown["least_mass"] = torch.stack(stats["index_mass"]).min()
        total.backward()
        parameters = [p for o in optimizers for g in o.param_groups for p in g["params"]]
        shown["norm"] = torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if "load" in stats and hidden.requires_grad:
            loads = [x.detach() for x in stats["load"]]
            balance(model, loads, BALANCE_RATE)
            shown["top_load"] = torch.stack(loads).max()
        return shown

    def to_device(self, array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def memory(self) -> str:
        if self.device.type != "cuda":
            return "cpu"
        return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"


def main() -> None:
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args)
    if trainer.device.type == "cuda":
        trainer.say(f"{trainer.log['device']}, flash: {probe_flash(trainer.device)}")
    trainer.say(f"{trainer.log['name']}: {trainer.count()} parameters")
    lengths = {n: p["seconds"] for n, p in trainer.config.PHASES.items()}
    for change in args.seconds:
        name, _, value = change.partition("=")
        if name not in lengths:
            raise SystemExit(f"--seconds {change}: wanted one of {', '.join(lengths)}, offered {name!r}")
        lengths[name] = float(value)
    for name in args.phases.split(",") if args.phases else lengths:
        if trainer.done.get(name, 0) < lengths[name]:
            trainer.run_phase(name, lengths[name])
    if args.tests:
        trained_sparse = "sparse" in trainer.done
        trainer.model.sparse = trained_sparse
        trainer.model.set_weight_rounding(trained_sparse)
        trainer.model.set_index_quantise(trained_sparse)
        with trainer.model.uncompiled():
            trainer.log["tests"] = evaluate(
                trainer.model, args.tests, args.eval_items, trainer.device, trainer.say, args.eval_seconds
            )
        trainer.save(None, [])


if __name__ == "__main__":
    main()
