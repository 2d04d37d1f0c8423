"""Peers: other ways to spend less device memory, which a policy is measured against; named without torch.

::

    peer     = NAME [":" argument]
    argument = value ("," KEY "=" NUMBER)*

How each one wraps a model is in `offload_runtime.models.peer_losses`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.shape import did_you_mean
from offload_runtime.units import format_size, parse_size

__all__ = [
    "PEERS",
    "ActivationBudget",
    "Compile",
    "Eager",
    "EagerCheckpoint",
    "LargestFirst",
    "Peer",
    "Planned",
    "SaveOnCpu",
    "TorchOffload",
    "parse_peer",
]

_FRACTION = re.compile(r"(0|1)(\.[0-9]{1,9})?\Z")
_DEFER_LAYERS, _PREFETCH_LAYERS = 8, 1  # as published with results
_LAYER_COUNTS = {"defer": _DEFER_LAYERS, "prefetch": _PREFETCH_LAYERS}
_MAX_LAYERS = 1000
_NAME_CHARACTERS = re.compile(r"[^a-z0-9.-]+")


@dataclass(frozen=True)
class Peer:
    """One way to run a training step that is no policy of the user's.

    ``argument`` is its canonical text, so that equal peers have equal titles; None where there is none.
    """

    name: ClassVar[str]
    syntax: ClassVar[str]
    summary: ClassVar[str]

    @classmethod
    def parse(cls, argument: str | None) -> Peer:
        """Return the peer with this ``argument``, None where there is no colon; raises UsageError (BEN902)."""
        if argument is not None:
            raise _bad_argument(cls, f"takes no argument, and was given {argument!r}", f"write {cls.name}")
        return cls()

    @property
    def argument(self) -> str | None:
        """Return what stands behind the colon."""
        return None

    @property
    def title(self) -> str:
        """Return the peer as it is written on the command line."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


@dataclass(frozen=True)
class Eager(Peer):
    """The module as it is."""

    name = syntax = "eager"
    summary = "the module as it is"


@dataclass(frozen=True)
class EagerCheckpoint(Peer):
    """``torch.utils.checkpoint`` around each layer, not reentrant."""

    name = syntax = "eager-checkpoint"
    summary = "torch.utils.checkpoint around each layer"


@dataclass(frozen=True)
class SaveOnCpu(Peer):
    """``torch.autograd.graph.save_on_cpu`` around the step, pinned where there is an accelerator."""

    name = syntax = "save-on-cpu"
    summary = "torch.autograd.graph.save_on_cpu, always with pin_memory=True; its default is False"


@dataclass(frozen=True)
class Compile(Peer):
    """``torch.compile`` alone: what a user has today."""

    name = syntax = "compile"
    summary = "torch.compile alone"


@dataclass(frozen=True)
class ActivationBudget(Peer):
    """``torch.compile`` under ``torch._functorch.config.activation_memory_budget``, a share from 0 to 1."""

    name, syntax = "activation-budget", "activation-budget:SHARE"
    summary = "torch.compile under activation_memory_budget, 0 to 1"

    share: float

    @classmethod
    def parse(cls, argument: str | None) -> ActivationBudget:
        """Return the peer for a share such as ``0.6``."""
        share = float(argument) if argument is not None and _FRACTION.match(argument) else math.nan
        if not 0 <= share <= 1:
            hint = "write a share from 0 to 1, such as activation-budget:0.6"
            raise _bad_argument(cls, _given(argument), hint)
        return cls(share)

    @property
    def argument(self) -> str:
        """Return the share, as short as it can be written."""
        return f"{self.share:g}"


@dataclass(frozen=True)
class TorchOffload(Peer):
    """``torch.compile`` under torch's own ``enable_activation_offloading``."""

    name = syntax = "torch-offload"
    summary = "torch.compile under enable_activation_offloading"


