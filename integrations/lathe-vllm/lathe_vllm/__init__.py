"""Lathe's sparse latent attention as vLLM's attention backend LATHE_MLA_SPARSE.

vLLM calls activate() in each of its processes, before it reads its arguments. LATHE_VLLM says what is registered: off, name (the
default; chosen by --attention-backend LATHE_MLA_SPARSE), or override (in place of FLASHMLA_SPARSE, so that vLLM's own choice reaches it).
With LATHE_VLLM_STRICT=1 a version of vLLM that the backend does not fit stops the engine. Nothing here touches a GPU before the first
forward.
"""

from __future__ import annotations

import importlib.metadata
import logging

from lathe.compat.plugin import Switches

# Releases that integrations/stage_a.py has been run against. Others are taken where the classes are the same.
TESTED = ("0.33.0", "0.32.0", "0.31.0")

NAME = "LATHE_MLA_SPARSE"
_BACKEND = "lathe_vllm.backend.LatheMLASparseBackend"
_OVERRIDE = "lathe_vllm.backend.LatheFlashMLASparseBackend"

_log = logging.getLogger("lathe_vllm")


def _misfit() -> str | None:
    """Why the backend does not fit this vLLM; None where it does."""
    try:
        from . import backend
    except ImportError as error:
        return f"this release has other modules: {error}"
    return backend.misfit()


def activate() -> None:
    """Registers the backend as LATHE_VLLM says, and says in one line what it did."""
    switches = Switches("LATHE_VLLM", ("off", "name", "override"), "name")
    if switches.mode == "off":
        _log.info("lathe-vllm: off")
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # vLLM 0.31 takes no new names, but has one for whoever comes.
    member = NAME if hasattr(AttentionBackendEnum, "register") else "CUSTOM"
    # vLLM may load plug-ins twice in a process.
    known = AttentionBackendEnum.__members__.get(member)
    if known is not None and known.is_overridden():
        return
    version = importlib.metadata.version("vllm")
    line = f"lathe-vllm on vLLM {version}: "
    reason = _misfit()
    if reason is None:
        register_backend(NAME if known is None else known, _BACKEND)
        line += f"registered --attention-backend {member}"
        if switches.mode == "override":
            register_backend(AttentionBackendEnum.FLASHMLA_SPARSE, _OVERRIDE)
            line += ", also in place of FLASHMLA_SPARSE"
    else:
        line += f"registered nothing, as {reason}"
    if version not in TESTED:
        line += f"; tested with vLLM {', '.join(TESTED)}"
    if reason is not None and switches.strict:
        raise SystemExit(f"{line}; LATHE_VLLM_STRICT=1 allows no such thing")
    _log.warning("%s", line)
