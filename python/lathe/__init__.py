"""Lathe: models over typed KV caches; layouts, their codecs, an attention planner and attention.

Arrays come in through DLPack or the buffer protocol (numpy, torch on the CPU, jax, ...) and are
not copied. numpy has no bfloat16 and no float8, so bfloat16 is also taken as uint16 bits and
float8 as uint8 codes; results that are bfloat16 come as uint16 bits, which
``.view(ml_dtypes.bfloat16)`` turns into numbers where that package is installed.

Bad input raises :class:`LatheError` (a ValueError) or TypeError and changes nothing.
"""

from ._attend import attend, attend_reference
from ._codec import RequantReport, decode, encode, gather_decode, requantize
from ._engine import Answer, Engine, Piece, TopToken, generate
from ._errors import LatheError, PlanRefused
from ._layouts import Layout, Part, layouts
from ._plan import Plan, plan
from ._workspace import attend_workspace

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Engine",
    "LatheError",
    "Layout",
    "Part",
    "Piece",
    "Plan",
    "PlanRefused",
    "RequantReport",
    "TopToken",
    "attend",
    "attend_reference",
    "attend_workspace",
    "decode",
    "encode",
    "gather_decode",
    "generate",
    "layouts",
    "plan",
    "requantize",
]