@dataclass(frozen=True)
class LargestFirst(Peer):
    """The published rule: the largest heavy activations first, until ``budget_bytes`` are spent.

    ``defer`` and ``prefetch`` count layers; see `policy_source` for what it is in each mode.
    """

    name, syntax = "largest-first", "largest-first:SIZE[,defer=N][,prefetch=N]"
    summary = "the published pass: the largest activations are offloaded first"

    budget_bytes: int
    defer: int = _DEFER_LAYERS
    prefetch: int = _PREFETCH_LAYERS

    @classmethod
    def parse(cls, argument: str | None) -> LargestFirst:
        """Return the peer for a budget and settings such as ``12GiB,defer=8``."""
        size, *settings = (argument or "").split(",")
        try:
            budget_bytes = parse_size(size)
        except ValueError as error:
            hint = "write a budget, such as largest-first:12GiB,defer=8,prefetch=1"
            raise _bad_argument(cls, f"{_given(argument)}: {error}", hint) from error
        counts: dict[str, int] = {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if key not in _LAYER_COUNTS or key in counts:
                cure = f"give {key} once" if key in counts else did_you_mean(key, _LAYER_COUNTS)
                cure = cure or f"behind the budget stand {' and '.join(_LAYER_COUNTS)}"
                raise _bad_argument(cls, f"{_given(argument)}: {key!r}", cure)
            if not value.isascii() or not value.isdigit() or int(value) > _MAX_LAYERS:
                hint = f"write a number of layers up to {_MAX_LAYERS}, such as {key}=2"
                raise _bad_argument(cls, f"{_given(argument)}: {setting!r}", hint)
            counts[key] = int(value)
        return cls(budget_bytes, **counts)

    @property
    def argument(self) -> str:
        """Return the budget, then what differs from the default."""
        counts = {"defer": self.defer, "prefetch": self.prefetch}
        settings = [f"{key}={count}" for key, count in counts.items() if count != _LAYER_COUNTS[key]]
        return ",".join([format_size(self.budget_bytes), *settings])

    def policy_source(self, mode: str) -> dict[str, Any]:
        """Return the policy that does this in ``mode``.

        In mode ``graph`` what `sac-default` saves is offloaded where a transfer of it pays, as published; in
        mode ``inductor`` torch's own partitioner decides about the rest.
        """
        return {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": _NAME_CHARACTERS.sub("-", self.title.lower()),
            "limits": {"budget": format_size(self.budget_bytes)},
            "schedule": {"select": "largest_first", "defer": self.defer, "prefetch": self.prefetch},
            **(_OVER_SAC if mode == "graph" else _OVER_MIN_CUT),
        }


@dataclass(frozen=True)
class Planned(Peer):
    """Our planner under a limit on device memory: what is saved, recomputed and offloaded is decided together."""

    name, syntax = "planned", "planned:SIZE"
    summary = "our planner under a limit on device memory"

    device_peak_bytes: int

    @classmethod
    def parse(cls, argument: str | None) -> Planned:
        """Return the peer for a limit such as ``40GiB``."""
        try:
            return cls(parse_size(argument or ""))
        except ValueError as error:
            raise _bad_argument(
                cls, f"{_given(argument)}: {error}", "write a limit, such as planned:40GiB"
            ) from error

    @property
    def argument(self) -> str:
        """Return the limit."""
        return format_size(self.device_peak_bytes)

    def policy_source(self, mode: str) -> dict[str, Any]:
        """Return the policy that does this: `fit` under this limit, the same in both modes."""
        return {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": _NAME_CHARACTERS.sub("-", self.title.lower()),
            "extends": ["fit"],
            "limits": {"device_peak": self.argument},
        }


def _heavy(**match: Any) -> dict[str, Any]:
    # A small model has nothing this large; that is no mistake of whoever measures it.
    return {"name": "heavy", "match": match, "action": "offload", "optional": True}


_OVER_SAC: Mapping[str, Any] = MappingProxyType(
    {
        "extends": ["sac-default"],
        "activations": {
            "layer_outputs": "offload",
            "rules": [
                _heavy(op=["matmul", "attention", "convolution"], bytes={"min": "4KiB"}, layout="dense")
            ],
        },
    }
)
_OVER_MIN_CUT: Mapping[str, Any] = MappingProxyType(
    {
        "activations": {
            "default": "auto",
            "rules": [_heavy(op=["matmul", "attention"], bytes={"min": "1MiB"})],
        }
    }
)


def parse_peer(text: str) -> Peer:
    """Return the peer that ``text`` names.

    Raises UsageError for a name that is none (BEN901) and for an argument that it does not take (BEN902).
    """
    name, colon, argument = text.partition(":")
    peer = PEERS.get(name)
    if peer is None:
        hint = did_you_mean(name, PEERS) or f"the peers are {', '.join(sorted(PEERS))}"
        raise UsageError(Diagnostic("BEN901", "error", f"there is no peer {name!r}", hint=hint))
    return peer.parse(argument if colon else None)


def _given(argument: str | None) -> str:
    return "needs an argument" if argument is None else f"was given {argument!r}"


def _bad_argument(peer: type[Peer], what: str, hint: str) -> UsageError:
    return UsageError(Diagnostic("BEN902", "error", f"peer {peer.name} {what}", hint=hint))


PEERS: Mapping[str, type[Peer]] = MappingProxyType(
    {
        peer.name: peer
        for peer in (
            Eager,
            EagerCheckpoint,
            SaveOnCpu,
            Compile,
            ActivationBudget,
            TorchOffload,
            LargestFirst,
            Planned,
        )
    }
)
"""Every peer by its name."""
