"""The exceptions of the package."""

from __future__ import annotations

from typing import Any


class LatheError(ValueError):
    """An argument that cannot be used; nothing was changed.

    code: invalid_argument, out_of_range, unsupported, exhausted, malformed or io.
    field: the argument, or the place in it ("slots[3]").
    wanted, offered: what would have been accepted, and what came.
    hint: the way out; may be empty.
    """

    def __init__(self, code: str, field: str, wanted: str, offered: str, hint: str = "") -> None:
        self.code = code
        self.field = field
        self.wanted = wanted
        self.offered = offered
        self.hint = hint
        # All of them are args, so that the exception can be pickled (a worker process's error).
        super().__init__(code, field, wanted, offered, hint)

    def __str__(self) -> str:
        message = f"{self.field}: wanted {self.wanted}, got {self.offered}"
        return f"{message}; {self.hint}" if self.hint else message


class PlanRefused(ValueError):
    """No plan fits the request; ``str()`` of it is the explanation that ``lathe plan`` prints.

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


# Users meet them in tracebacks by the name that they catch.
for _error in (LatheError, PlanRefused):
    _error.__module__ = "lathe"
