"""A card applies, does not, or hangs on facts that are named."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.card import Card, Condition, Interactions
from offload_runtime.card_verdicts import judge_card
from offload_runtime.document import document_from_data
from offload_runtime.policy_reading import read_predicate
from offload_runtime.predicates import Scalar


def condition(text: str, when: Any = None) -> Condition:
    return Condition(text, None if when is None else read_predicate(document_from_data(when).root))


def card(**lists: Any) -> Card:
    conditions = {key: tuple(condition(*entry) for entry in entries) for key, entries in lists.items()}
    interactions = Interactions(
        incompatible=conditions.pop("incompatible", ()), conditional=conditions.pop("conditional", ())
    )
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
        ({"fits": False, "accelerator": "none"}, False, (), ("only on CUDA",)),
        ({}, None, ("accelerator", "fits", "resident_fits"), ()),
        ({"resident_fits": True}, None, ("accelerator", "fits"), ()),
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


def test_what_to_mind_is_what_holds_here() -> None:
    graphs = ("no CUDA graphs", {"fact": "cuda_graphs", "is": True})
    ranks = ("ranks share the host", {"fact": "ranks_per_node", "gt": 1})
    judged = judge_card(
        card(enable_when=[OVERFLOWS], incompatible=[graphs], conditional=[ranks]),
        {"fits": False, "cuda_graphs": True, "ranks_per_node": 1},
    )
    assert judged.cautions == ("no CUDA graphs",)
