"""Grade-school word problems with several people, an object and two to four steps.

A problem is a story of two to four people who hold some number of one object. Each step is one equation of the worked
answer, and the answer ends in a marked number:

    Tom has 12 apples. Mia has 5 more apples than Tom. How many apples do Tom and Mia have together?
    Start: Tom 12. Mia: Tom 12 + 5 = Mia 17. Total: Tom 12 + Mia 17 = Total 29. #### 29

In the answer an amount is the token right after its owner's name, so that a step finds an operand by looking up what
last followed that name. With anything between the two, a model has to match tokens two places apart, which small ones
learn late or never.

The key of a problem is its sequence of operations with all their numbers: numbers that a test problem combines are
never combined in the same way in training, whoever the people are.
"""

import random

from words import CONTAINERS, NAMES, OBJECTS
from splits import is_test_key

LARGEST = 999  # no intermediate result exceeds it


def _owned(name: str, n: int) -> str:
    return f"{name} {n}"


class _Story:
    def __init__(self, rng: random.Random):
        self.rng = rng
        self.object = rng.choice(OBJECTS)
        self.names = rng.sample(NAMES, 4)
        self.amount: dict[str, int] = {}
        self.text: list[str] = []
        self.work: list[str] = []
        self.key: list[str] = []

    def record(self, who: str, left: int, sign: str, right: int, owners: tuple[str, str] = ("", "")) -> int:
        """Appends the step that gives `who` the result; `owners` names whose amounts the operands are, "" for none."""
        result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
        a, b = (_owned(name, n) if name else str(n) for name, n in zip(owners, (left, right)))
        self.work.append(f"{who}: {a} {sign} {b} = {_owned(who, result)}.")
        self.key.append(f"{left}{sign}{right}")
        return result

    def introduce(self) -> None:
        who, n = self.names[0], self.rng.randint(2, 60)
        self.amount[who] = n
        self.text.append(f"{who} has {n} {self.object}.")
        self.work.append(f"Start: {_owned(who, n)}.")

    def compare(self) -> bool:
        """A new person whose amount follows from a known person's."""
        known = self.rng.choice(list(self.amount))
        who = self.names[len(self.amount)]
        have, rng, obj = self.amount[known], self.rng, self.object
        kind = rng.randrange(4)
        if kind == 0:
            k = rng.randint(2, 50)
            self.text.append(f"{who} has {k} more {obj} than {known}.")
            self.amount[who] = self.record(who, have, "+", k, (known, ""))
        elif kind == 1:
            if have < 4:
                return False
            k = rng.randint(1, have - 2)
            self.text.append(f"{who} has {k} fewer {obj} than {known}.")
            self.amount[who] = self.record(who, have, "-", k, (known, ""))
        elif kind == 2:
            k = rng.randint(2, 6)
            if have * k > 400:
                return False
            self.text.append(f"{who} has {k} times as many {obj} as {known}.")
            self.amount[who] = self.record(who, have, "*", k, (known, ""))
        else:
            if have % 2 or have < 4:
                return False
            self.text.append(f"{who} has half as many {obj} as {known}.")
            self.amount[who] = self.record(who, have, "/", 2, (known, ""))
        return True

    def change(self) -> bool:
        """A known person's amount changes: one step, or two for containers."""
        who = self.rng.choice(list(self.amount))
        have, rng, obj = self.amount[who], self.rng, self.object
        kind = rng.randrange(4)
        if kind == 0:
            k = rng.randint(2, 50)
            self.text.append(f"{who} {rng.choice(('buys', 'finds', 'gets'))} {k} more {obj}.")
            self.amount[who] = self.record(who, have, "+", k, (who, ""))
        elif kind == 1:
            if have < 4:
                return False
            k = rng.randint(1, have - 2)
            self.text.append(f"{who} {rng.choice(('loses', 'sells', 'uses'))} {k} {obj}.")
            self.amount[who] = self.record(who, have, "-", k, (who, ""))
        elif kind == 2:
            if have < 4 or len(self.amount) < 2:
                return False
            other = rng.choice([n for n in self.amount if n != who])
            k = rng.randint(1, have - 2)
            self.text.append(f"{who} gives {k} {obj} to {other}.")
            self.amount[who] = self.record(who, have, "-", k, (who, ""))
            self.amount[other] = self.record(other, self.amount[other], "+", k, (other, ""))
        else:
            count, each = rng.randint(2, 9), rng.randint(2, 12)
            self.text.append(f"{who} buys {count} {rng.choice(CONTAINERS)} with {each} {obj} in each.")
            bought = self.record("New", count, "*", each)
            self.amount[who] = self.record(who, have, "+", bought, (who, "New"))
        return True

    def ask(self) -> tuple[str, int]:
        """The question and its answer; a sum or a difference is a step of its own."""
        people, rng, obj = list(self.amount), self.rng, self.object
        kind = rng.randrange(3) if len(people) > 1 else 0
        if kind == 0:
            who = rng.choice(people)
            self.work.append(f"{_owned(who, self.amount[who])}.")
            return f"How many {obj} does {who} have?", self.amount[who]
        first, second = rng.sample(people, 2)
        a, b = self.amount[first], self.amount[second]
        if kind == 1:
            total = self.record("Total", a, "+", b, (first, second))
            return f"How many {obj} do {first} and {second} have together?", total
        if a < b:
            first, second, a, b = second, first, b, a
        gap = self.record("Difference", a, "-", b, (first, second))
        return f"How many more {obj} does {first} have than {second}?", gap


def _draw(rng: random.Random, steps: int) -> tuple[str, str, str, str] | None:
    story = _Story(rng)
    story.introduce()
    if not story.compare():
        return None
    closing = rng.random() < 0.6
    while len(story.key) < steps - closing:
        grow = len(story.amount) < 4 and rng.random() < 0.5
        if not (story.compare() if grow else story.change()):
            return None
    question, answer = story.ask()
    if len(story.key) != steps or max(story.amount.values()) > LARGEST or answer > LARGEST:
        return None
    prompt = " ".join(story.text) + " " + question
    return prompt, " ".join(story.work) + f" #### {answer}", str(answer), ",".join(story.key)


def item(rng: random.Random, test: bool, steps: int | None = None) -> dict:
    """One problem of `steps` (drawn from 2 to 4 if None): {"prompt", "response", "answer", "steps"}."""
    steps = steps or rng.choice((2, 3, 3, 4, 4))
    while True:
        drawn = _draw(rng, steps)
        if drawn and is_test_key(drawn[3]) == test:
            return {"prompt": drawn[0], "response": drawn[1], "answer": drawn[2], "steps": steps}
