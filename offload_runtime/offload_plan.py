"""Records of what happens to every saved tensor, and when: the plan that the passes carry out.

A plan is a value: it names nodes and positions of one partitioned graph and holds no graph, so that it
can be printed, compared and hashed. Limits never appear here; the planner has already spent them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from offload_runtime.compiler import Fate, SavedActivation

__all__ = [
    "Candidate",
    "Forecast",
    "OffloadPlan",
    "PeakPlace",
    "TensorVerdict",
    "Timeline",
    "Transfer",
    "TransferSource",
]


@dataclass(frozen=True)
class TransferSource:
    """What one copy moves: a dense tensor of the forward graph, and the saved values it serves.

    ``node`` is the forward node that is copied; ``num_bytes`` its size. ``views`` are the saved values
    that backward rebuilds from the reloaded tensor; it is empty where the saved value is ``node`` itself.
    """

    node: str
    num_bytes: int
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One saved storage as the planner sees it.

    ``ready`` and ``last_forward_use`` are positions in the forward graph (the last write, and the last read
    through any alias), ``first_backward_use`` a position in the backward graph. ``obstacle`` says why the
    storage cannot be offloaded, or is None.
    """

    activation: SavedActivation
    sources: tuple[TransferSource, ...]
    ready: int
    last_forward_use: int
    first_backward_use: int
    obstacle: str | None = None

    @property
    def moved_bytes(self) -> int:
        """Bytes that one offload of this storage moves in each direction."""
        return sum(source.num_bytes for source in self.sources)


@dataclass(frozen=True)
class Timeline:
    """The layer of each operation, in execution order, of the forward and of the backward graph."""

    forward_layers: tuple[int | None, ...]
    backward_layers: tuple[int | None, ...]


@dataclass(frozen=True)
class Transfer:
    """One offloaded tensor: copied out after ``copy_after``, released after ``release_after``, reloaded before use.

    ``copy_after`` and ``release_after`` are positions in the forward graph; ``reload_before`` and ``use_before``
    positions in the backward graph: the reload starts before the node at ``reload_before`` runs, and the compute
    stream waits for it before the node at ``use_before`` runs.
    """

    source: TransferSource
    copy_after: int
    release_after: int
    reload_before: int
    use_before: int


@dataclass(frozen=True)
class TensorVerdict:
    """The fate of one forward storage, who decided it and why.

    ``moved_bytes`` is what one offload moves (0 for the other fates); ``num_views`` the saved views that are
    replayed from it.
    """

    activation: SavedActivation
    fate: Fate
    rule: str | None
    reason: str
    moved_bytes: int = 0
    num_views: int = 0


@dataclass(frozen=True)
class PeakPlace:
    """Where device memory peaks: the kernel, the layer it belongs to (None: outside of them), and its side."""

    kernel: str
    layer: int | None
    side: Literal["forward", "backward"]

    def __str__(self) -> str:
        layer = "outside the layers" if self.layer is None else f"layer {self.layer}"
        return f"{self.side}, {layer}, at {self.kernel}"


@dataclass(frozen=True)
class Forecast:
    """What the simulator predicts of one forward-backward on a hardware profile. Bytes are per rank.

    ``window_bytes`` is what the link carries between the first saved byte and the peak of the same step with
    nothing offloaded: what can leave for free. ``bound_ms`` and ``gap`` come from the planner's relaxation: a step time
    that no plan can beat, and how far this one is above it; None where nothing was planned.
    """

    hardware: str
    step_ms: float
    peak_bytes: int
    peak_at: PeakPlace
    resident_bytes: int
    host_bytes: int
    stall_ms: float
    hidden_fraction: float | None
    window_bytes: int
    stalls: tuple[tuple[str, float], ...] = ()
    bound_ms: float | None = None
    gap: float | None = None


@dataclass(frozen=True)
class OffloadPlan:
    """What one compiled forward-backward pair does with its saved tensors."""

    policy_hash: str
    verdicts: tuple[TensorVerdict, ...]
    transfers: tuple[Transfer, ...]

    @property
    def hash(self) -> str:
        """SHA-256, in hexadecimal, over what the plan does: the same in every process that plans the same.

        Tensors go by operator, module, layer and bytes, copies by bytes and places. Names of nodes (which a tracer
        may number differently), reasons and the policy's own hash (new in each process for a Python callable) stay
        out of it.
        """
        activations = [
            (
                v.activation.op,
                v.activation.module,
                v.activation.layer,
                v.activation.num_bytes,
                v.fate,
                v.moved_bytes,
            )
            for v in self.verdicts
        ]
        copies = [
            (
                transfer.source.num_bytes,
                len(transfer.source.views),
                transfer.copy_after,
                transfer.release_after,
                transfer.reload_before,
                transfer.use_before,
            )
            for transfer in self.transfers
        ]
        canonical = json.dumps({"activations": activations, "copies": copies}, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()

    @property
    def planned_bytes(self) -> int:
        """Bytes copied to the host in one forward."""
        return sum(transfer.source.num_bytes for transfer in self.transfers)

    def num_tensors(self, fate: Fate) -> int:
        """Number of storages with this fate."""
        return sum(verdict.fate == fate for verdict in self.verdicts)


Variant = Literal["policy", "reference", "baseline"]
