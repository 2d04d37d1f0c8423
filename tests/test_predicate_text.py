"""Predicates as people read them."""

from __future__ import annotations

import pytest

from offload_runtime.predicate_text import predicate_text
from offload_runtime.predicates import AllOf, AnyOf, Comparison, Not, Predicate

FITS = Comparison("fits", "is", True)
SLOW = Comparison("slowdown", "ge", 2)


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (FITS, "`fits` is true"),
        (Comparison("pipeline_parallel", "le", 1), "`pipeline_parallel` ≤ 1"),
        (Comparison("budget_bytes", "gt", "8GiB"), "`budget_bytes` > 8GiB"),
        (Comparison("optimizer", "in", ("adam", "adamw")), "`optimizer` is one of adam, adamw"),
        (Not(FITS), "not (`fits` is true)"),
        (AnyOf((FITS, SLOW)), "`fits` is true or `slowdown` ≥ 2"),
        (AllOf((SLOW, AnyOf((FITS, SLOW)))), "`slowdown` ≥ 2 and (`fits` is true or `slowdown` ≥ 2)"),
        (AllOf((AnyOf((FITS, SLOW)),)), "`fits` is true or `slowdown` ≥ 2"),
    ],
)
def test_a_predicate_is_one_line_with_brackets_where_they_are_needed(predicate: Predicate, text: str) -> None:
    assert predicate_text(predicate) == text
