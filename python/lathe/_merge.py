"""Merges attention over parts of a request's keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _lathe

_DTYPES = {"float32": np.float32, "float16": np.float16}


def merge(
    out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, out: Any = None, lse: Any = None
) -> tuple[Any, Any]:
    """Merges two attention results of the same rows and heads over disjoint keys.

    With natural logarithms la and lb, m = max(la, lb), wa = e^(la - m) and wb = e^(lb - m):
    out = (wa out_a + wb out_b) / (wa + wb) and lse = m + ln(wa + wb), computed in double.

    out_a, out_b: [rows, heads, v_dim] float32, bfloat16, float16 or uint16 (bits of bfloat16), in host
        memory; v_dim is contiguous.
    lse_a, lse_b: [rows, heads] float32. A part with LSE -inf has no keys, and its out is not read;
        without keys in either, out is 0 and lse -inf.
    out, lse: arrays to write to, of the same shapes; they may be out_a and lse_a, or out_b and lse_b.
        By default they are allocated.

    Returns (out, lse): new ones are numpy's, out of out_a's dtype (uint16 as the bits of bfloat16).
    Raises LatheError for a wrong dtype, shape or stride, arrays on a GPU, or memory that an output
    shares with another array; TypeError for values that are not arrays. Nothing is written then.
    """
    shape = tuple(getattr(out_a, "shape", ()))
    if out is None:
        dtype = str(getattr(out_a, "dtype", "")).removeprefix("torch.")
        out = np.empty(shape, _DTYPES.get(dtype, np.uint16))
    if lse is None:
        lse = np.empty(shape[:2], np.float32)
    _lathe.merge(out_a, lse_a, out_b, lse_b, out, lse)
    return out, lse
