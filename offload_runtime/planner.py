"""Choose what to offload and when: the published greedy rule, ``select: largest_first``.

Works on records alone (no graph, no torch). Source: torchtitan's graph offload pass, as described in
its documentation: candidates largest first until the budget is spent, the wait for each copy placed ``defer``
layers behind the last forward use, the reload started ``prefetch`` layers ahead of the first backward use, and the
last layers kept on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offload_runtime.compiler import Decision
from offload_runtime.offload_plan import Candidate, Timeline, Transfer

__all__ = ["Selection", "plan_largest_first", "schedule_transfers", "start_of_last_layers"]


@dataclass(frozen=True)
class Selection:
    """The chosen candidates, by index, and for each candidate that was not chosen the reason."""

    chosen: tuple[int, ...]
    reasons: tuple[str | None, ...]


def plan_largest_first(
    candidates: Sequence[Candidate],
    decisions: Sequence[Decision],
    *,
    budget: int | None,
    keep_last: int,
    num_layers: int | None,
    timeline: Timeline,
) -> Selection:
    """Pick the candidates that are to be offloaded, largest first, within ``budget`` bytes (None: unlimited).

    ``decisions`` stands in parallel to ``candidates``. A candidate that does not fit the rest of the
    budget is passed over and a smaller one may still fit, as published. ``must`` candidates are taken first.
    """
    reasons: list[str | None] = [None] * len(candidates)
    tail = start_of_last_layers(timeline, keep_last, num_layers)
    wanted: list[int] = []
    for index, (candidate, decision) in enumerate(zip(candidates, decisions, strict=True)):
        if decision.action != "offload":
            continue
        if candidate.obstacle is not None:
            reasons[index] = candidate.obstacle
        elif tail is not None and candidate.ready >= tail and not decision.must:
            reasons[index] = (
                f"schedule.keep_last: it belongs to the last {keep_last} of {num_layers} layers or follows them"
            )
        else:
            wanted.append(index)
    wanted.sort(key=lambda i: (not decisions[i].must, -candidates[i].moved_bytes, candidates[i].ready))
    chosen: list[int] = []
    spent = 0
    for index in wanted:
        moved = candidates[index].moved_bytes
        if budget is not None and spent + moved > budget:
            reasons[index] = (
                f"budget: {moved} more bytes than limits.budget leaves ({budget - spent} of {budget})"
            )
            continue
        spent += moved
        chosen.append(index)
    return Selection(tuple(sorted(chosen)), tuple(reasons))


def start_of_last_layers(timeline: Timeline, keep_last: int, num_layers: int | None) -> int | None:
    """Return the forward position at which the last ``keep_last`` layers begin; None keeps nothing.

    What follows the layers (the head, the loss) is needed sooner still, so it is kept with them.
    """
    if keep_last == 0 or num_layers is None:
        return None
    layers = enumerate(timeline.forward_layers)
    return next((at for at, layer in layers if layer is not None and layer >= num_layers - keep_last), None)


def schedule_transfers(
    chosen: Sequence[Candidate], timeline: Timeline, *, defer: int, prefetch: int
) -> tuple[Transfer, ...]:
    """Place the copies of ``chosen``: ``defer`` and ``prefetch`` count layers as they execute.

    A copy starts after its last write. Its wait stands at the end of the ``defer``-th layer behind the one that
    holds the last forward use (0: right after that use), at the latest at the end of forward. Its
    reload starts at the beginning of the layer ``prefetch`` layers before the first backward use (0: right before it).
    """
    forward = _LayerRuns(timeline.forward_layers)
    backward = _LayerRuns(timeline.backward_layers)
    return tuple(
        Transfer(
            source=source,
            copy_after=candidate.ready,
            release_after=forward.end_of_run_after(candidate.last_forward_use, defer),
            reload_before=backward.start_of_run_before(candidate.first_backward_use, prefetch),
            use_before=candidate.first_backward_use,
        )
        for candidate in chosen
        for source in candidate.sources
    )


class _LayerRuns:
    """Execution order cut into runs: a run begins where a layer is met for the first time.

    A stray node of an earlier layer does not end a run, so that ``defer`` and ``prefetch`` count layers, not changes.
    """

    def __init__(self, layers: Sequence[int | None]) -> None:
        self._starts: list[int] = [0]
        self._run_of: list[int] = []
        met: set[int] = set()
        for position, layer in enumerate(layers):
            if layer is not None and layer not in met:
                if met:
                    self._starts.append(position)
                met.add(layer)
            self._run_of.append(len(self._starts) - 1)
        self._size = len(layers)

    def end_of_run_after(self, position: int, distance: int) -> int:
        if distance == 0:
            return position
        run = self._run_of[position] + distance
        return self._starts[run + 1] - 1 if run + 1 < len(self._starts) else self._size - 1

    def start_of_run_before(self, position: int, distance: int) -> int:
        if distance == 0:
            return position
        return self._starts[max(self._run_of[position] - distance, 0)]
