"""The exceptions of the package."""

from __future__ import annotations

from typing import Any


class LatheError(ValueError):
    """An invalid argument; nothing was changed.

    code: invalid_argument, out_of_range, unsupported, exhausted, malformed or io.
    field: the argument, or a part of it ("slots[3]").
    wanted, offered: what is accepted, and what was given.
    hint: a way out; may be empty.
    """

    def __init__(self, code: str, field: str, wanted: str, offered: str, hint: str = "") -> None:
        self.code = code
        self.field = field
        self.wanted = wanted
        self.offered = offered
        self.hint = hint
        # Pass all of them as args, so that the exception can be pickled (for example by a worker process).
        super().__init__(code, field, wanted, offered, hint)

    def __str__(self) -> str:
        message = f"{self.field}: wanted {self.wanted}, got {self.offered}"
        return f"{message}; {self.hint}" if self.hint else message


class PlanRefused(ValueError):
    """No plan fits the request; ``str()`` gives the explanation that ``lathe plan`` prints.

    headline: what does not fit, in a few words.
    reasons: dicts of rule, subject, field, wanted, offered, hint.
    suggestions: flag settings that would make the request legal, nearest first.
    data: all of it as plain data, as ``lathe plan --json`` prints it.
    """

    def __init__(self, explanation: str, data: dict[str, Any]) -> None:
        super().__init__(explanation, data)
        self.explanation = explanation
        self.data = data
        self.headline: str = data["headline"]
        self.reasons: list[dict[str, str]] = data["reasons"]
        self.suggestions: list[str] = data["suggestions"]

    def __str__(self) -> str:
        return self.explanation


# Tracebacks show the public name.
for _error in (LatheError, PlanRefused):
    _error.__module__ = "lathe"
