"""Checks of scalar arguments, and conversion of arrays that numpy cannot export."""

from __future__ import annotations

import operator
from typing import Any, Union

import numpy as np

from ._errors import LatheError
from ._lathe import Layout

LayoutLike = Union[Layout, str]

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1


def integer(name: str, value: Any, least: int = INT32_MIN, most: int = INT32_MAX) -> int:
    """`value` as an int within the bounds. Errors: TypeError, LatheError."""
    if isinstance(value, bool):
        raise TypeError(f"{name}: wanted an integer, got bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: wanted an integer, got {type(value).__name__}") from None
    if not least <= number <= most:
        raise LatheError("out_of_range", name, f"{least} to {most}", str(number))
    return number


def real(name: str, value: Any) -> float:
    """`value` as a float. Errors: TypeError."""
    if isinstance(value, (str, bytes, bool)):
        raise TypeError(f"{name}: wanted a number, got {type(value).__name__}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: wanted a number, got {type(value).__name__}") from None


def text(name: str, value: Any) -> str:
    """`value` if it is a str. Errors: TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: wanted a string, got {type(value).__name__}")
    return value


def page_size(value: Any, name: str = "page_size") -> int:
    """Tokens per page, 1 to 65536. Errors: TypeError, LatheError."""
    return integer(name, value, 1, 65536)


def layout(name: str, value: LayoutLike) -> Layout:
    """A Layout, or one parsed from text. Errors: TypeError, LatheError."""
    if isinstance(value, str):
        return Layout(value)
    if not isinstance(value, Layout):
        raise TypeError(f"{name}: wanted a Layout or its text, got {type(value).__name__}")
    return value


def query(value: Any) -> Any:
    """An array of queries; converts float16 in host memory to float32, which is exact."""
    dtype = str(getattr(value, "dtype", ""))
    if dtype == "float16":
        return value.astype(np.float32)
    if dtype == "torch.float16" and not value.is_cuda:
        return value.float()
    return value


def indices(value: Any) -> Any:
    """An index list; Python sequences of integers become arrays."""
    if isinstance(value, (list, tuple, range)):
        try:
            made = np.asarray(value)
        except ValueError:
            raise TypeError("wanted integers in lists of equal lengths, got others") from None
        return made.astype(np.int64) if made.size == 0 else made
    return value
