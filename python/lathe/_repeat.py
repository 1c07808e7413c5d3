"""Calls on torch's tensors of a GPU that repeat an earlier one in all but addresses.

A call that has been checked and run is kept under the types, shapes and strides of its arrays and under its settings. The next call like
it (in the next layer or step) skips the checks: it reads its tensors' addresses through the C functions of torch 2.10 and later (DLPack's
exchange interface) and launches the kernel.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _cuda, _lathe

_NO_ARRAYS = (None, None, None, None)
# Set once: False if torch or this build has no such interface.
_repeats: Any = None


def _open() -> Any:
    global _repeats
    torch = sys.modules.get("torch")
    # A module that is still being imported lacks names.
    tensor = getattr(torch, "Tensor", None)
    parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
    if tensor is None or parameter is None:
        return None
    exchange = getattr(tensor, "__dlpack_c_exchange_api__", None)
    _repeats = False
    if _lathe.has_cuda and exchange is not None:
        try:
            _repeats = _lathe.Repeats(tensor, parameter, exchange, _cuda.scratches)
        except ValueError:
            pass
    return _repeats


def arrays_of(extra: Any) -> tuple[Any, ...]:
    """The second source's pool, compact, indices and index_lengths."""
    if type(extra) is not dict:
        return _NO_ARRAYS
    get = extra.get
    return get("pool"), get("compact"), get("indices"), get("index_lengths")


def settings_of(extra: Any) -> Any:
    if type(extra) is not dict:
        return extra
    get = extra.get
    return (*extra, get("layout"), get("page_size"), get("key_scale"), get("value_scale"))


def find(arrays: tuple[Any, ...], settings: tuple[Any, ...], stream: Any = None) -> Any:
    """The call that these arrays and settings repeat, or None.

    arrays, each a tensor or None, in this order: q, pool, compact, page_table, indices, index_lengths, arrays_of(extra), sink, q_scale,
    key_scale (these two may be floats), q_indptr, kv_lens, out, lse, workspace.
    """
    repeats = _repeats if _repeats is not None else _open()
    return repeats.find(arrays, settings, stream) if repeats else None


def keep(arrays: tuple[Any, ...], settings: tuple[Any, ...], call: Any, kept: Any) -> None:
    """Keeps a call that has run, for find(). `kept` becomes its attribute `kept`."""
    repeats = _repeats if _repeats is not None else _open()
    if repeats:
        repeats.keep(arrays, settings, call, kept)


def run(call: Any, q: Any, out: Any, lse: Any) -> tuple[Any, Any]:
    """Runs a call of attend(). call.kept: the shape of out."""
    out_at = lse_at = 0
    if out is None or lse is None:
        torch, (rows, heads, width) = sys.modules["torch"], call.kept
        # Twice as fast as torch.empty().
        make = torch.empty_strided
        if out is None:
            out = make((rows, heads, width), (heads * width, width, 1), dtype=torch.bfloat16, device=q.device)
            out_at = out.data_ptr()
        if lse is None:
            lse = make((rows, heads), (heads, 1), dtype=torch.float32, device=q.device)
            lse_at = lse.data_ptr()
    call.run(out_at, lse_at)
    return out, lse
