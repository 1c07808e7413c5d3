"""Converts rows of numbers to the bytes of a pool and back.

A *row* is the ``layout.row_elems`` numbers of one token: nope then rope; or key; or all heads'
keys, then all heads' values. A *slot* is a token's index in a pool, ``page * page_size + offset``.

A *pool* is an array of uint8 (or float8_e4m3fn) in host memory: one axis with the pages one after
another (``layout.page_stride(page_size)`` bytes each), or two axes [pages, that many bytes]. Rows may
lie further apart, as in the view ``memory[:, :layout.page_stride(page_size)]``; a dense array with
longer rows is refused, as its pages are of another layout or size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _args, _lathe
from ._args import LayoutLike


class RequantReport(NamedTuple):
    """The error of a requantisation."""

    worst_abs_error: float  # between the f32 values decoded before and after
    worst_slot: int  # source slot of the first row that has it; -1 if nothing was lost
    saturated: int  # elements above 464 times the new scale, which e4m3 rounds beyond its maximum of 448


def encode(
    rows: Any,
    slots: Any,
    pool: Any,
    layout: LayoutLike,
    page_size: int = 64,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    path: str = "fast",
) -> None:
    """Writes row i to slots[i] of the pool, in place.

    rows: [N, row_elems] float32, bfloat16, or uint16 as the bits of bfloat16.
    slots: [N] int32 or int64; -1 skips the row. If rows have the same slot, the last one wins.
    pool: writable, see the module; bytes of other slots are unchanged.
    key_scale, value_scale: the tensor scales of mla_fp8 (key_scale) and gqa_fp8 (both); the other
        layouts ignore them.
    path: "fast" (SIMD) or "reference" (element by element); both write the same bytes.

    Raises LatheError for a wrong dtype, shape or stride, a slot outside the pool, a scale outside
    2^-126 to 2^126, or rows that share memory with the pool; TypeError for values that are not
    arrays or numbers. Nothing is written then.
    """
    _lathe.encode(
        rows,
        _args.indices(slots),
        pool,
        _args.layout("layout", layout),
        _args.page_size(page_size),
        _args.real("key_scale", key_scale),
        _args.real("value_scale", value_scale),
        _args.text("path", path),
    )


def decode(
    pool: Any,
    layout: LayoutLike,
    first: int = 0,
    count: int | None = None,
    page_size: int = 64,
    dtype: str = "bf16",
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    path: str = "fast",
) -> np.ndarray:
    """Reads slots first .. first + count - 1 (to the end of the pool if count is None).

    Returns [count, row_elems]: float32 for dtype "f32", uint16 (the bits of bfloat16) for "bf16".
    Raises as encode, and LatheError for a range outside the pool.
    """
    return _lathe.decode(
        pool,
        _args.layout("layout", layout),
        _args.integer("first", first),
        None if count is None else _args.integer("count", count, 0),
        _args.page_size(page_size),
        _args.text("dtype", dtype),
        _args.real("key_scale", key_scale),
        _args.real("value_scale", value_scale),
        _args.text("path", path),
    )


def gather_decode(
    pool: Any,
    slots: Any,
    layout: LayoutLike,
    page_size: int = 64,
    dtype: str = "bf16",
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    path: str = "fast",
) -> np.ndarray:
    """Reads slots[i] into row i. Slots may repeat; -1 gives a row of zeros.

    slots: [N] int32 or int64. Returns [N, row_elems], dtypes as decode. Raises as encode.
    """
    return _lathe.gather_decode(
        pool,
        _args.indices(slots),
        _args.layout("layout", layout),
        _args.page_size(page_size),
        _args.text("dtype", dtype),
        _args.real("key_scale", key_scale),
        _args.real("value_scale", value_scale),
        _args.text("path", path),
    )


def requantize(
    src: Any,
    src_slots: Any,
    src_layout: LayoutLike,
    dst: Any,
    dst_slots: Any,
    dst_layout: LayoutLike,
    page_size: int = 64,
    dst_page_size: int | None = None,
    src_key_scale: float = 1.0,
    dst_key_scale: float = 1.0,
    path: str = "fast",
) -> RequantReport:
    """Rewrites src_slots[i] of src as dst_slots[i] of dst, in place; -1 in either skips the pair.

    Pairs of equal dims: mla_fp8 to mla_fp8_block (exact at scale 1) and mla_fp8_block to mla_fp8
    (lossy; see the report). dst_page_size None: page_size. Raises LatheError for another pair, pools
    that share memory, or a src_key_scale that is not a power of two if the destination's scales are
    pow2_ceil; otherwise raises as encode.
    """
    page_size = _args.page_size(page_size)
    if dst_page_size is not None:
        dst_page_size = _args.page_size(dst_page_size, "dst_page_size")
    return RequantReport(
        *_lathe.requantize(
            src,
            _args.indices(src_slots),
            _args.layout("src_layout", src_layout),
            dst,
            _args.indices(dst_slots),
            _args.layout("dst_layout", dst_layout),
            page_size,
            page_size if dst_page_size is None else dst_page_size,
            _args.real("src_key_scale", src_key_scale),
            _args.real("dst_key_scale", dst_key_scale),
            _args.text("path", path),
        )
    )


def copy_pages(
    src: Any, src_pages: Any, dst: Any, dst_pages: Any, layout: LayoutLike, page_size: int = 64
) -> None:
    """Copies page src_pages[i] of src to dst_pages[i] of dst, in place: all its bytes, padding included.

    src, dst: pools of one layout and page size, which share no memory, or the same pool twice: then all
        sources are read as if before the first write, so the lists may overlap.
    src_pages, dst_pages: [N] int32 or int64. A source may repeat, a destination not.

    Raises LatheError for pages of another size than the layout's, a page that is -1 or outside its pool,
    lists of different lengths, a repeated destination, or pools that share some of their memory;
    TypeError for values that are not arrays or numbers. Nothing is written then.
    """
    layout, page_size = _args.layout("layout", layout), _args.page_size(page_size)
    _lathe.copy_pages(src, _args.indices(src_pages), dst, _args.indices(dst_pages), layout, page_size)


def copy_slots(
    src: Any,
    src_slots: Any,
    dst: Any,
    dst_slots: Any,
    layout: LayoutLike,
    page_size: int = 64,
    dst_page_size: int | None = None,
) -> None:
    """Copies the bytes of the token in src_slots[i] of src to dst_slots[i] of dst, in place.

    dst_page_size None: page_size. Otherwise as copy_pages; -1 is refused here.
    """
    page_size = _args.page_size(page_size)
    to = page_size if dst_page_size is None else _args.page_size(dst_page_size, "dst_page_size")
    layout = _args.layout("layout", layout)
    _lathe.copy_slots(src, _args.indices(src_slots), dst, _args.indices(dst_slots), layout, page_size, to)
