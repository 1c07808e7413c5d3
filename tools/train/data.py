"""Packed training batches from the task generators, prepared by worker processes.

A batch is one flat row of `tokens` token ids with whole sequences one after the other; `lengths` says where they end,
so that attention never crosses from one to the next. Each sequence is a chat: <bos><user>..<assistant>..<eos>.
A worker's items depend on its seed alone; the share of long documents follows the training's progress.
"""

import gzip
import json
import multiprocessing
import pathlib
import queue
import random
import re
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZER = HERE.parents[1] / "models/tiny-gqa"  # all checkpoints have the same
sys.path.insert(0, str(HERE.parent / "tasks"))

import arithmetic  # noqa: E402
import copying  # noqa: E402
import retrieval  # noqa: E402

BOS, EOS, USER, ASSISTANT, PAD = range(5)

# The pre-tokeniser's pieces for the tasks' ASCII text; Encoder.check holds it against the real one.
_PIECES = re.compile(r"[^\r\nA-Za-z0-9]?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class Encoder:
    """Encodes text by looking pieces up in a table that the real tokenizer fills: a few million tokens/s per core."""

    def __init__(self, folder: pathlib.Path = TOKENIZER):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = self.tokenizer.get_vocab_size()
        self._ids: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        known = self._ids
        for piece in _PIECES.findall(text):
            found = known.get(piece)
            if found is None:
                found = known[piece] = self.tokenizer.encode(piece, add_special_tokens=False).ids
            ids += found
        return ids

    def check(self, text: str) -> None:
        if self(text) != self.tokenizer.encode(text, add_special_tokens=False).ids:
            raise ValueError(f"the piece table disagrees with the tokenizer on {text[:200]!r}")


def chat(encoder: Encoder, item: dict) -> tuple[list[int], list[float]]:
    """Token ids of the whole chat, and per token the weight of the loss of predicting *that* token.

    Only answers weigh: the prompts are random words and numbers, and on equal terms they would be most of the loss.
    """
    ids = [BOS]
    weights = [0.0]
    for question, answer in [(item["prompt"], item["response"]), *item.get("turns", [])]:
        asked = [USER, *encoder(question), ASSISTANT]
        answered = [*encoder(answer), EOS]
        ids += asked + answered
        weights += [0.0] * len(asked) + [1.0] * len(answered)
    return ids, weights


# Longest training document until a share of the training is spent: matching a key is learned on few facts.
LONGEST = ((0.05, 256), (0.1, 512), (0.15, 1024), (0.22, 2048), (0.3, 4096))


def retrieval_tokens(rng: random.Random, progress: float, room: int) -> int:
    """Length of a training document: short ones first, the full context from a third of the training on."""
    longest = min(next((n for share, n in LONGEST if progress < share), 8192), room)
    if rng.random() < 0.3 and longest >= 1024:
        fitting = [n for n in retrieval.LENGTHS if n <= longest]
        return rng.choice(fitting)
    return int(128 * (longest / 128) ** rng.random())


def draw(rng: random.Random, encoder: Encoder, task: str, progress: float, room: int):
    if task == "arithmetic":
        item = arithmetic.item(rng, False)
    elif task == "copy":
        item = copying.item(rng, False)
    else:
        room = min(room, 8192)
        tokens = retrieval_tokens(rng, progress, room)
        # Many questions about one document, since only their answers teach.
        most = max(8, min(64, tokens // 32))
        questions = 1 if rng.random() < 0.1 else rng.randint(most // 2, most)
        tokens = min(tokens, room - retrieval.TOKENS_PER_TURN * (questions - 1))
        item = retrieval.item(rng, False, max(tokens, 128), questions)
    return chat(encoder, item)


def lay_out(rows: list[tuple[list[int], list[float]]], tokens: int, width_of):
    """Rows one behind the other, each padded to width_of(its length): ids, weights and those lengths."""
    ids = np.full(tokens, PAD, np.int64)
    weights = np.zeros(tokens, np.float32)
    at, lengths = 0, []
    for row, weight in rows:
        ids[at : at + len(row)] = row
        weights[at : at + len(row)] = weight
        lengths.append(width_of(len(row)))
        at += lengths[-1]
    return ids, weights, lengths


def make_batch(rng, encoder: Encoder, tokens: int, mixture: dict[str, float], progress: float, width_of=int):
    """One batch: ids int64 [tokens], weights float32 [tokens], lengths list (the last ones pad the row)."""
    rows = []
    spent = dict.fromkeys(mixture, 0)
    at = 0
    misses = 0
    while misses < 8:
        room = tokens - at
        # The task that lags most behind its share of the tokens.
        task = min(mixture, key=lambda t: spent[t] / mixture[t]) if misses == 0 else "arithmetic"
        if task == "retrieval" and room < 1000:
            task = "arithmetic"
        row, weight = draw(rng, encoder, task, progress, room)
        if len(row) > 8192 or width_of(len(row)) > room:
            misses += 1
            continue
        rows.append((row, weight))
        spent[task] += len(row)
        at += width_of(len(row))
        misses = 0
    if width_of(1) > 1:
        rows.sort(key=lambda r: width_of(len(r[0])))  # rows of one width are worked on together
    ids, weights, lengths = lay_out(rows, tokens, width_of)
    while at < tokens:
        lengths.append(tokens - at if width_of(1) == 1 else width_of(1))
        at += lengths[-1]
    return ids, weights, lengths


def _work(seed: str, tokens: int, mixture: dict[str, float], progress, width_of, out) -> None:
    rng = random.Random(seed)
    encoder = Encoder()
    while True:
        out.put(make_batch(rng, encoder, tokens, mixture, progress.value, width_of))


class Batches:
    """Endless batches from `workers` processes, read round-robin; set `progress` (0 to 1) during training."""

    def __init__(self, seed: str, tokens: int, mixture: dict[str, float], workers: int, width_of=int, ahead: int = 3):
        context = multiprocessing.get_context("spawn")
        self._progress = context.Value("d", 0.0, lock=False)
        self._queues = [context.Queue(ahead) for _ in range(workers)]
        self._processes = [
            context.Process(target=_work, args=(f"{seed} {i}", tokens, mixture, self._progress, width_of, q), daemon=True)
            for i, q in enumerate(self._queues)
        ]
        for process in self._processes:
            process.start()
        self._turn = 0
        self.waited = 0  # reads that found no batch ready

    def set_progress(self, progress: float) -> None:
        self._progress.value = progress

    def next(self):
        source = self._queues[self._turn % len(self._queues)]
        self._turn += 1
        try:
            return source.get_nowait()
        except queue.Empty:
            self.waited += 1
            return source.get(timeout=120)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()


def read_test_set(path: pathlib.Path) -> list[dict]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]
