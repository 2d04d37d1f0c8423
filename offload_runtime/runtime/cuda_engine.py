"""The CUDA engine: two copy streams and events; nothing on the host ever waits in a normal step.

    d2h_start   compute --event--> D2H stream: [fences of the slot] copy, event E
    d2h_wait    compute waits for E; the source may go
    h2d_start   compute allocates dev --event--> H2D stream: [fences, E among them] copy, event F
    h2d_wait    compute waits for F

One stream for both directions would halve a duplex link. The engine owns both streams for the life of the
process. Between a start and its wait it holds the tensor that the copy reads or writes, so that the caching
allocator cannot give the memory away: no ``record_stream``, whose release time nobody can plan.
"""

# torch leaves these constructors untyped.
# mypy: untyped-calls-exclude="torch"

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.faults import broken_order, record_in_flight, slot_for
from offload_runtime.runtime.ledger import Direction, Interval, TransferLedger
from offload_runtime.runtime.slot import Slot
from offload_runtime.runtime.spans import byte_span, span_bytes, without_lazy_bits
from offload_runtime.runtime.transfer import EngineName, EngineSnapshot, TransferRecord, transfer_record


@dataclass(frozen=True, slots=True)
class CudaFence:
    """Mark the end of one copy on a lane (a device and a direction)."""

    lane: Hashable
    sequence: int
    event: torch.cuda.Event

    def synchronize(self) -> None:
        """Block the calling thread until the copy is done."""
        self.event.synchronize()


@dataclass(slots=True, eq=False)
class _Pending:
    """Hold the device tensor of a copy that nobody has waited for, and the stream its memory belongs to."""

    record: TransferRecord
    tensor: torch.Tensor
    event: torch.cuda.Event
    stream: torch.cuda.Stream

    def let_go(self) -> None:
        """Order the memory's next use after the copy; the tensor may then be dropped."""
        self.stream.wait_event(self.event)


@dataclass(slots=True, eq=False)
class _Offload:
    """Follow one host buffer: its D2H copy, then its reloads."""

    record: TransferRecord
    outgoing: _Pending | None = None
    waited: bool = False
    incoming: list[_Pending] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Timing:
    record: TransferRecord
    interval: Interval
    start: torch.cuda.Event
    end: torch.cuda.Event


def enqueue_copy(to: torch.Tensor, from_: torch.Tensor) -> None:
    """Copy between device and pinned memory on the current stream, without waiting for it."""
    to.copy_(from_, non_blocking=True)


