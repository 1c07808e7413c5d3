"""Facts scattered over a long text, one of them asked for.

    The code of amber otter is 4821.      a fact: adjective, noun, four digits
    The rain fell on the roof all night.  filler

    What is the code of amber otter?  ->  The code of amber otter is 4821.

A document is facts, each followed by the same number of filler sentences, which run through FILLER in order from a
random start. The answer repeats the fact, so that its value is what followed the same words before. In a long document
many words belong to several facts, and one word of the pair is not enough. The key of an item is the pair of words that
is asked for: a pair of the test split is never asked for in training, nor does it occur in a training document.
"""

import random

from splits import is_test_key
from words import ADJECTIVES, NOUNS

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
TOKENS_PER_FACT = 12  # with its line end
TOKENS_PER_FILLER = 9  # on average, with its line end
TOKENS_PER_TURN = 23  # a further question with its answer
OVERHEAD = 64  # question, answer, special tokens and a margin

PAIRS = [(a, n) for a in ADJECTIVES for n in NOUNS]
TRAIN_PAIRS = [p for p in PAIRS if not is_test_key(" ".join(p))]
TEST_PAIRS = [p for p in PAIRS if is_test_key(" ".join(p))]


def fact(pair: tuple[str, str], value: str) -> str:
    return f"The code of {pair[0]} {pair[1]} is {value}."


def question(pair: tuple[str, str]) -> str:
    return f"What is the code of {pair[0]} {pair[1]}?"


def document(rng: random.Random, test: bool, tokens: int) -> tuple[list[str], list[tuple[tuple[str, str], str]]]:
    """Lines of a document of about `tokens` tokens (never more), and its facts in order as (pair, value)."""
    gap = rng.choice((0, 1, 2, 3, 5, 8))
    if test:
        gap = max(gap, 2)
    budget = tokens - OVERHEAD
    count = max(2, int(budget / (TOKENS_PER_FACT + gap * TOKENS_PER_FILLER)))
    asked = [rng.choice(TEST_PAIRS)] if test else []
    others = rng.sample(PAIRS if test else TRAIN_PAIRS, count + 1)
    chosen = asked + [p for p in others if p not in asked][: count - len(asked)]
    rng.shuffle(chosen)
    facts = [(p, f"{rng.randrange(10000):04d}") for p in chosen]
    lines = []
    at = rng.randrange(len(FILLER))
    for pair, value in facts:
        lines.append(fact(pair, value))
        for _ in range(gap):
            lines.append(FILLER[at % len(FILLER)])
            at += 1
    return lines, facts


def item(rng: random.Random, test: bool, tokens: int, questions: int = 1) -> dict:
    """One document with `questions` questions about it.

    The first question belongs to the prompt; the others (training only) are further turns: {"prompt", "response",
    "answer", "length", "turns": [(question, answer), ...]}.
    """
    lines, facts = document(rng, test, tokens)
    if test:
        facts = [f for f in facts if is_test_key(" ".join(f[0]))]
    asked = rng.sample(facts, min(questions, len(facts)))
    pair, value = asked[0]
    prompt = "\n".join(lines) + "\n" + question(pair)
    turns = [(question(p), fact(p, v)) for p, v in asked[1:]]
    return {"prompt": prompt, "response": fact(pair, value), "answer": value, "length": tokens, "turns": turns}
