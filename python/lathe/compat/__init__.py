"""Lathe's kernels under the interfaces of other packages, so that their callers run unchanged."""

from __future__ import annotations

import sys
import types

from .. import _args
from .._errors import LatheError


def install(name: str = "flash_mla", scale_policy: str = "pow2_ceil") -> None:
    """Makes ``import flash_mla`` return Lathe's module, from this call on and in this process.

    Call it before the engine imports that package; earlier imports are unaffected. Nothing touches a
    GPU before the first kernel call.

    scale_policy: of caches of 656 and 528 bytes per token: "pow2_ceil", powers of two, as written by
        FlashMLA, and by vLLM with its pull request 49435 (September 2026), or "raw_f32", amax / 448, as
        written by SGLang and by older versions of vLLM.

    Raises LatheError for another name or policy.
    """
    if _args.text("name", name) != "flash_mla":
        raise LatheError("invalid_argument", "name", "flash_mla", name)
    if _args.text("scale_policy", scale_policy) not in ("pow2_ceil", "raw_f32"):
        wanted = "pow2_ceil or raw_f32"
        raise LatheError("invalid_argument", "scale_policy", wanted, scale_policy)
    from . import flash_mla

    flash_mla.scale_policy = scale_policy
    fused = types.ModuleType("flash_mla.fused_norm_rope_attn_rope_cast")
    for function in ("prefill", "decode", "permute_q_b_proj", "permute_wv_proj"):
        setattr(fused, function, flash_mla.flash_attn_varlen_func)
    # Callers import classes and functions from the submodules, too.
    flash_mla.flash_mla_interface = flash_mla
    flash_mla.fused_norm_rope_attn_rope_cast = fused
    sys.modules["flash_mla"] = flash_mla
    sys.modules["flash_mla.flash_mla_interface"] = flash_mla
    sys.modules["flash_mla.fused_norm_rope_attn_rope_cast"] = fused
