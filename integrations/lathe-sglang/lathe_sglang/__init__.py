"""Lathe's latent attention inside SGLang, through its plug-in hooks.

SGLang calls activate() in each of its processes. LATHE_SGLANG selects what is replaced: off, sparse (the default; the "dsa" attention
backend's flashmla_kv and flashmla_sparse), dense (the calls of the "flashmla" backend and V4), or all. With LATHE_SGLANG_STRICT=1 a
call or version that Lathe does not support stops the engine instead of running its own kernel. Nothing here touches a GPU before the
first forward.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any

from lathe.compat.plugin import Switches, Tally, differing

from . import hooks

# Releases tested with integrations/plugins_against_sources.py. Others are accepted if the parameters below are the same.
TESTED = ("0.5.23", "0.5.22", "0.5.21")

_DSA = "sglang.srt.layers.attention.dsa_backend.DeepseekSparseAttnBackend"
_FACADE = "sglang.kernels.ops.attention.flash_mla_interface"

# By mode: the replaced function, its known parameters, and the hook.
TARGETS: dict[str, dict[str, tuple[tuple[str, ...], Callable[[Tally], Callable[..., Any]]]]] = {
    "sparse": {
        f"{_DSA}._forward_flashmla_kv": (
            ("self", "q_all", "kv_cache", "v_head_dim", "sm_scale", "layer", "metadata", "page_table_1"),
            hooks.forward_flashmla_kv,
        ),
        f"{_DSA}._forward_flashmla_sparse": (
            ("self", "q_all", "kv_cache", "v_head_dim", "page_table_1", "sm_scale", "topk_length", "attn_sink"),
            hooks.forward_flashmla_sparse,
        ),
    },
    "dense": {
        f"{_FACADE}.flash_mla_with_kvcache": (
            ("q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata",
             "num_splits", "softmax_scale", "causal", "descale_q", "descale_k", "is_fp8_kvcache", "indices",
             "attn_sink", "extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length",
             "kv_format", "use_legacy"),
            hooks.flash_mla_with_kvcache,
        ),
        f"{_FACADE}.flash_mla_sparse_fwd": (
            ("q", "kv", "indices", "sm_scale", "d_v", "attn_sink", "topk_length", "use_legacy"),
            hooks.flash_mla_sparse_fwd,
        ),
    },
}  # fmt: skip

_log = logging.getLogger("lathe_sglang")
tally: Tally | None = None  # of this process, from activate() on


def _resolve(target: str) -> tuple[Any, str | None]:
    """The function with this dotted name, or why there is none."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError as error:
            # The module itself may be missing while its parents exist.
            if error.name and ".".join(parts[:cut]).startswith(error.name):
                continue
            return None, f"its module needs {error.name or error}"
        try:
            for part in parts[cut:]:
                found = getattr(found, part)
        except AttributeError:
            break
        return found, None
    return None, "this release has no such function"


def activate() -> None:
    """Registers the hooks of the mode in LATHE_SGLANG and logs one line about it."""
    global tally
    if tally is not None:
        return
    switches = Switches("LATHE_SGLANG", ("off", "sparse", "dense", "all"), "sparse")
    if switches.mode == "off":
        _log.info("lathe-sglang: off")
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    tally = Tally("lathe_sglang", switches.strict)
    modes = ("sparse", "dense") if switches.mode == "all" else (switches.mode,)
    done: list[str] = []
    left: list[str] = []
    for target, (known, hook) in ((t, v) for mode in modes for t, v in TARGETS[mode].items()):
        name = target.rsplit(".", 1)[1]
        function, reason = _resolve(target)
        reason = reason or differing(function, known)
        if reason is not None:
            left.append(f"{name} ({reason})")
            continue
        HookRegistry.register(target, hook(tally), HookType.AROUND)
        done.append(name)
    version = importlib.metadata.version("sglang")
    line = f"lathe-sglang on SGLang {version}: replaced {', '.join(done) or 'nothing'}"
    if left:
        line += f"; left {', '.join(left)}"
    if version not in TESTED:
        line += f"; tested with SGLang {', '.join(TESTED)}"
    if left and switches.strict:
        # SGLang logs a plug-in's exceptions and continues without it.
        raise SystemExit(f"{line}; LATHE_SGLANG_STRICT=1 does not allow that")
    _log.warning("%s", line)
