"""Shared code of Lathe's plug-ins for engines.

A plug-in replaces some of an engine's calls. Which ones depends on the configuration alone (layout, dims, dtypes, the GPU and
this build), never on free memory, so that all ranks of a model decide alike.
"""

from __future__ import annotations

import collections
import functools
import inspect
import logging
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

from .. import _lathe
from .._errors import LatheError
from . import _tensors as t


class Switches:
    """A plug-in's environment variables: NAME, one of its modes, and NAME_STRICT, 0 or 1."""

    def __init__(self, name: str, modes: Iterable[str], default: str) -> None:
        modes = tuple(modes)
        self.mode = os.environ.get(name, default)
        if self.mode not in modes:
            raise LatheError("invalid_argument", name, f"one of {', '.join(modes)}", self.mode)
        strict = os.environ.get(f"{name}_STRICT", "0")
        if strict not in ("0", "1"):
            raise LatheError("invalid_argument", f"{name}_STRICT", "0 or 1", strict)
        self.strict = strict == "1"


class Tally:
    """Counts the calls that Lathe serves, and those left to the engine, by reason."""

    def __init__(self, plugin: str, strict: bool) -> None:
        self.plugin = plugin
        self.strict = strict
        self.served = 0
        self.fallen_back: collections.Counter[str] = collections.Counter()
        self.log = logging.getLogger(plugin)

    def fall_back(self, function: str, reason: str) -> None:
        """Counts a call that Lathe does not serve; the first one of a reason is logged.

        Raises LatheError in strict mode.
        """
        if self.strict:
            hint = f"unset {self.plugin.upper()}_STRICT to let the engine's own kernel run"
            raise LatheError("unsupported", function, "a call that Lathe serves", reason, hint)
        key = f"{function}: {reason}"
        self.fallen_back[key] += 1
        if self.fallen_back[key] == 1:
            self.log.warning("%s: the engine's own kernel runs for %s", self.plugin, key)


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def differing(function: Callable[..., Any], known: Iterable[str]) -> str | None:
    """How a function's parameters differ from the known ones; None if they do not.

    Ignores additional parameters with defaults.
    """
    known = tuple(known)
    signature = inspect.signature(function)
    names = tuple(signature.parameters)
    missing = [name for name in known if name not in names]
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.name not in known
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if not missing and not needed and names[: len(known)] == known:
        return None
    return f"wanted ({', '.join(known)}), got ({', '.join(names)})"


@functools.cache
def _gpu_reason(ordinal: int) -> str | None:
    import torch

    if not _lathe.has_cuda:
        return "this build of lathe has no CUDA kernels"
    major, minor = torch.cuda.get_device_capability(ordinal)
    return None if major == 9 else f"a GPU of compute capability {major}.{minor}, not Hopper's 9.0"


def place_reason(tensor: Any) -> str | None:
    """Why Lathe does not support the tensor's device; None if it does.

    Host memory is supported, by the CPU's kernels, to test the plug-ins without a GPU.
    """
    return _gpu_reason(tensor.device.index) if t.on_gpu(tensor) else None


def need_place(backend: str, tensor: Any) -> None:
    """Raises LatheError for place_reason(): the backend was requested by name."""
    reason = place_reason(tensor)
    if reason is not None:
        hint = "take another --attention-backend"
        raise LatheError("unsupported", backend, "a Hopper GPU and its kernels", reason, hint)


def pages(rows: Any) -> tuple[Any, int]:
    """Contiguous rows of a cache, [n, width], as pages of bytes, and the tokens per page.

    A list of rows is then a list of slots. Pages are as large as n allows, at most 64 tokens, because
    kernels that stage the keys of several lists do so page by page.
    """
    size = math.gcd(rows.shape[0], 64)
    data = t.as_bytes(rows)
    return data.reshape(rows.shape[0] // size, size * data.shape[1]), size
