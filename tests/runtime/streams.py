"""CUDA streams without CUDA: queues that a scheduler runs in any order that the events allow.

The real engine's waits and records go into these queues, and the copies with them. What is right under every
schedule is ordered by events and not by luck.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

SCHEDULES = ("compute last", "d2h last", "h2d last", "random 1", "random 2", "random 3")


class Event:
    """Complete when the stream that recorded it reaches the record."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.device: Device | None = None
        self.done = False
        self.at_step = 0

    def synchronize(self) -> None:
        assert self.device is not None, "an event must be recorded before anybody waits for it"
        self.device.run(until=self)

    def elapsed_time(self, end: Event) -> float:
        assert self.enable_timing
        assert end.enable_timing
        return float(end.at_step - self.at_step)


class Stream:
    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name = device, name
        self.queue: list[tuple[str, Any]] = []
        device.streams.append(self)

    def enqueue(self, work: Callable[[], object]) -> None:
        """Let ``work`` run when the stream gets there."""
        self.queue.append(("work", work))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.device = self.device
        self.queue.append(("record", event))
        return event

    def wait_event(self, event: Event) -> None:
        assert event.device is not None, "waiting for an event that was never recorded does nothing on CUDA"
        self.queue.append(("wait", event))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def can_advance(self) -> bool:
        return bool(self.queue) and (self.queue[0][0] != "wait" or self.queue[0][1].done)

    def advance(self, step: int) -> None:
        kind, what = self.queue.pop(0)
        if kind == "work":
            what()
        elif kind == "record":
            what.done, what.at_step = True, step


class Device:
    """A fake device with a compute stream; the engine makes its own two."""

    def __init__(self, schedule: str) -> None:
        self.streams: list[Stream] = []
        self.schedule = schedule
        self.random = random.Random(schedule)
        self.compute = Stream(self, "compute")
        self.current = self.compute
        self.capturing = False
        self.num_steps = 0

    def new_stream(self, _: torch.device) -> Stream:
        return Stream(self, ("d2h", "h2d")[min(1, len(self.streams) - 1)])

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def run(self, until: Event | None = None) -> None:
        """Run everything that was enqueued, or until an event is done."""
        while not (until and until.done):
            ready = [stream for stream in self.streams if stream.can_advance()]
            if not ready:
                stuck = [stream.name for stream in self.streams if stream.queue]
                assert not stuck, f"streams wait for each other: {stuck}"
                return
            self.num_steps += 1
            self._choose(ready).advance(self.num_steps)

    def _choose(self, ready: list[Stream]) -> Stream:
        if self.schedule.endswith("last"):
            return min(ready, key=lambda stream: self.schedule == f"{stream.name} last")
        return self.random.choice(ready)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put this device in the place of ``torch.cuda`` for the CUDA engine."""
        patch.setattr(torch.cuda, "current_stream", lambda _=None: self.current)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        patch.setattr(torch.cuda, "stream", self.stream)
        patch.setattr(torch.cuda, "Stream", self.new_stream)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(
            "offload_runtime.runtime.cuda_engine.enqueue_copy",
            lambda to, from_: self.current.enqueue(lambda: to.copy_(from_)),
        )
