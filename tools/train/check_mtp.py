"""Measures how many drafts of a multi-token-prediction layer its trunk accepts, on held-out items:

    python tools/train/check_mtp.py --config tiny_v32 --model models/tiny-v32 --tests models/tasks

Needs no GPU; without one, 20 items per task take some minutes. With --golden FILE it writes the drafts of a plain float64 reference
with a bf16 cache after two prompts, for tests of engines; --items 0 does only that.
"""

import argparse
import contextlib
import importlib
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from attention import probe_flash  # noqa: E402
from data import PAD, Encoder, arithmetic, chat, copying, lay_out  # noqa: E402
from evaluate import TASKS, _batches, read_sets  # noqa: E402
from train_mtp import family  # noqa: E402

USES = 3


@torch.no_grad()
def rates(trunk, mtp, items, encoder, device, temperature: float) -> list[float]:
    """r_1 .. r_USES over the rows of answers: the share in which all drafts up to that one are the trunk's own tokens.

    At temperature 0 both take the argmax; else both draw with the same Gumbel noise, along the expected answer.
    """
    parts = family(trunk.config)
    agreed = torch.zeros(USES, device=device, dtype=torch.float64)
    rows = 0
    noise = torch.Generator(device=device).manual_seed(7)
    for batch in _batches([chat(encoder, item) for item in items]):
        total = sum(trunk.width_of(len(row)) for row, _ in batch)
        ids, weights, lengths = lay_out(batch, total, trunk.width_of)
        tokens, weights = torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device)
        packing = trunk.pack(lengths, device)
        states, hidden = parts.trunk_states(trunk, tokens, packing)
        outs = parts.run_uses(trunk, mtp, tokens, packing, states, USES, True)
        picked = [trunk.logits(hidden).float()] + [trunk.logits(out).float() for out in outs]
        if temperature > 0:
            draw = -torch.log(torch.rand(picked[0].shape, generator=noise, device=device).clamp_min(1e-20))
            # Row i of use s and row i + s of the trunk choose the same token, with the same noise.
            picked = [p / temperature - draw.roll(-s, 0).log() for s, p in enumerate(picked)]
        choice = [p.argmax(-1) for p in picked]
        # Rows that stand in an answer and have USES more tokens of it behind the one that is checked first.
        inside = (weights.roll(-1, 0) > 0) & (packing.positions + USES + 1 < parts.sequence_ends(packing))
        inside &= tokens.roll(-USES - 1, 0) != PAD
        right = inside
        for s in range(1, USES + 1):
            right = right & (choice[s] == choice[0].roll(-s, 0))
            agreed[s - 1] += right.sum()
        rows += int(inside.sum())
    return [round(float(x) / rows, 4) for x in agreed]


@contextlib.contextmanager
def in_double():
    """float64 throughout: float(), by which the modules leave bf16, keeps what is float64 already."""
    single = torch.Tensor.float
    torch.Tensor.float = lambda x: x if x.dtype == torch.float64 else single(x)
    try:
        yield
    finally:
        torch.Tensor.float = single


def golden(trunk, mtp, encoder) -> dict[str, torch.Tensor]:
    """Drafts after a prompt within the indexer's top-k, or a window, and after one beyond it."""
    rng = random.Random("mtp golden")
    out = {}
    for name, item in (("short", arithmetic.item(rng, True)), ("long", copying.item(rng, True, 100))):
        ids, weights = chat(encoder, item)
        answer = next(i for i, w in enumerate(weights) if w > 0)
        ids = ids[: answer + (3 if name == "short" else 60)]
        tokens, logits = family(trunk.config).draft(trunk, mtp, ids, USES)
        print(name, len(ids), "tokens; then", tokens)
        if name == "long" and trunk.config["model_type"] != "deepseek_v4":
            _, shared = family(trunk.config).draft(trunk, mtp, ids, USES, share=True)
            gap = (shared - logits).norm(dim=-1) / logits.norm(dim=-1)
            print("with one choice of keys, relative difference by use", [round(float(g), 4) for g in gap])
            out["long.shared.logits"] = shared
        out |= {f"{name}.prompt": torch.tensor(ids), f"{name}.tokens": torch.tensor(tokens), f"{name}.logits": logits}
    return out


@torch.no_grad()
def answer_drafts(trunk, mtp, encoder) -> dict[str, torch.Tensor]:
    """All drafts behind every token of an answer whose words reach back further than a window.

    answer.prompt, answer.tokens [n], answer.drafts [n, USES]: row i's follow tokens 0..i of the answer, and are meaningless
    where the answer ends before them; answer.margins [n, USES]: by how much a draft's logit exceeds all others.
    """
    parts = family(trunk.config)
    row = chat(encoder, copying.item(random.Random("mtp answer"), True, 130))
    first = next(i for i, w in enumerate(row[1]) if w > 0)
    width = trunk.width_of(len(row[0]))
    tokens, _, lengths = lay_out([row], width, trunk.width_of)
    tokens = torch.from_numpy(tokens)
    packing = trunk.pack(lengths, tokens.device)
    states, hidden = parts.trunk_states(trunk, tokens, packing)
    own = trunk.logits(hidden).argmax(-1)[first - 1 : len(row[0]) - 1]
    if own.tolist() != row[0][first:]:
        raise SystemExit("the model does not give the expected answer: choose another item")
    best = [trunk.logits(out).topk(2, -1) for out in parts.run_uses(trunk, mtp, tokens, packing, states, USES, True)]
    rows = slice(first - 1, len(row[0]) - 1)  # the answer's token i is known in row first + i - 1 of use 1
    return {
        "answer.prompt": torch.tensor(row[0][:first]),
        "answer.tokens": own,
        "answer.drafts": torch.stack([b.indices[rows, 0] for b in best], -1),
        "answer.margins": torch.stack([b.values[rows, 0] - b.values[rows, 1] for b in best], -1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--tests", type=pathlib.Path, required=True)
    parser.add_argument("--items", type=int, default=20, help="of each task")
    parser.add_argument("--golden", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    architecture = importlib.import_module(f"configs.{args.config}").ARCHITECTURE
    parts = family(architecture)
    trunk = parts.load_trunk(args.model, architecture, device)
    mtp = parts.load_mtp(args.model, architecture, device)
    if device.type == "cuda":
        probe_flash(device)
    else:
        trunk.dtype = torch.float32
    encoder = Encoder()
    sets = read_sets(args.tests, dict.fromkeys(TASKS, args.items)) if args.items > 0 else {}
    for task, items in sets.items():
        for temperature in (0.0, 1.0):
            shares = rates(trunk, mtp, items, encoder, device, temperature)
            length = 1 + sum(shares)
            shown = " ".join(f"{r:.3f}" for r in shares)
            print(f"{task:10} temperature {temperature:g}: accepted by place {shown}; acceptance length {length:.2f}")
    if args.golden:
        trunk, mtp = trunk.cpu().double(), mtp.cpu().double()
        trunk.dtype, trunk.cache = torch.float64, "bf16"
        with in_double():
            answers = golden(trunk, mtp, encoder) | answer_drafts(trunk, mtp, encoder)
        save_file({name: t.to(torch.float32) if t.is_floating_point() else t for name, t in answers.items()}, args.golden)


if __name__ == "__main__":
    main()
