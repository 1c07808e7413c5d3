"""Cache layouts."""

from __future__ import annotations

from typing import NamedTuple

from ._lathe import Layout, layout_names

__all__ = ["Layout", "Part", "layouts"]


class Part(NamedTuple):
    """A run of elements of one dtype in each token's record, in one plane of a page."""

    role: str  # nope, rope, key, value, scale or pad
    dtype: str  # bf16, f32, e4m3, e2m1 (two in a byte), ue8m0 or u8
    elems: int
    plane: int  # a page has its planes one after another, each with one record per token
    offset: int  # bytes from the start of the token's record in that plane


def layouts() -> list[Layout]:
    """Every kind of layout at its default dims."""
    return [Layout(name) for name in layout_names()]