class CudaEngine:
    """Run the transfers of one CUDA device on streams of its own."""

    name: EngineName = "cuda"

    def __init__(self, device: torch.device, arena: HostArena) -> None:
        self.arena = arena
        self.device = device
        # Copies of one lane must be enqueued in the order of their sequence numbers.
        self._lock = threading.Lock()
        self._sequence = itertools.count()
        self._streams: dict[Direction, torch.cuda.Stream] = {}
        self._ledger = TransferLedger(self.name, str(device))
        self._profiling = False
        self._timings: list[_Timing] = []

    def d2h_start(self, src: torch.Tensor, transfer: int) -> torch.Tensor:
        """Start the copy of ``src`` into a fresh pinned buffer.

        Raises RefusedError (RUN504) while the stream is captured into a CUDA graph.
        """
        record = transfer_record(transfer)
        compute = self._compute_stream(record)
        src = without_lazy_bits(src)
        num_bytes = span_bytes(src)
        slot, host = self.arena.host_buffer(num_bytes, src.shape, src.stride(), src.dtype)
        offload = _Offload(record)
        slot.engine, slot.state, slot.on_release = self, offload, self._release
        if num_bytes:
            fence = self._copy(record, "d2h", slot, to=slot.bytes(), from_=byte_span(src), compute=compute)
            offload.outgoing = _Pending(record, src, fence.event, compute)
        return host

    def d2h_wait(self, host: torch.Tensor, src: torch.Tensor, transfer: int) -> torch.Tensor:
        """Make the compute stream wait for the copy; ``src`` may be released after it."""
        offload = self._offload_of(host, transfer)[1]
        record = record_in_flight(offload.record, transfer)
        compute = self._compute_stream(record)
        if offload.waited:
            raise broken_order(record, "its offload was waited for twice")
        if offload.outgoing is not None:
            self._wait(compute, offload.outgoing)
        offload.waited, offload.outgoing = True, None
        return host

    def h2d_start(self, host: torch.Tensor, device: torch.device, transfer: int) -> torch.Tensor:
        """Start the copy of ``host`` into fresh device memory, after its own D2H copy.

        Raises RefusedError (RUN504) while the stream is captured into a CUDA graph.
        """
        slot, offload = self._offload_of(host, transfer)
        record = record_in_flight(offload.record, transfer)
        if device.type != self.device.type or device.index not in (None, self.device.index):
            raise broken_order(record, f"it left {self.device} but is to be reloaded to {device}")
        compute = self._compute_stream(record)
        # On the compute stream, so that its next user there is ordered after this one's last.
        dev = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device=self.device)
        if slot.num_bytes:
            fence = self._copy(record, "h2d", slot, to=byte_span(dev), from_=slot.bytes(), compute=compute)
            offload.incoming.append(_Pending(record, dev, fence.event, compute))
        return dev

    def h2d_wait(self, dev: torch.Tensor, host: torch.Tensor, transfer: int) -> torch.Tensor:
        """Make the compute stream wait for the copy into ``dev``."""
        offload = self._offload_of(host, transfer)[1]
        record = record_in_flight(offload.record, transfer)
        compute = self._compute_stream(record)
        if dev.numel() == 0:
            return dev
        address = dev.untyped_storage().data_ptr()
        for position, pending in enumerate(offload.incoming):
            if pending.tensor.untyped_storage().data_ptr() == address:
                self._wait(compute, pending)
                del offload.incoming[position]
                return dev
        raise broken_order(record, "its reload is waited for, but not in flight")

    def drain(self) -> None:
        """Let go of whatever dead host buffers still hold; never blocks."""
        self.arena.drain()

    def copy_stream(self, direction: Direction) -> torch.cuda.Stream:
        """Return the engine's stream for one direction, made on first use; the engine owns it."""
        stream = self._streams.get(direction)
        if stream is None:
            stream = self._streams[direction] = torch.cuda.Stream(self.device)
        return stream

    def set_profiling(self, enabled: bool) -> None:
        """Time copies and stalls from now on, or stop; costs four events a transfer."""
        self._profiling = enabled

    def snapshot(self) -> EngineSnapshot:
        """Return the counts since the last reset; waits for the copies that are being timed."""
        self.arena.drain()
        timings, self._timings = self._timings, []
        for timing in timings:
            timing.end.synchronize()
            self._ledger.add_time(timing.record, timing.interval, timing.start.elapsed_time(timing.end))
        return self._ledger.snapshot()

    def reset(self) -> None:
        """Set the counters to zero and drop what was timed."""
        self._timings = []
        self._ledger.reset()

    def _compute_stream(self, record: TransferRecord) -> torch.cuda.Stream:
        """Return the stream that the caller computes on, now: it may differ from call to call."""
        if torch.cuda.is_current_stream_capturing():
            message = (
                f"transfer {record.name!r} runs while its stream is captured into a CUDA graph, but its host "
                "buffer is not static: a replay would copy into memory that belongs to somebody else"
            )
            hint = "turn CUDA graphs off for this region (mode='reduce-overhead', torch.cuda.graph)"
            raise RefusedError(Diagnostic("RUN504", "error", message, hint=hint))
        return torch.cuda.current_stream(self.device)

    def _offload_of(self, host: torch.Tensor, transfer: int) -> tuple[Slot, _Offload]:
        slot = slot_for(host, transfer)
        assert isinstance(slot.state, _Offload), "a slot's state belongs to the engine that started it"
        return slot, slot.state

    def _copy(
        self,
        record: TransferRecord,
        direction: Direction,
        slot: Slot,
        *,
        to: torch.Tensor,
        from_: torch.Tensor,
        compute: torch.cuda.Stream,
    ) -> CudaFence:
        """Enqueue one copy behind the compute stream's present point and return its fence."""
        lane = (self.device, direction)
        with self._lock:
            stream = self.copy_stream(direction)
            with torch.cuda.stream(stream):
                stream.wait_stream(compute)
                self._wait_for_fences(stream, slot, lane)
                start = self._timing_event(stream)
                enqueue_copy(to, from_)
                event = self._timing_event(stream) or stream.record_event()
            fence = CudaFence(lane, next(self._sequence), event)
            slot.add_fence(fence)
        if start is not None:
            self._timings.append(_Timing(record, direction, start, event))
        self._ledger.count_copy(record, direction, slot.num_bytes)
        return fence

    def _wait_for_fences(self, stream: torch.cuda.Stream, slot: Slot, lane: Hashable) -> None:
        """Wait for every earlier copy from or to this memory: for a reload, its own offload is one of them.

        Copies of the same lane are ordered anyway.
        """
        for fence in slot.fences:
            if fence.lane != lane:
                assert isinstance(fence, CudaFence), "the arena of CUDA devices has fences of CUDA engines"
                stream.wait_event(fence.event)

    def _wait(self, compute: torch.cuda.Stream, pending: _Pending) -> None:
        start = self._timing_event(compute)
        compute.wait_event(pending.event)
        if start is not None:
            end = compute.record_event(torch.cuda.Event(enable_timing=True))
            self._timings.append(_Timing(pending.record, "stall", start, end))

    def _timing_event(self, stream: torch.cuda.Stream) -> torch.cuda.Event | None:
        return stream.record_event(torch.cuda.Event(enable_timing=True)) if self._profiling else None

    def _release(self, slot: Slot) -> bool:
        """Let go of the copies of a dead buffer that nobody waited for.

        Their device memory goes back to the allocator only behind the copy. Tells False, to be asked again,
        while a capture forbids touching streams or when the device is in error.
        """
        offload = slot.state
        assert isinstance(offload, _Offload), "a slot's state belongs to the engine that started it"
        abandoned = [*offload.incoming, *([offload.outgoing] if offload.outgoing else [])]
        if abandoned:
            if torch.cuda.is_current_stream_capturing():
                return False
            try:
                for pending in abandoned:
                    pending.let_go()
            except RuntimeError:
                return False
            self._ledger.count_abandoned(len(abandoned))
        slot.state = None
        return True
