"""The workspace of attend() on a GPU."""

from __future__ import annotations

from typing import Any

from . import _args, _attend, _lathe
from ._args import LayoutLike
from ._errors import LatheError


def _source(attention: str, prefix: str, fields: dict[str, Any]) -> dict[str, Any]:
    known = ("layout", "page_size", "pages", "index_width", "compact")
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise TypeError(f"{prefix.rstrip('.')}: knows no {', '.join(unknown)}; known: {', '.join(known)}")
    layout = fields.get("layout")
    if layout is None:
        layout = _attend.default_layout(attention)
    page_size = fields.get("page_size")
    return {
        "layout": _args.layout(prefix + "layout", layout),
        "page_size": _args.page_size(64 if page_size is None else page_size, prefix + "page_size"),
        "pages": _args.integer(prefix + "pages", fields.get("pages") or 0, 0, 2**31 - 1),
        "index_width": _args.integer(prefix + "index_width", fields.get("index_width") or 0, 0, 2**24),
        "compact": bool(fields.get("compact")),
    }


def attend_workspace(
    rows: int,
    heads: int,
    layout: LayoutLike | None = None,
    page_size: int | None = None,
    *,
    pages: int = 0,
    attention: str = "dsa",
    kind: str = "inplace",
    requests: int | None = None,
    max_request_rows: int = 1,
    max_kv_len: int = 0,
    index_width: int = 0,
    extra: dict[str, Any] | None = None,
    gpu: int = 0,
) -> int:
    """Bytes of attend()'s `workspace` on a Hopper GPU, enough for every call with at most these shapes.

    rows, heads: of q. layout, page_size, pages: of the pool. Kind "gather" reads compact rows instead,
        pages * page_size of them.
    requests: `rows` by default. max_request_rows, max_kv_len: bounds on lengths; page tables need
        max_kv_len.
    index_width: entries of a row's list; 0: keys come from a page table.
    extra: for v4's second source, a dict of layout, page_size, pages and index_width.

    At most 128 MiB plus the work lists. Raises LatheError for what no GPU kernel supports, and if
    there is no Hopper GPU.
    """
    if not _lathe.has_cuda:
        raise LatheError("unsupported", "gpu", "a build with CUDA kernels", "one without")
    attention = _args.text("attention", attention)
    kind = _args.text("kind", kind)
    rows = _args.integer("rows", rows, 0, 2**31 - 1)
    index_width = _args.integer("index_width", index_width, 0, 2**24)
    max_kv_len = _args.integer("max_kv_len", max_kv_len, 0, 2**31 - 1)
    if not index_width and not max_kv_len:
        raise LatheError("invalid_argument", "max_kv_len", "the most keys of a request, or an index_width", "0")
    given = dict(
        layout=layout, page_size=page_size, pages=pages, index_width=index_width, compact=kind == "gather"
    )
    return _lathe.attend_workspace(
        _args.integer("gpu", gpu, 0, 1024),
        kind,
        attention,
        rows,
        _args.integer("heads", heads, 1, 2**20),
        rows if requests is None else _args.integer("requests", requests, 0, 2**31 - 1),
        _args.integer("max_request_rows", max_request_rows, 1, 2**31 - 1),
        max_kv_len,
        _source(attention, "", given),
        None if extra is None else _source(attention, "extra.", extra),
    )
