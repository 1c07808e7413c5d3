"""Copy a list of words, at lengths around the boundaries of pages and chunks.

    Copy: otter lamp green ...  ->  Copy: otter lamp green ...

No word occurs twice in a list. The key of an item is the whole list.
"""

import random

from splits import is_test_key
from words import COPY_WORDS

BORDERS = (16, 32, 64, 128, 192, 256)
LENGTHS = tuple(sorted({1, 2, 7} | {b + d for b in BORDERS for d in (-1, 0, 1)} | {320}))


def item(rng: random.Random, test: bool, length: int | None = None) -> dict:
    """One list of `length` words (drawn from 1 to 320 if None): {"prompt", "response", "answer", "length"}."""
    if length is None:
        length = rng.choice(LENGTHS) if rng.random() < 0.3 else rng.randint(1, max(LENGTHS))
    while True:
        words = " ".join(rng.sample(COPY_WORDS, length))
        # A list of one or two words has few keys, so the retry may take some draws.
        if is_test_key(words) == test:
            return {"prompt": "Copy: " + words, "response": "Copy: " + words, "answer": words, "length": length}
