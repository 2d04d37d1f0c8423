from __future__ import annotations

import time
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from offload_runtime.document import MapNode, document_from_data
from offload_runtime.findings import Findings
from offload_runtime.implication import fits_nothing, implies
from offload_runtime.matching import SavedActivation, matches
from offload_runtime.policy import Layout, Match
from offload_runtime.policy_reading import read_match
from tests.activations import activations
from tests.policy_documents import MATCHES
from tests.test_matching import match_of


def read(keys: dict[str, Any]) -> Match:
    """Return a match as it reads, without asking whether a rule with it would be accepted."""
    node = document_from_data(keys).root
    assert isinstance(node, MapNode)
    match = read_match(node, Findings())
    # The random documents have an odd word now and then, which the shape check refuses before anything is compared.
    assume(all(one.layout in get_args(Layout) for one in (match, match.negated) if one is not None))
    return match


@settings(max_examples=150)
@given(MATCHES, MATCHES, st.lists(activations(), min_size=1, max_size=8))
def test_what_implies_another_match_never_fits_where_that_does_not(
    narrow_keys: dict[str, Any], extra_keys: dict[str, Any], saved: list[SavedActivation]
) -> None:
    wide, narrow = read(narrow_keys), read(narrow_keys | extra_keys)
    for first, second in ((wide, narrow), (narrow, wide)):
        if implies(first, second):
            assert all(matches(second, one) for one in saved if matches(first, one))


@settings(max_examples=100)
@given(MATCHES, st.lists(activations(), min_size=1, max_size=8))
def test_a_match_that_is_said_to_fit_nothing_fits_nothing(
    keys: dict[str, Any], saved: list[SavedActivation]
) -> None:
    match = read(keys)
    assert implies(match, match)
    if fits_nothing(match):
        assert not any(matches(match, one) for one in saved)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ({"op": "matmul", "bytes": {"min": "1MiB"}}, {"op": "matmul"}),
        ({"op": "aten.mm.default"}, {"op": ["matmul", "attention"]}),
        ({"bytes": {"min": "2MiB", "max": "3MiB"}}, {"bytes": {"min": "1MiB"}}),
        ({"layout": "contiguous", "op": "norm"}, {"layout": "dense"}),
        ({"layers": ["0", "1:3"]}, {"layers": ":4"}),
        ({"module": "layers.0.wq"}, {"module": ["lm_head", "layers.**"]}),
        ({"module": "inside:a.b"}, {"module": "inside:a.*"}),
        ({"inside": "a.b"}, {"inside": "**"}),
        ({"dtype": "float32"}, {"dtype": ["float32", "bfloat16"]}),
        ({"op": "norm"}, {"module": "**"}),
        ({"op": "norm", "not": {"bytes": {"max": "1MiB"}}}, {"not": {"bytes": {"max": "1KiB"}}}),
    ],
)
def test_a_narrower_match_implies_a_wider_one_and_not_the_other_way(
    narrow: dict[str, Any], wide: dict[str, Any]
) -> None:
    assert implies(match_of(**narrow), match_of(**wide))
    assert not implies(match_of(**wide), match_of(**narrow))


def test_the_largest_policies_are_compared_in_seconds() -> None:
    modules = [{"module": [f"layers.*.{rule}.{member}" for member in range(70)]} for rule in range(256)]
    matches_of_rules = [read(keys) for keys in modules]
    started = time.perf_counter()
    for index, match in enumerate(matches_of_rules):
        assert not any(implies(match, earlier) for earlier in matches_of_rules[:index])
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"op": "matmul"}, {"op": "aten.mm.default"}),
        ({"layers": ":75%"}, {"layers": ":8"}),
        ({"module": "inside:a"}, {"module": "a"}),
        ({"op": "matmul"}, {"dtype": "float32"}),
    ],
)
def test_nothing_is_claimed_that_the_keys_do_not_show(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not implies(match_of(**one), match_of(**other))
