"""One training step as the planner and the simulator see it: kernels in order, storages, what each could become.

Works on numbers alone: no graph, no torch. Positions count kernels, forward first, then backward; a kernel is one
launch of the compute stream (an operator, or several that a compiler fuses).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offload_runtime.compiler import Fate

__all__ = [
    "Copy",
    "Item",
    "Kernel",
    "LinkRates",
    "Move",
    "Recompute",
    "Region",
    "Simulation",
    "StepTrace",
]


@dataclass(frozen=True)
class Kernel:
    """One launch on the compute stream: how long it runs, and the layer it belongs to (None: outside of them)."""

    name: str
    duration_ms: float
    layer: int | None = None


@dataclass(frozen=True)
class Region:
    """A device storage of ``num_bytes`` that lives from kernel ``first`` to kernel ``last``, both included.

    ``is_gradient``: backward leaves it behind, for the optimizer.
    """

    name: str
    num_bytes: int
    first: int
    last: int
    is_gradient: bool = False


@dataclass(frozen=True)
class Recompute:
    """What it takes to compute an item again in backward.

    ``duration_ms`` is added to the compute stream right before the item's first backward use. ``needs`` are the
    indices of the items that are read for it: each has to be on the device by then.
    """

    duration_ms: float
    needs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Item:
    """A saved storage: what the planner decides on.

    ``created`` is the kernel that allocates it, ``ready`` the kernel after which it is complete (a copy may start),
    ``last_forward_use`` the last forward kernel that reads it; ``first_backward_use`` and ``last_backward_use`` the
    first and last backward kernel. ``moved_bytes`` cross the link in each direction when it is offloaded.
    ``fates`` are those permitted, ``save`` among them or not. ``num_copies`` is the number of copies one offload
    makes in each direction, each with its own start-up time.
    """

    name: str
    num_bytes: int
    moved_bytes: int
    created: int
    ready: int
    last_forward_use: int
    first_backward_use: int
    last_backward_use: int
    fates: frozenset[Fate]
    recompute: Recompute | None = None
    num_copies: int = 1


@dataclass(frozen=True)
class LinkRates:
    """The link between device and host: bytes per millisecond in each direction, and the start-up time of a copy.

    ``duplex_share`` is the part of each direction's rate that is left while both directions are busy (1.0: full
    duplex). ``contention`` is the share by which a kernel takes longer while any copy runs (0.06: 6 % longer).
    """

    d2h_bytes_per_ms: float
    h2d_bytes_per_ms: float
    latency_ms: float = 0.0
    duplex_share: float = 1.0
    contention: float = 0.0


@dataclass(frozen=True)
class Move:
    """One offloaded item on the time line: positions count kernels.

    The copy to the host may start when kernel ``copy_after`` is done. After kernel ``release_after`` (a forward
    kernel) the compute stream waits for it and the storage is freed. The reload is issued, and its memory taken,
    before kernel ``reload_before`` (a backward kernel), and waited for before kernel ``use_before``. Each direction
    is a queue: to the host by (``copy_after``, ``item``), to the device by (``reload_before``, ``use_before``,
    ``item``).
    """

    item: int
    copy_after: int
    release_after: int
    reload_before: int
    use_before: int


@dataclass(frozen=True)
class StepTrace:
    """A forward-backward pair with nothing offloaded and nothing recomputed but what the graph itself holds.

    ``resident_bytes`` (parameters, buffers, inputs, and what else outlives the step) are alive throughout. ``regions``
    are all storages that are not up for decision, ``items`` those that are: an item that is saved lives from
    ``created`` to ``last_backward_use``. ``kernels[:num_forward]`` run forward.
    """

    kernels: tuple[Kernel, ...]
    num_forward: int
    resident_bytes: int
    regions: tuple[Region, ...]
    items: tuple[Item, ...] = field(default=())


@dataclass(frozen=True)
class Copy:
    """One transfer as simulated. ``stall_ms`` is how long the compute stream stood still for it."""

    item: str
    direction: Literal["d2h", "h2d"]
    num_bytes: int
    start_ms: float
    end_ms: float
    stall_ms: float


@dataclass(frozen=True)
class Simulation:
    """A step on three lanes (compute, D2H, H2D), with device and host memory.

    ``starts_ms`` and ``ends_ms`` are those of each kernel, recomputation before it included in its duration.
    ``device_bytes`` and ``host_bytes`` are what is allocated while each kernel runs.
    """

    starts_ms: tuple[float, ...]
    ends_ms: tuple[float, ...]
    copies: tuple[Copy, ...]
    device_bytes: tuple[int, ...]
    host_bytes: tuple[int, ...]

    @property
    def step_ms(self) -> float:
        """From the first kernel's start to the last one's end."""
        return self.ends_ms[-1] if self.ends_ms else 0.0

    @property
    def stall_ms(self) -> float:
        """How long the compute stream stands still."""
        return sum(copy.stall_ms for copy in self.copies)

    @property
    def peak_bytes(self) -> int:
        """The peak of device memory."""
        return max(self.device_bytes, default=0)

    @property
    def peak_at(self) -> int:
        """The first kernel at which device memory peaks."""
        return self.device_bytes.index(self.peak_bytes) if self.device_bytes else 0

    @property
    def hidden_fraction(self) -> float | None:
        """The share of copy time that does not stall the compute stream; None without copies."""
        total = sum(copy.end_ms - copy.start_ms for copy in self.copies)
        return max(0.0, 1 - self.stall_ms / total) if total else None
