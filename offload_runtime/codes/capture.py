"""GRF3xx: capture and analysis of graphs."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES: tuple[CodeEntry, ...] = ()
