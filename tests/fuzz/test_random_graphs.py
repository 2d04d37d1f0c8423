"""Random models under random policies: nothing that a policy may do changes a number."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.fuzz.running import draw_case, run_case

_shown: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.timeout(900)  # hypothesis draws hundreds of graphs; a busy machine takes its time
@settings(
    max_examples=110,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=False))
def test_a_rewritten_graph_gives_the_bits_of_plain_autograd_and_leaves_nothing_behind(
    rng: random.Random,
) -> None:
    case = draw_case(rng, max_steps=8, num_treatments=2)
    assume(case is not None)
    assert case is not None
    outcome = run_case(case)
    assume(outcome.set_aside is None)
    for shown in outcome.graphs:
        _shown.update(shown)
    assert not outcome.faults, f"{outcome.faults} in {case}"


@pytest.mark.parametrize(
    "feature",
    ["transfers", "replayed_views", "fate_recompute", "split", "in_place", "multi_output", "random", "slice"],
)
def test_the_random_graphs_above_show(feature: str) -> None:
    if not _shown:
        pytest.skip("the random graphs did not run in this session")
    assert _shown[feature] >= 3
