"""Exact-match accuracy on the held-out test sets.

An item counts as right if, at every token of its expected response and at its end, the model's most likely token is the
expected one. Greedy decoding then yields exactly that response, so this equals the score of generation if the whole
text must match; it is a lower bound if only the final answer counts. One pass over prompt and response suffices.
"""

import pathlib
import random
import time

import torch
import torch.nn.functional as F

from data import Encoder, chat, lay_out, read_test_set, retrieval
from model import Model

TOKENS_AT_ONCE = 32768
TASKS = ("arithmetic", "retrieval", "copy")
PROBED = {"arithmetic": 200, "retrieval": 40, "copy": 44}  # items of a probe


def read_sets(folder: pathlib.Path, limits: dict[str, int]) -> dict[str, list[dict]]:
    return {task: read_test_set(folder / f"{task}.jsonl.gz")[:limit] for task, limit in limits.items()}


@torch.no_grad()
def _judge(model: Model, rows: list[tuple[list[int], list[float]]], device) -> tuple[torch.Tensor, list[bool]]:
    """The losses of all answer tokens of the packed chats, and which chats the model would answer exactly."""
    total = sum(model.width_of(len(row)) for row, _ in rows)
    ids, weights, lengths = lay_out(rows, total, model.width_of)
    ids, answers = torch.from_numpy(ids).to(device), torch.from_numpy(weights > 0).to(device)
    at = answers.nonzero()[:, 0]
    logits = model.logits(model(ids, model.pack(lengths, device))[at - 1]).float()
    wrong = torch.zeros_like(answers)
    wrong[at] = logits.argmax(-1) != ids[at]
    return F.cross_entropy(logits, ids[at], reduction="none"), [not bool(p.any()) for p in wrong.cpu().split(lengths)]


def _batches(rows: list):
    batch: list = []
    for row in rows:
        if batch and sum(len(ids) for ids, _ in batch) + len(row[0]) > TOKENS_AT_ONCE:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def _score(model: Model, items: list[dict], rows, device) -> dict[str, float]:
    """Accuracy over all items and, where items carry a "length" or "steps", for each value of it."""
    results: list[bool] = []
    for batch in _batches(rows):
        results += _judge(model, batch, device)[1]
    groups: dict[str, list[bool]] = {"all": results}
    for item, right in zip(items, results):
        groups.setdefault(str(item.get("length", item.get("steps", "all"))), []).append(right)
    return {k: sum(v) / len(v) for k, v in groups.items()}


class Probe:
    """Watches learning: per task, the mean loss of answer tokens and the exact answers on a few held-out items."""

    def __init__(self, folder: pathlib.Path, device, most: int):
        """`most` items of a task at most."""
        encoder, self.device = Encoder(), device
        self.rows: dict[str, list] = {}
        for task, items in read_sets(folder, {task: min(n, most) for task, n in PROBED.items()}).items():
            self.rows[task] = [chat(encoder, item) for item in items]
        rng = random.Random("probe")
        # Training starts with short documents; the test set has none.
        short = [retrieval.item(rng, True, 256) for _ in range(min(100, most))]
        self.rows["short_retrieval"] = [chat(encoder, item) for item in short]

    @torch.no_grad()
    def __call__(self, model: Model) -> dict[str, float]:
        """{"arithmetic_loss", "arithmetic_exact", ...} with the plain cache."""
        figures = {}
        cache, model.cache = model.cache, "none"
        index_rows, model.index_rows = model.index_rows, 0
        for task, rows in self.rows.items():
            losses, exact = [], []
            for batch in _batches(rows):
                loss, right = _judge(model, batch, self.device)
                losses.append(loss)
                exact += right
            figures[f"{task}_loss"] = float(torch.cat(losses).mean())
            figures[f"{task}_exact"] = sum(exact) / len(exact)
        model.cache, model.index_rows = cache, index_rows
        return figures


def evaluate(model: Model, folder: pathlib.Path, limit: int, device, say, seconds: float) -> dict:
    """{attention and cache: {task: {group: accuracy}}}; the plain cache on `limit` items, others on a share of them.

    After `seconds` no further combination is started; the plain one always runs.
    """
    end = time.monotonic() + seconds
    encoder = Encoder()
    sets = {}
    for task, items in read_sets(folder, dict.fromkeys(TASKS, limit)).items():
        sets[task] = (items, [chat(encoder, item) for item in items])
    figures: dict[str, dict] = {}
    was_sparse = model.sparse
    plans = [(was_sparse, cache) for cache in model.caches]
    if was_sparse:
        plans.append((False, "none"))
    for sparse, cache in plans:
        model.sparse, model.cache = sparse, cache
        kind = "sparse" if sparse else "dense"
        plain = (sparse, cache) == plans[0]
        if not plain and time.monotonic() > end:
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
