"""The planner."""

from __future__ import annotations

import json
from typing import Any

from . import _args, _lathe
from ._errors import PlanRefused


class Plan:
    """The proof that a prefill kernel, a cache layout and a decode kernel fit together.

    Its fields are those of the JSON, as plain data: device, problem, caches, phases, budgets,
    notes, ... (``plan.phases["decode"]["routes"][0]["kernel"]``); ``data`` is the whole dict.
    """

    def __init__(self, data: dict[str, Any], text: str, explanation: str) -> None:
        self.data = data
        self._text = text
        self._explanation = explanation

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes; `data` itself is missing while unpickling.
        data = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(f"a plan has no {name!r}; it has {', '.join(data)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.data]

    def explain(self) -> str:
        """The output of ``lathe plan``: one line for each cache, phase and consequence."""
        return self._explanation

    def to_json(self) -> str:
        """The output of ``lathe plan --json``."""
        return self._text

    def __str__(self) -> str:
        return self._explanation

    def __repr__(self) -> str:
        return f"<lathe.Plan {self.data['problem']['kind']} on {self.data['device']}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.data == other.data

    # Not hashable: equality compares mutable data.
    __hash__ = None  # type: ignore[assignment]


def _typed(name: str, kind: str, value: Any) -> Any:
    if isinstance(value, _lathe.Layout):
        value = str(value)
    if kind == "str":
        return _args.text(name, value)
    if kind == "int":
        return _args.integer(name, value, -(2**63), 2**63 - 1)
    if not isinstance(value, bool):
        raise TypeError(f"{name}: wanted True or False, got {type(value).__name__}")
    return value


def plan(attention: str = "dsa", device: str = "ref", **options: Any) -> Plan:
    """Proves that a prefill kernel, one cache layout and a decode kernel fit together.

    attention: "mla" (DeepSeek V3), "dsa" (V3.2), "v4" or "gqa".
    device: "ref", "cpu", "sm90", ...; this machine need not have it.

    options are the flags of ``lathe plan`` with underscores; None means not given:
      backends and layout (str)  prefill_attention_backend, decode_attention_backend, kv_layout
                                 (also a Layout), kv_cache_dtype (bf16, fp8_e4m3, fp4_e2m1, or
                                 vLLM's bfloat16, fp8, fp8_ds_mla)
      sizes in tokens or rows    page_size, chunked_prefill_size, max_running_requests,
                                 context_length, draft_tokens, max_total_tokens
      layers that share a plan   num_layers
      budgets in bytes           indexer_logits_budget, gather_budget
      the problem's dims         heads, kv_heads, head_dim, top_k, window (0 keeps the family's
                                 own), compress_ratio (below 0 keeps it; 0 is the window alone)
      flags (bool)               sink, disable_cuda_graph

    Raises PlanRefused, with the reasons, if no plan fits; LatheError for an unknown attention or
    device; TypeError for an unknown option or a wrong type.
    """
    known = _lathe.keyword_types()
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"plan() knows no {', '.join(unknown)}; known: {', '.join(known)}")
    given = {n: _typed(n, known[n], v) for n, v in options.items() if v is not None}
    legal, text, explanation = _lathe.plan(
        _args.text("attention", attention), _args.text("device", device), json.dumps(given)
    )
    data = json.loads(text)
    if not legal:
        raise PlanRefused(explanation, data)
    return Plan(data, text, explanation)
