"""Pairs of words scattered over a long text, one of them asked for.

    The pair is otter plum.               a fact: a key and its value
    The rain fell on the roof all night.  filler

    Which word goes with otter?  ->  The pair is otter plum.

A document is facts, each followed by the same number of filler sentences, which run through FILLER in order from a
random start. No key occurs twice in a document, and none in a filler; values may recur. The answer repeats the fact, so
that its value is what followed the same word before. The key of an item is the pair that is asked for: a pair of the
test split is never part of a training document, though its words are.
"""

import random

from splits import is_test_key
from words import COPY_WORDS

FILLER = """The rain fell on the roof all night.
A small boat moved across the still water.
Nobody in the village knew the old road.
The market opens before the sun is up.
Snow lay deep on the north side of the hill.
She closed the door and walked to the river.
The bell rang twice and then it was quiet.
Birds crossed the sky on their way south.
He left a note on the table by the lamp.
The wind turned and the sail went slack.
Every house on the street had a green gate.
The train was late and the tea was cold.
They counted the sheep and went home.
A long shadow fell over the empty yard.
The garden was full of bees in the spring.
Two dogs slept in front of the fire.
The path ends where the forest begins.
It was too dark to read the map.
The miller sold his flour in white sacks.
Someone had painted the bench blue.
The lake froze early in that winter.
Smoke rose from the camp on the shore.
The clock in the tower was five minutes fast.
Old letters were kept in a wooden chest.
The children ran down to the harbor.
A cart full of hay blocked the bridge.
The baker gave away the last bread.
No ship had come for many days.
The fox waited under the hedge until noon.
Dust covered the books on the top shelf.
The guard slept through the whole storm.
Rice was planted along the wide stream.""".split("\n")

LENGTHS = (1024, 2048, 4096, 8192)  # contexts of the test set, in tokens
TOKENS_PER_FACT = 7  # with its line end
TOKENS_PER_FILLER = 9  # on average, with its line end
TOKENS_PER_TURN = 17  # a further question with its answer
TEST_QUESTIONS = 25  # about each document of the test set
TEST_DOCUMENTS = 8  # that are asked about in turn
GAPS = (0, 1, 2, 3, 5, 8)  # filler sentences behind a fact
OVERHEAD = 48  # question, answer, special tokens and a margin

_FILLER_WORDS = set(" ".join(FILLER).lower().replace(".", "").split())
KEYS = [w for w in COPY_WORDS if w not in _FILLER_WORDS]


def question(key: str) -> str:
    return f"Which word goes with {key}?"


def fact(key: str, value: str) -> str:
    return f"The pair is {key} {value}."


def _value(rng: random.Random, key: str, test: bool) -> str:
    while True:
        value = rng.choice(COPY_WORDS)
        if value != key and is_test_key(f"{key} {value}") == test:
            return value


def _count(tokens: int, gap: int) -> int:
    return max(2, (tokens - OVERHEAD) // (TOKENS_PER_FACT + gap * TOKENS_PER_FILLER))


def document(rng: random.Random, test: bool, tokens: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines of a document of about `tokens` tokens (never more), and its facts in order as (key, value)."""
    if test:
        gap = rng.choice([g for g in GAPS if g >= 2 and (_count(tokens, g) >= TEST_QUESTIONS or g == 2)])
    else:
        gap = rng.choice(GAPS)
    if _count(tokens, gap) > len(KEYS):
        gap = 3 if tokens > 4096 else 1
    facts = [(key, _value(rng, key, test)) for key in rng.sample(KEYS, _count(tokens, gap))]
    lines = []
    at = rng.randrange(len(FILLER))
    for key, value in facts:
        lines.append(fact(key, value))
        for _ in range(gap):
            lines.append(FILLER[at % len(FILLER)])
            at += 1
    return lines, facts


def _asked(lines: list[str], pair: tuple[str, str], tokens: int) -> dict:
    prompt = "\n".join(lines) + "\n" + question(pair[0])
    return {"prompt": prompt, "response": fact(*pair), "answer": pair[1], "length": tokens}


def item(rng: random.Random, test: bool, tokens: int, questions: int = 1) -> dict:
    """One document with `questions` questions about it.

    The first question belongs to the prompt; the others (training only) are further turns: {"prompt", "response",
    "answer", "length", "turns": [(question, answer), ...]}.
    """
    lines, facts = document(rng, test, tokens)
    asked = rng.sample(facts, min(questions, len(facts)))
    turns = [(question(key), fact(key, value)) for key, value in asked[1:]]
    return _asked(lines, asked[0], tokens) | {"turns": turns}


def test_set(rng: random.Random, count: int) -> list[dict]:
    """`count` held-out items: TEST_QUESTIONS about each document, the lengths in turn.

    Items come in blocks of TEST_DOCUMENTS documents. A block asks the first question of each, then the second of each,
    and so on: a prefix cache serves all but the first of them, and the first block alone has every length.
    """
    items: list[dict] = []
    while len(items) < count:
        documents = []
        for i in range(TEST_DOCUMENTS):
            tokens = LENGTHS[i % len(LENGTHS)]
            lines, facts = document(rng, True, tokens)
            documents.append((lines, rng.sample(facts, TEST_QUESTIONS), tokens))
        items += [_asked(lines, facts[q], tokens) for q in range(TEST_QUESTIONS) for lines, facts, tokens in documents]
    return items[:count]
