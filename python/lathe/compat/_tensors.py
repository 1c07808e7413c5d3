"""Tensor operations of the compatibility modules, for torch tensors and numpy arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def torch_of(x: Any) -> Any:
    """The torch module if x is a torch tensor, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


def dtype(x: Any) -> str:
    """ "bfloat16", "float8_e4m3fn", "int32", ..." """
    return str(x.dtype).removeprefix("torch.")


def on_gpu(x: Any) -> bool:
    return torch_of(x) is not None and bool(x.is_cuda)


def capturing(x: Any) -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    torch = torch_of(x)
    return bool(torch is not None and torch.cuda.is_current_stream_capturing())


def state(x: Any) -> Any:
    """Identifies a tensor and its contents up to writes that torch counts; None for None.

    torch does not count writes through x.data, by a replayed CUDA graph, or to a tensor that was made
    in inference mode.
    """
    if x is None:
        return None
    return x.data_ptr(), tuple(x.shape), None if x.is_inference() else x._version


def strides(x: Any) -> tuple[int, ...]:
    """In bytes."""
    if torch_of(x) is not None:
        return tuple(s * x.element_size() for s in x.stride())
    return tuple(x.strides)


def as_bytes(x: Any) -> Any:
    """The last axis as bytes."""
    torch = torch_of(x)
    return x.view(torch.uint8 if torch else np.uint8)


def strided(x: Any, shape: tuple[int, int], stride: int) -> Any:
    """Rows of bytes that begin where x does, `stride` bytes apart."""
    if torch_of(x) is not None:
        return x.as_strided(shape, (stride, 1))
    return np.lib.stride_tricks.as_strided(x, shape, (stride, 1))


def dense(x: Any) -> bool:
    return bool(x.is_contiguous() if torch_of(x) is not None else x.flags.c_contiguous)


def contiguous(x: Any) -> Any:
    return x.contiguous() if torch_of(x) is not None else np.ascontiguousarray(x)


def int32(x: Any) -> Any:
    """A contiguous list of int32; the caller has checked that it holds the numbers."""
    torch = torch_of(x)
    return x.to(torch.int32).contiguous() if torch else np.ascontiguousarray(x, np.int32)


def repeat(x: Any, count: int) -> Any:
    """Each entry of the first axis `count` times; x itself for one."""
    if count == 1:
        return x
    if torch_of(x) is not None:
        return x.repeat_interleave(count, dim=0)
    return np.repeat(x, count, axis=0)


def steps(like: Any, count: int, step: int) -> Any:
    """0, step, 2 * step, ...: `count` int32 beside `like`."""
    torch = torch_of(like)
    if torch:
        return torch.arange(0, count * step, step, dtype=torch.int32, device=like.device)
    return np.arange(0, count * step, step, dtype=np.int32)


def at_least_0(x: Any) -> Any:
    return x.clamp(min=0) if torch_of(x) is not None else np.maximum(x, 0)


def any_between(x: Any, low: int, high: int) -> bool:
    """Whether an entry lies strictly between the bounds. Waits for a GPU."""
    return bool(((x > low) & (x < high)).any())


def any_outside(x: Any, low: int, high: int) -> bool:
    """Whether an entry is below low or above high. Waits for a GPU."""
    return bool(((x < low) | (x > high)).any())


def empty(like: Any, shape: tuple[int, ...], kind: Any = None) -> Any:
    """kind: a dtype of like's library; None: float32."""
    torch = torch_of(like)
    if torch:
        return torch.empty(shape, dtype=kind or torch.float32, device=like.device)
    return np.empty(shape, kind or np.float32)


def view(x: Any, shape: tuple[int, ...]) -> Any:
    """The same numbers in another shape, never a copy. Errors: ValueError."""
    if torch_of(x) is not None:
        try:
            return x.view(shape)
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    made = x.reshape(shape)
    if x.size and not np.shares_memory(made, x):
        raise ValueError("its strides allow no such view")
    return made


def swap(x: Any) -> Any:
    """Axes 1 and 2 exchanged; a view."""
    return x.transpose(1, 2) if torch_of(x) is not None else np.swapaxes(x, 1, 2)


def filled(like: Any, shape: tuple[int, ...], number: float) -> Any:
    """float32 beside `like`, all `number`."""
    torch = torch_of(like)
    if torch:
        return torch.full(shape, number, dtype=torch.float32, device=like.device)
    return np.full(shape, number, np.float32)


def float32(x: Any) -> Any:
    return x.float() if torch_of(x) is not None else x.astype(np.float32)


def int64(x: Any) -> Any:
    return x.long() if torch_of(x) is not None else x.astype(np.int64)


def where(condition: Any, number: float, x: Any) -> Any:
    """number if the condition holds, else x."""
    if torch_of(x) is not None:
        return x.masked_fill(condition, number)
    return np.where(condition, number, x)


def maximum(x: Any) -> Any:
    """Over the last axis."""
    return x.amax(-1) if torch_of(x) is not None else x.max(-1)
