"""Lathe's latent attention as vLLM's attention backends LATHE_MLA_SPARSE and LATHE_MLA.

vLLM calls activate() in each of its processes, before it reads its arguments. LATHE_VLLM selects what is registered: off, name (the
default; chosen by --attention-backend), or override (LATHE_MLA_SPARSE also in place of FLASHMLA_SPARSE, so that vLLM's own choice
reaches it). With LATHE_VLLM_STRICT=1 an unsupported version of vLLM stops the engine. Nothing here touches a GPU before the first
forward.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging

from lathe.compat.plugin import Switches

# Releases tested with integrations/plugins_against_sources.py. Others are accepted if the classes are the same.
TESTED = ("0.33.0", "0.32.0", "0.31.0")

_OVERRIDE = "lathe_vllm.sparse.LatheFlashMLASparseBackend"
# By name: the module with the backend, and its class.
BACKENDS = {
    "LATHE_MLA_SPARSE": ("sparse", "LatheMLASparseBackend"),
    "LATHE_MLA": ("dense", "LatheMLABackend"),
}

_log = logging.getLogger("lathe_vllm")
_done = False


def _misfit(module: str) -> str | None:
    """Why a backend does not work with this vLLM; None if it does."""
    try:
        return importlib.import_module(f"lathe_vllm.{module}").misfit()
    except ImportError as error:
        return f"this release has other modules: {error}"


def activate() -> None:
    """Registers the backends selected by LATHE_VLLM and logs one line about it."""
    global _done
    # vLLM may load plug-ins twice in a process.
    if _done:
        return
    switches = Switches("LATHE_VLLM", ("off", "name", "override"), "name")
    _done = True
    if switches.mode == "off":
        _log.info("lathe-vllm: off")
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # vLLM 0.31 accepts no new names, but has one spare.
    named = hasattr(AttentionBackendEnum, "register")
    registered, left = [], []
    for name, (module, backend) in BACKENDS.items():
        reason = _misfit(module)
        if reason is None and not named and registered:
            reason = "this release takes no new names"
        if reason is not None:
            left.append(f"{name} ({reason})")
            continue
        register_backend(name if named else AttentionBackendEnum.CUSTOM, f"lathe_vllm.{module}.{backend}")
        registered.append(name if named else f"{name} as CUSTOM")
        if name == "LATHE_MLA_SPARSE" and switches.mode == "override":
            register_backend(AttentionBackendEnum.FLASHMLA_SPARSE, _OVERRIDE)
            registered[-1] += ", also in place of FLASHMLA_SPARSE"
    version = importlib.metadata.version("vllm")
    line = f"lathe-vllm on vLLM {version}: registered {', '.join(registered) or 'nothing'}"
    if left:
        line += f"; left {', '.join(left)}"
    if version not in TESTED:
        line += f"; tested with vLLM {', '.join(TESTED)}"
    if switches.strict and not registered:
        # vLLM logs a plug-in's exceptions and continues without it.
        raise SystemExit(f"{line}; LATHE_VLLM_STRICT=1 does not allow that")
    _log.warning("%s", line)
