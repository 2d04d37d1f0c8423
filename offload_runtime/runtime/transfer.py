"""Transfers as values, the interface of the engines that run them, and the engine of each device.

A *transfer* is one tensor's way to the host and back. The graph names it by a number, so that a compiled
graph carries nothing but integers; the table below says what the number means. A number is never used
twice in a process.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from offload_runtime.errors import Diagnostic, RefusedError, RunError

EngineName = Literal["cuda", "simulated"]


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """Describe one transfer.

    ``poison_source`` asks the simulated engine to overwrite the source with NaN bytes once it may be
    released; only for a source whose storage nobody else reads.
    """

    key: int
    name: str
    num_bytes: int
    poison_source: bool = False


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Count what one transfer did; times are milliseconds, None where nothing was timed."""

    name: str
    num_bytes: int
    num_d2h_copies: int = 0
    num_h2d_copies: int = 0
    d2h_bytes: int = 0
    h2d_bytes: int = 0
    d2h_ms: float | None = None
    h2d_ms: float | None = None
    stall_ms: float | None = None


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Show what an engine did since its counters were last reset.

    ``num_abandoned`` counts copies that were started and never waited for: an exception between the two,
    or a graph without its wait.
    """

    engine: EngineName
    device: str
    transfers: tuple[TransferStats, ...]
    num_abandoned: int = 0

    @property
    def d2h_bytes(self) -> int:
        return sum(t.d2h_bytes for t in self.transfers)

    @property
    def h2d_bytes(self) -> int:
        return sum(t.h2d_bytes for t in self.transfers)

    @property
    def copy_ms(self) -> float | None:
        """Return the summed duration of all timed copies, both directions."""
        times = [ms for t in self.transfers for ms in (t.d2h_ms, t.h2d_ms) if ms is not None]
        return sum(times) if times else None

    @property
    def stall_ms(self) -> float | None:
        """Return how long the compute stream stood still for transfers."""
        times = [t.stall_ms for t in self.transfers if t.stall_ms is not None]
        return sum(times) if times else None

    @property
    def hidden_fraction(self) -> float | None:
        """Return the share of copy time that compute covered, 0 to 1; None where nothing was timed."""
        copy_ms, stall_ms = self.copy_ms, self.stall_ms
        if copy_ms is None or stall_ms is None or copy_ms <= 0:
            return None
        return max(0.0, 1.0 - stall_ms / copy_ms)


class TransferEngine(Protocol):
    """Run transfers of one device. Every method may be called from any thread.

    ``d2h_start`` and ``h2d_start`` return fresh memory whose content is undefined until the matching
    wait; the waits return their first argument. ``src`` may be released after ``d2h_wait``. The host
    buffer is the engine's until its storage dies, and no one but the engine may read it.
    """

    @property
    def name(self) -> EngineName: ...

    def d2h_start(self, src: torch.Tensor, transfer: int) -> torch.Tensor: ...

    def d2h_wait(self, host: torch.Tensor, src: torch.Tensor, transfer: int) -> torch.Tensor: ...

    def h2d_start(self, host: torch.Tensor, device: torch.device, transfer: int) -> torch.Tensor: ...

    def h2d_wait(self, dev: torch.Tensor, host: torch.Tensor, transfer: int) -> torch.Tensor: ...

    def drain(self) -> None:
        """Let go of whatever dead host buffers still hold; never blocks."""
        ...

    def set_profiling(self, enabled: bool) -> None:
        """Time copies and stalls from now on, or stop."""
        ...

    def snapshot(self) -> EngineSnapshot:
        """Return what was counted since the last reset."""
        ...

    def reset(self) -> None:
        """Set the counters to zero."""
        ...


_records: dict[int, TransferRecord] = {}
_keys = itertools.count()


def register_transfer(name: str, num_bytes: int, *, poison_source: bool = False) -> int:
    """Enter a transfer in the process's table and return its key; keys are never reused."""
    key = next(_keys)
    _records[key] = TransferRecord(key, name, num_bytes, poison_source)
    return key


def transfer_record(key: int) -> TransferRecord:
    """Return the transfer with this key. Raises RunError (RUN501) for an unknown key."""
    record = _records.get(key)
    if record is None:
        raise RunError(
            Diagnostic(
                "RUN501",
                "error",
                f"transfer {key} is not known in this process",
                hint="the graph was compiled elsewhere or its transfers were forgotten: compile it again "
                "(torch.compiler.reset())",
            )
        )
    return record


def transfer_records(keys: Iterable[int]) -> tuple[TransferRecord, ...]:
    """Return the transfers with these keys, in that order. Raises RunError (RUN501)."""
    return tuple(transfer_record(key) for key in keys)


def forget_transfers(keys: Iterable[int]) -> None:
    """Remove transfers whose graph is gone; unknown keys are ignored."""
    for key in keys:
        _records.pop(key, None)


EngineFactory = Callable[[torch.device], TransferEngine]

_lock = threading.Lock()
_factories: dict[str, EngineFactory] = {}
_engines: dict[tuple[str, int], TransferEngine] = {}
_overrides: list[TransferEngine] = []


def register_engine(device_type: str, factory: EngineFactory) -> None:
    """Say who builds the engine of a device type; called once per type at import."""
    _factories[device_type] = factory


def get_engine(device: torch.device | str) -> TransferEngine:
    """Return the engine for ``device``: the innermost :func:`use_engine`, else the device's own.

    Engines are built on first use, one per device. Raises RefusedError (RUN508) for a device type
    without an engine.
    """
    overrides = _overrides
    if overrides:
        return overrides[-1]
    device = torch.device(device)
    index: int | None = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    engine = _engines.get((device.type, index))
    return engine if engine is not None else _build_engine(device.type, index)


def _build_engine(device_type: str, index: int) -> TransferEngine:
    factory = _factories.get(device_type)
    if factory is None:
        known = ", ".join(sorted(_factories)) or "none"
        raise RefusedError(
            Diagnostic(
                "RUN508",
                "error",
                f"there is no transfer engine for device type {device_type!r}",
                hint=f"device types with an engine: {known}",
            )
        )
    with _lock:
        engine = _engines.get((device_type, index))
        if engine is None:
            engine = _engines[(device_type, index)] = factory(torch.device(device_type, index))
        return engine


@contextmanager
def use_engine(engine: TransferEngine) -> Iterator[TransferEngine]:
    """Start new transfers on ``engine``, whatever their device, in every thread of the process.

    A transfer stays with the engine that started it, so a backward may run after the context closed.
    """
    global _overrides
    with _lock:
        _overrides = [*_overrides, engine]
    try:
        yield engine
    finally:
        with _lock:
            remaining = list(_overrides)
            for position in range(len(remaining) - 1, -1, -1):
                if remaining[position] is engine:
                    del remaining[position]
                    break
            _overrides = remaining


@contextmanager
def profile(engine: TransferEngine) -> Iterator[TransferEngine]:
    """Time the copies and stalls of ``engine`` inside the context, from counters at zero.

    Read ``engine.snapshot()`` before or after the context closes.
    """
    engine.reset()
    engine.set_profiling(True)
    try:
        yield engine
    finally:
        engine.set_profiling(False)


def _forget_engines_after_fork() -> None:
    """Drop what a forked child inherited: streams and pinned memory belong to the parent."""
    global _lock, _overrides
    _lock = threading.Lock()
    _engines.clear()
    _overrides = []


os.register_at_fork(after_in_child=_forget_engines_after_fork)
