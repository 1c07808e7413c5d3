"""Exact-match accuracy on the held-out test sets.

An item counts as right when, at every token of its expected response and at its end, the model's most likely token is
the expected one. Greedy decoding then yields exactly that response, so this is what generation would score when marked
on the whole text; it is a lower bound where only the final answer is marked. One pass over prompt and response suffices.
"""

import pathlib
import time

import torch

from attention import Packing
from data import Encoder, chat, read_test_set
from model import Model
from quantise import GROUPED_CACHES, LATENT_CACHES

TOKENS_AT_ONCE = 32768
TASKS = ("arithmetic", "retrieval", "copy")


@torch.no_grad()
def _right(model: Model, rows: list[tuple[list[int], list[float]]], device) -> list[bool]:
    """Which of the packed chats the model would answer exactly."""
    ids = torch.tensor([t for row, _ in rows for t in row], device=device)
    answers = torch.tensor([w >= 1.0 for _, weights in rows for w in weights], device=device)
    lengths = [len(row) for row, _ in rows]
    hidden = model(ids, Packing(lengths, device))
    guess = torch.cat([model.logits(part).argmax(-1) for part in hidden.split(8192)])
    wrong = answers.clone()
    wrong[1:] &= guess[:-1] != ids[1:]
    return [not bool(part.any()) for part in wrong.cpu().split(lengths)]


def _score(model: Model, items: list[dict], rows, device) -> dict[str, float]:
    """Accuracy over all items and, where items carry a "length" or "steps", for each value of it."""
    results: list[bool] = []
    batch: list = []
    for row in rows:
        if batch and sum(len(ids) for ids, _ in batch) + len(row[0]) > TOKENS_AT_ONCE:
            results += _right(model, batch, device)
            batch = []
        batch.append(row)
    results += _right(model, batch, device)
    groups: dict[str, list[bool]] = {"all": results}
    for item, right in zip(items, results):
        groups.setdefault(str(item.get("length", item.get("steps", "all"))), []).append(right)
    return {k: sum(v) / len(v) for k, v in groups.items()}


def evaluate(model: Model, folder: pathlib.Path, limit: int, device, say, seconds: float) -> dict:
    """{attention and cache: {task: {group: accuracy}}}; the plain cache on `limit` items, others on a share of them.

    After `seconds` no further combination is started.
    """
    end = time.monotonic() + seconds
    encoder = Encoder()
    sets = {}
    for task in TASKS:
        items = read_test_set(folder / f"{task}.jsonl.gz")[:limit]
        sets[task] = (items, [chat(encoder, task, item) for item in items])
    figures: dict[str, dict] = {}
    was_sparse = model.sparse
    plans = [(was_sparse, cache) for cache in (LATENT_CACHES if model.latent else GROUPED_CACHES)]
    if was_sparse:
        plans.append((False, "none"))
    for sparse, cache in plans:
        model.sparse, model.cache = sparse, cache
        kind = "sparse" if sparse else "dense"
        plain = (sparse, cache) == plans[0]
        if time.monotonic() > end:
            say(f"no time left for {kind} {cache}")
            continue
        table = {}
        for task, (items, rows) in sets.items():
            share = len(items) if plain else max(1, len(items) * 2 // 5)
            table[task] = _score(model, items[:share], rows[:share], device)
        figures[f"{kind} {cache}"] = table
        say(f"exact answers, {kind} attention, cache {cache}:")
        for task, groups in table.items():
            say(f"  {task:10} " + " ".join(f"{k}: {v:.1%}" for k, v in groups.items()))
    model.sparse, model.cache = was_sparse, "none"
    return figures
