"""The largest logit of each row and head, which no kernel returns: a second pass over the keys, in torch or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _tensors as t

_NUMBERS = 1 << 24  # of gathered keys at a time, float32


def max_logits(q: Any, kv: Any, indices: Any, lengths: Any, scale: float) -> Any:
    """The maximum of scale * q . k over each row's listed keys, float32 [rows, heads]; -inf without keys.

    q: [rows, heads, d]. kv: [s_kv, d]. indices: int32 [rows, width]; -1 and entries out of range are no keys. lengths: [rows] number of
    valid entries, or None. Reads every listed key once more, in float32, 64 MB of them at a time.
    """
    rows, width = indices.shape
    made = t.filled(q, (rows, q.shape[1]), -np.inf)
    if width == 0 or len(kv) == 0:
        return made
    step = max(1, _NUMBERS // (width * q.shape[2]))
    for first in range(0, rows, step):
        part = slice(first, first + step)
        listed = t.int64(indices[part])
        wrong = (listed < 0) | (listed >= len(kv))
        if lengths is not None:
            wrong |= t.int64(t.steps(indices, width, 1)) >= t.int64(lengths[part])[:, None]
        keys = t.float32(kv[t.where(wrong, 0, listed)])
        logits = t.float32(q[part]) @ t.swap(keys) * scale
        made[part] = t.maximum(t.where(wrong[:, None, :], -np.inf, logits))
    return made
