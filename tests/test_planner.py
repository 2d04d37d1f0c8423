from collections.abc import Sequence
from dataclasses import replace

import pytest

from offload_runtime.compiler import Decision, SavedActivation
from offload_runtime.offload_plan import Candidate, Timeline, TransferSource
from offload_runtime.planner import Selection, plan_largest_first, schedule_transfers

OFFLOAD = Decision("offload")
FOUR_LAYERS = Timeline((None, 0, 0, 1, 1, 2, 2, 3, 3, None, None), ())
MUST = Decision("offload", must=True, rule="strict")


def _candidate(
    num_bytes: int, *, layer: int | None = 0, ready: int = 0, obstacle: str | None = None
) -> Candidate:
    activation = SavedActivation(
        name=f"mm_{num_bytes}_{ready}",
        op="aten.mm.default",
        op_class="matmul",
        module=f"layers.{layer}",
        layer=layer,
        num_layers=4,
        num_bytes=num_bytes,
        dtype="float32",
        layout="contiguous",
    )
    source = TransferSource(activation.name, num_bytes)
    return Candidate(activation, (source,), ready, ready + 1, 0, obstacle)


def _select(
    candidates: Sequence[Candidate],
    decisions: Sequence[Decision] | None = None,
    *,
    budget: int | None = None,
    keep_last: int = 0,
    num_layers: int | None = 4,
) -> Selection:
    given = decisions if decisions is not None else [OFFLOAD] * len(candidates)
    return plan_largest_first(
        candidates,
        given,
        budget=budget,
        keep_last=keep_last,
        num_layers=num_layers,
        timeline=FOUR_LAYERS,
    )


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [
        (None, (0, 1, 2)),
        (0, ()),
        (9, (0,)),
        (10, (1,)),
        (30, (2,)),
        (39, (0, 2)),
        (40, (1, 2)),
        (44, (0, 1, 2)),
    ],
)
def test_the_largest_that_fit_the_rest_of_the_budget_are_taken(
    budget: int | None, chosen: tuple[int, ...]
) -> None:
    candidates = [_candidate(4), _candidate(10), _candidate(30)]
    assert _select(candidates, budget=budget).chosen == chosen


def test_what_does_not_fit_says_how_much_was_left() -> None:
    reason = _select([_candidate(10), _candidate(30)], budget=35).reasons[0]
    assert reason is not None
    assert "5 of 35" in reason


def test_of_equal_sizes_the_earlier_is_taken() -> None:
    assert _select([_candidate(8, ready=5), _candidate(8, ready=2)], budget=8).chosen == (1,)


def test_strict_candidates_come_first_whatever_their_size() -> None:
    assert _select([_candidate(100), _candidate(8)], [OFFLOAD, MUST], budget=100).chosen == (1,)


def test_only_what_the_policy_offloads_is_taken() -> None:
    decisions = [Decision("save"), Decision("recompute"), Decision("auto"), OFFLOAD]
    selection = _select([_candidate(8, ready=i) for i in range(4)], decisions)
    assert selection.chosen == (3,)
    assert selection.reasons == (None, None, None, None)


def test_an_obstacle_is_the_reason() -> None:
    selection = _select([_candidate(8, obstacle="parameter")], [MUST])
    assert selection.chosen == ()
    assert selection.reasons == ("parameter",)


@pytest.mark.parametrize(
    ("keep_last", "num_layers", "chosen"),
    [
        (0, 4, (0, 1, 2, 3, 4)),
        (1, 4, (0, 1, 2)),
        (2, 4, (0, 1)),
        (4, 4, ()),
        (9, 4, ()),
        (2, None, (0, 1, 2, 3, 4)),
    ],
)
def test_the_last_layers_and_what_follows_them_stay(
    keep_last: int, num_layers: int | None, chosen: tuple[int, ...]
) -> None:
    layers = [_candidate(8, layer=layer, ready=2 * layer + 1) for layer in range(4)]
    head = _candidate(8, layer=None, ready=9)
    assert _select([*layers, head], keep_last=keep_last, num_layers=num_layers).chosen == chosen


def test_what_comes_before_the_layers_is_not_kept_with_the_last_of_them() -> None:
    assert _select([_candidate(8, layer=None, ready=0)], keep_last=3).chosen == (0,)


def test_a_candidate_kept_with_the_last_layers_says_so() -> None:
    (reason,) = _select([_candidate(8, layer=3, ready=7)], keep_last=1).reasons
    assert reason is not None
    assert reason.startswith("schedule.keep_last")


def test_a_strict_rule_wins_over_keep_last() -> None:
    assert _select([_candidate(8, layer=3, ready=7)], [MUST], keep_last=1).chosen == (0,)


# Forward positions 0..8: a placeholder, layers 0, 1 and 2 of two operations each, a head and the output.
TIMELINE = Timeline((None, 0, 0, 1, 1, 2, 2, None, None), (None, None, 2, 2, 1, 1, 0, 0, None))


@pytest.mark.parametrize(
    ("last_use", "defer", "release_after"),
    [(2, 0, 2), (2, 1, 4), (2, 2, 8), (2, 100, 8), (1, 1, 4), (5, 1, 8), (0, 0, 0)],
)
def test_the_wait_for_a_copy_stands_defer_layers_behind_the_last_use(
    last_use: int, defer: int, release_after: int
) -> None:
    candidate = replace(_candidate(8), ready=0, last_forward_use=last_use, first_backward_use=4)
    (transfer,) = schedule_transfers([candidate], TIMELINE, defer=defer, prefetch=0)
    assert transfer.release_after == release_after
    assert transfer.copy_after == 0


@pytest.mark.parametrize(
    ("first_use", "prefetch", "reload_before"), [(7, 0, 7), (7, 1, 4), (7, 2, 0), (7, 100, 0), (2, 1, 0)]
)
def test_a_reload_starts_prefetch_layers_before_its_first_use(
    first_use: int, prefetch: int, reload_before: int
) -> None:
    candidate = replace(_candidate(8), first_backward_use=first_use)
    (transfer,) = schedule_transfers([candidate], TIMELINE, defer=0, prefetch=prefetch)
    assert (transfer.reload_before, transfer.use_before) == (reload_before, first_use)


def test_a_stray_operation_of_an_earlier_layer_begins_no_new_layer() -> None:
    timeline = Timeline((0, 1, 0, 1, 2, 2), (None,) * 6)
    candidate = replace(_candidate(8), ready=0, last_forward_use=0)
    (transfer,) = schedule_transfers([candidate], timeline, defer=1, prefetch=0)
    assert transfer.release_after == 3


def test_without_layers_deferral_runs_to_the_end_of_forward() -> None:
    timeline = Timeline((None,) * 5, (None,) * 5)
    candidate = replace(_candidate(8), last_forward_use=1, first_backward_use=3)
    (transfer,) = schedule_transfers([candidate], timeline, defer=1, prefetch=1)
    assert (transfer.release_after, transfer.reload_before) == (4, 0)


def test_every_source_of_a_candidate_travels_by_itself() -> None:
    sources = (TransferSource("a", 4), TransferSource("b", 4))
    transfers = schedule_transfers([replace(_candidate(8), sources=sources)], TIMELINE, defer=1, prefetch=1)
    assert [transfer.source.node for transfer in transfers] == ["a", "b"]
