"""Lathe: models over typed KV caches; layouts, their codecs, an attention planner and attention.

Arrays are passed through DLPack or the buffer protocol (numpy, torch on the CPU, jax, ...) without
copies. numpy has no bfloat16 or float8, so bfloat16 is also accepted as uint16 bits and float8 as
uint8 codes; bfloat16 results are uint16 bits, which ``.view(ml_dtypes.bfloat16)`` converts if that
package is installed.

Bad input raises :class:`LatheError` (a ValueError) or TypeError and changes nothing.
"""

import atexit as _atexit

from . import _lathe
from ._attend import attend, attend_reference
from ._codec import RequantReport, copy_pages, copy_slots, decode, encode, gather_decode, requantize
from ._engine import Answer, Engine, Piece, TopToken, generate
from ._errors import LatheError, PlanRefused
from ._layouts import Layout, Part, layouts
from ._merge import merge
from ._plan import Plan, plan
from ._workspace import attend_workspace

_atexit.register(_lathe.end_calls)  # see bindings/unlocked.h

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
    "copy_pages",
    "copy_slots",
    "decode",
    "encode",
    "gather_decode",
    "generate",
    "layouts",
    "merge",
    "plan",
    "requantize",
]
