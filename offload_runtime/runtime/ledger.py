"""What an engine counts: copies and bytes by transfer, always; times, where somebody asked for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from offload_runtime.runtime.transfer import EngineName, EngineSnapshot, TransferRecord, TransferStats

Direction = Literal["d2h", "h2d"]
Interval = Literal["d2h", "h2d", "stall"]


@dataclass(slots=True)
class _Row:
    record: TransferRecord
    num_d2h_copies: int = 0
    num_h2d_copies: int = 0
    d2h_bytes: int = 0
    h2d_bytes: int = 0
    d2h_ms: float | None = None
    h2d_ms: float | None = None
    stall_ms: float | None = None


class TransferLedger:
    """Count copies by transfer. Thread-safe, and safe to call from a finalizer of the counting thread."""

    def __init__(self, engine: EngineName, device: str) -> None:
        self._engine: EngineName = engine
        self._device = device
        self._lock = threading.RLock()
        self._rows: dict[int, _Row] = {}
        self._num_abandoned = 0

    def count_copy(self, record: TransferRecord, direction: Direction, num_bytes: int) -> None:
        """Add one copy of ``num_bytes``."""
        with self._lock:
            row = self._row(record)
            if direction == "d2h":
                row.num_d2h_copies += 1
                row.d2h_bytes += num_bytes
            else:
                row.num_h2d_copies += 1
                row.h2d_bytes += num_bytes

    def add_time(self, record: TransferRecord, interval: Interval, elapsed_ms: float) -> None:
        """Add a measured duration: of a copy, or of the compute stream's standstill before a wait."""
        with self._lock:
            row = self._row(record)
            name = f"{interval}_ms"
            setattr(row, name, (getattr(row, name) or 0.0) + elapsed_ms)

    def count_abandoned(self, num_copies: int = 1) -> None:
        """Add copies that were started and never waited for."""
        with self._lock:
            self._num_abandoned += num_copies

    def reset(self) -> None:
        """Set everything to zero."""
        with self._lock:
            self._rows = {}
            self._num_abandoned = 0

    def snapshot(self) -> EngineSnapshot:
        """Return the counts as a value, in the order in which transfers were first seen."""
        with self._lock:
            transfers = tuple(
                TransferStats(
                    name=row.record.name,
                    num_bytes=row.record.num_bytes,
                    num_d2h_copies=row.num_d2h_copies,
                    num_h2d_copies=row.num_h2d_copies,
                    d2h_bytes=row.d2h_bytes,
                    h2d_bytes=row.h2d_bytes,
                    d2h_ms=row.d2h_ms,
                    h2d_ms=row.h2d_ms,
                    stall_ms=row.stall_ms,
                )
                for row in self._rows.values()
            )
            return EngineSnapshot(self._engine, self._device, transfers, self._num_abandoned)

    def _row(self, record: TransferRecord) -> _Row:
        return self._rows.setdefault(record.key, _Row(record))
