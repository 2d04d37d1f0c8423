"""Which sides a measurement has: the policies and peers that were asked for, and the baseline among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, UnreadableError, UsageError
from offload_runtime.models.bench_result import Side, SideKind
from offload_runtime.models.peers import PEERS, LargestFirst, Peer, Planned, parse_peer
from offload_runtime.shape import did_you_mean
from offload_runtime.shipped import shipped_policies

__all__ = ["DEFAULT_BASELINES", "SidePlan", "SidesPlan", "control_name", "plan_sides"]

DEFAULT_BASELINES = {"graph": "sac-default", "inductor": "compile"}
"""The baseline of each mode, where none is asked for: what a user of it has without offloading."""


@dataclass(frozen=True)
class SidePlan:
    """One side before it runs: its name, and what it is; ``policy`` is what goes through the back end, if any."""

    name: str
    kind: SideKind
    policy: CompiledPolicy | None = None
    peer: Peer | None = None

    @property
    def recorded(self) -> Side:
        """Return the side as a result holds it before anything has run."""
        return Side(self.name, self.kind, self.policy.hash if self.policy is not None else None)


@dataclass(frozen=True)
class SidesPlan:
    """All sides, the baseline first."""

    sides: tuple[SidePlan, ...]

    @property
    def baseline(self) -> str:
        """Return the name of the side that the others are compared with."""
        return self.sides[0].name

    @property
    def control(self) -> str:
        """Return the name under which the baseline takes its second turn."""
        return control_name(self.baseline)

    @property
    def recorded(self) -> tuple[Side, ...]:
        """Return the sides, and the control behind them, as a result holds them before anything has run."""
        control = Side(self.control, "control", self.sides[0].recorded.policy_hash)
        return (*(side.recorded for side in self.sides), control)


def control_name(baseline: str) -> str:
    """Return the second name of ``baseline``; the space in it keeps it apart from every other side."""
    return f"{baseline} again"


def plan_sides(
    policies: Sequence[str],
    peers: Sequence[str],
    *,
    mode: str,
    baseline: str | None = None,
    overrides: Sequence[str] = (),
) -> SidesPlan:
    """Return the sides that ``policies``, ``peers`` and ``baseline`` name.

    ``overrides`` change each of ``policies``, and neither the peers nor a baseline that is none of them.
    Raises UsageError for names that mean nothing or stand twice, and the errors of `load_policy`.
    """
    sides = [_policy_side(load_policy(reference, overrides=overrides)) for reference in policies]
    sides += [_peer_side(parse_peer(text), mode) for text in peers]
    first = _baseline(baseline or DEFAULT_BASELINES[mode], sides, mode)
    planned = [first, *(side for side in sides if side is not first)]
    _refuse_equal_names(planned)
    return SidesPlan(tuple(planned))


def _policy_side(policy: CompiledPolicy) -> SidePlan:
    return SidePlan(policy.name, "policy", policy)


def _peer_side(peer: Peer, mode: str) -> SidePlan:
    policy = load_policy(peer.policy_source(mode)) if isinstance(peer, LargestFirst | Planned) else None
    return SidePlan(peer.title, "peer", policy, peer)


def _baseline(wanted: str, sides: Iterable[SidePlan], mode: str) -> SidePlan:
    """Return the side called ``wanted``, or the peer or policy of that name as a side of its own."""
    named = {side.name: side for side in sides}
    if wanted in named:
        return named[wanted]
    if wanted.partition(":")[0] in PEERS:
        peer = _peer_side(parse_peer(wanted), mode)
        return named.get(peer.name, peer)
    try:
        return _policy_side(load_policy(wanted))
    except UnreadableError as error:
        if "/" in wanted or wanted.endswith((".yaml", ".yml")):
            raise
        choices = [*named, *PEERS, *shipped_policies()]
        hint = did_you_mean(wanted, choices) or f"name a side, a peer or a policy: {', '.join(choices)}"
        message = f"there is no side {wanted!r} to be the baseline"
        raise UsageError(Diagnostic("BEN904", "error", message, hint=hint)) from error


def _refuse_equal_names(sides: Sequence[SidePlan]) -> None:
    names = [side.name for side in sides]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"two sides are called {twice[0]}"
        hint = "list each side once; policies that differ need a `name` of their own each"
        raise UsageError(Diagnostic("BEN903", "error", message, hint=hint))
