"""What torch says of the code that it did not capture: graph breaks, and frames that it gave up on.

The only module that names ``torch._dynamo.utils.counters`` and ``compile_subgraph_reason``; both are present in torch
2.11 and 2.13. Where they are missing, no reason is known.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from typing import Any

import torch
from torch import fx

__all__ = ["graph_break_of", "is_broken_off", "num_recompile_limits", "reasons_given", "root_frame"]

_RECOMPILE_LIMIT = "Dynamo recompile limit exceeded"


def is_broken_off(gm: fx.GraphModule) -> bool:
    """Whether a Dynamo graph ends in a graph break."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return bool(getattr(reason, "graph_break", False))


def graph_break_of(gm: fx.GraphModule) -> str | None:
    """Return why and where a Dynamo graph was broken off, in one line; None for one that ends with its frame."""
    if not is_broken_off(gm):
        return None
    reason: Any = gm.compile_subgraph_reason
    stack = list(getattr(reason, "user_stack", None) or ())
    where = f" at {os.path.basename(stack[-1].filename)}:{stack[-1].lineno}" if stack else ""
    return f"{_first_line(getattr(reason, 'reason', ''))}{where}"


def root_frame(gm: fx.GraphModule) -> traceback.FrameSummary | None:
    """Return the outermost place at which a Dynamo graph ends; None for one that is broken off, or says nothing."""
    reason: Any = getattr(gm, "compile_subgraph_reason", None)
    stack = getattr(reason, "user_stack", None)
    return stack[0] if stack and not is_broken_off(gm) else None


def reasons_given() -> tuple[str, ...]:
    """Return the reasons that torch gave in this process for not capturing code, most frequent first."""
    found: Counter[str] = Counter()
    for category in ("unimplemented", "graph_break"):
        for message, times in _counters().get(category, {}).items():
            found[_first_line(message)] += times
    return tuple(reason for reason, _ in sorted(found.items(), key=lambda item: (-item[1], item[0])))


def num_recompile_limits() -> int:
    """Return how often torch stopped compiling a function in this process because it had compiled it too often."""
    unimplemented = _counters().get("unimplemented", {})
    return sum(times for message, times in unimplemented.items() if message.startswith(_RECOMPILE_LIMIT))


def _counters() -> dict[str, Any]:
    return getattr(torch._dynamo.utils, "counters", {})


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0].strip()
