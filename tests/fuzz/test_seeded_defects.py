"""Defects seeded into correct pairs: the verifier names each, and most give wrong numbers when simulated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from offload_runtime.errors import RunError
from offload_runtime.passes.verify import VerificationError
from tests.fuzz.defects import SEEDED_DEFECTS, SeededDefect
from tests.fuzz.pairs import Pair, draw_pairs

MAX_GRAPHS = 500
NUM_WANTED = 3

# What the verifier alone can see on this engine: the copy is complete by the time forward returns it, and
# where host and device are one memory a host tensor can be read.
_INVISIBLE_IN_NUMBERS = {"lost copy", "host read by computation"}


class _Pool:
    """Pairs drawn on demand, shared by all tests: few defects need more than the first."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._drawn: list[Pair] = []
        self._more = draw_pairs(first_seed=0, num_draws=MAX_GRAPHS)

    def __iter__(self) -> Iterator[Pair]:
        position = 0
        while True:
            if position == len(self._drawn):
                self._drawn.append(next(self._more))
            yield self._drawn[position]
            position += 1


@pytest.fixture(scope="module")
def pool() -> _Pool:
    return _Pool()


def _broken_pairs(pool: _Pool, defect: SeededDefect) -> Iterator[Pair]:
    num_found = 0
    for pair in pool:
        broken = pair.copied()
        if defect.seed(broken.forward.graph, broken.backward.graph, pair.original.num_fwd_outputs):
            yield broken
            num_found += 1
        if num_found == NUM_WANTED:
            return


def test_a_copied_pair_is_sound_and_gives_the_recorded_numbers(pool: _Pool) -> None:
    for pair, _ in zip(pool, range(4), strict=False):
        copied = pair.copied()
        copied.verify()
        assert all(copied.numbers_are_right(timing) for timing in ("early", "late", "random"))


@pytest.mark.parametrize("defect", SEEDED_DEFECTS, ids=lambda defect: defect.name)
def test_the_verifier_names(defect: SeededDefect, pool: _Pool) -> None:
    for broken in _broken_pairs(pool, defect):
        with pytest.raises(VerificationError) as caught:
            broken.verify()
        assert defect.kind in {found.kind for found in caught.value.defects}


@pytest.mark.parametrize(
    "defect",
    [defect for defect in SEEDED_DEFECTS if defect.name not in _INVISIBLE_IN_NUMBERS],
    ids=lambda defect: defect.name,
)
def test_unverified_the_simulated_engine_shows(defect: SeededDefect, pool: _Pool) -> None:
    assert any(
        _goes_wrong(broken, timing)
        for broken in _broken_pairs(pool, defect)
        for timing in ("early", "late", "random")
    )


def _goes_wrong(broken: Pair, timing: str) -> bool:
    try:
        return not broken.numbers_are_right(timing)
    except RunError:
        return True
    except (RuntimeError, IndexError):
        return True  # poisoned indices and out-of-bounds views stop torch itself
