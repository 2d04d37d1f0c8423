from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.document import document_from_data
from offload_runtime.policy_reading import read_predicate
from offload_runtime.predicates import Predicate, Scalar, comparisons, evaluate

FACTS: dict[str, Scalar] = {"pp": 2, "free": 16 * 2**30, "gpu": "h100", "graphs": True, "share": 0.5}


def predicate(data: Any) -> Predicate:
    read = read_predicate(document_from_data(data).root)
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"fact": "pp", "le": 2}, True),
        ({"fact": "pp", "lt": 2}, False),
        ({"fact": "pp", "gt": 1}, True),
        ({"fact": "pp", "ge": 3}, False),
        ({"fact": "pp", "is": 2}, True),
        ({"fact": "pp", "is": 2.0}, True),
        ({"fact": "pp", "in": [1, 2]}, True),
        ({"fact": "gpu", "is": "h100"}, True),
        ({"fact": "gpu", "in": ["a100", "h200"]}, False),
        ({"fact": "free", "ge": "16GiB"}, True),
        ({"fact": "free", "lt": "16GB"}, False),
        ({"fact": "free", "is": "16GiB"}, True),
        ({"fact": "graphs", "is": True}, True),
        ({"fact": "graphs", "is": 1}, False),
        ({"fact": "share", "lt": 0.6}, True),
        ({"fact": "missing", "is": 1}, None),
        ({"not": {"fact": "pp", "is": 2}}, False),
        ({"not": {"fact": "missing", "is": 2}}, None),
        ({"all": [{"fact": "pp", "is": 2}, {"fact": "graphs", "is": True}]}, True),
        ({"all": [{"fact": "pp", "is": 1}, {"fact": "missing", "is": 1}]}, False),
        ({"all": [{"fact": "pp", "is": 2}, {"fact": "missing", "is": 1}]}, None),
        ({"any": [{"fact": "pp", "is": 2}, {"fact": "missing", "is": 1}]}, True),
        ({"any": [{"fact": "pp", "is": 1}, {"fact": "missing", "is": 1}]}, None),
        ({"any": [{"fact": "pp", "is": 1}, {"not": {"fact": "graphs", "is": True}}]}, False),
    ],
)
def test_a_condition_holds_fails_or_hangs_on_an_unknown_fact(data: Any, expected: bool | None) -> None:
    assert evaluate(predicate(data), FACTS) is expected


def test_facts_without_an_order_are_refused_instead_of_compared() -> None:
    with pytest.raises(ValueError, match="no order"):
        evaluate(predicate({"fact": "gpu", "le": 1}), FACTS)


def test_every_comparison_inside_is_listed_in_order() -> None:
    data = {
        "all": [{"fact": "a", "is": 1}, {"any": [{"not": {"fact": "b", "le": 2}}, {"fact": "c", "in": [3]}]}]
    }
    assert [c.fact for c in comparisons(predicate(data))] == ["a", "b", "c"]
