"""A card applies, does not, or hangs on facts that are named."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.card import Card, Condition, Interactions
from offload_runtime.card_verdicts import judge_card
from offload_runtime.document import document_from_data
from offload_runtime.policy_reading import read_predicate
from offload_runtime.predicates import Predicate, Scalar


def condition(text: str, when: Any = None, given: Any = None) -> Condition:
    def predicate(data: Any) -> Predicate | None:
        return None if data is None else read_predicate(document_from_data(data).root)

    return Condition(text, predicate(when), given=predicate(given))


def card(**lists: Any) -> Card:
    conditions = {key: tuple(condition(*entry) for entry in entries) for key, entries in lists.items()}
    kinds = ("required", "permitted", "conditional", "incompatible")
    interactions = Interactions(**{kind: conditions.pop(kind, ()) for kind in kinds})
    empty: dict[str, Any] = {"applies_to": (), "enable_when": (), "avoid_when": ()}
    return Card(
        name="x",
        title="",
        summary="",
        interactions=interactions,
        training_dimensions={},
        measured_results=(),
        failure_modes=(),
        known_limitations=(),
        follow_up_validation=(),
        claims=(),
        **{**empty, **conditions},
    )


OVERFLOWS = ("it does not fit", {"fact": "fits", "is": False})
STATE_FITS = ("the state does not fit", {"fact": "resident_fits", "is": False})
CUDA = ("only on CUDA", {"fact": "accelerator", "is": "cuda"})


@pytest.mark.parametrize(
    ("facts", "applies", "missing", "reasons"),
    [
        ({"fits": False, "resident_fits": True, "accelerator": "cuda"}, True, (), ("it does not fit",)),
        (
            {"fits": False, "resident_fits": False, "accelerator": "cuda"},
            False,
            (),
            ("the state does not fit",),
        ),
        ({"fits": False}, True, (), ("it does not fit",)),
        ({"fits": True}, False, (), ("not so: it does not fit",)),
        ({"fits": False, "accelerator": "none"}, False, (), ("it is for: only on CUDA",)),
        ({}, None, ("accelerator",), ()),
        ({"accelerator": "cuda"}, None, ("fits", "resident_fits"), ()),
        ({"resident_fits": True, "accelerator": "cuda"}, None, ("fits",), ()),
    ],
    ids=str,
)
def test_a_card_applies_where_it_is_enabled_and_not_avoided(
    facts: dict[str, Scalar], applies: bool | None, missing: tuple[str, ...], reasons: tuple[str, ...]
) -> None:
    judged = judge_card(card(applies_to=[CUDA], enable_when=[OVERFLOWS], avoid_when=[STATE_FITS]), facts)
    assert (judged.applies, judged.missing, judged.reasons) == (applies, missing, reasons)


def test_a_condition_in_words_alone_decides_nothing() -> None:
    judged = judge_card(card(enable_when=[("you want it",)], avoid_when=[("you do not",)]), {"fits": False})
    assert judged.applies is None
    assert [(c.holds, c.has_predicate, c.missing) for c in judged.conditions] == [(None, False, ())] * 2


STATE_MOVES = {"fact": "optimizer_offload", "is": True}
SHARED = ("needs the distributed optimizer", {"fact": "distributed_optimizer", "is": True}, STATE_MOVES)
GRAPHS = ("no CUDA graphs", {"fact": "cuda_graphs", "is": True})
RANKS = ("ranks share the host", {"fact": "ranks_per_node", "gt": 1})
STAGES = ("bears pipeline stages", {"fact": "pipeline_parallel", "gt": 1})


@pytest.mark.parametrize(
    ("facts", "labels"),
    [
        ({}, []),
        ({"optimizer_offload": False, "distributed_optimizer": False}, []),
        ({"optimizer_offload": True}, ["required (unknown)"]),
        ({"optimizer_offload": True, "distributed_optimizer": True}, []),
        ({"optimizer_offload": True, "distributed_optimizer": False}, ["required (missing)"]),
        (
            {"cuda_graphs": True, "ranks_per_node": 8, "pipeline_parallel": 2, "optimizer_offload": False},
            ["refused", "mind", "allowed"],
        ),
        ({"cuda_graphs": False, "ranks_per_node": 1, "pipeline_parallel": 1}, []),
    ],
    ids=str,
)
def test_what_is_required_refused_to_mind_and_allowed_is_told_apart(
    facts: dict[str, Scalar], labels: list[str]
) -> None:
    judged = judge_card(
        card(
            enable_when=[OVERFLOWS],
            required=[SHARED],
            permitted=[STAGES],
            conditional=[RANKS],
            incompatible=[GRAPHS],
        ),
        {"fits": False, **facts},
    )
    assert [found.label for found in judged.interactions] == labels


def test_a_requirement_in_every_run_is_missing_where_it_does_not_hold() -> None:
    judged = judge_card(card(enable_when=[OVERFLOWS], required=[CUDA]), {"accelerator": "none"})
    assert [(found.label, found.text) for found in judged.interactions] == [
        ("required (missing)", "only on CUDA")
    ]
