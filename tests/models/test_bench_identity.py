"""When rounds may be added to rounds that are there already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offload_runtime.errors import RefusedError
from offload_runtime.models.bench_identity import continued
from offload_runtime.models.bench_result import BenchResult, Side
from tests.models.bench_results import bench_result, with_rounds

PATH = Path("result.json")
BEFORE = with_rounds(
    bench_result("base", "one").with_side(Side("one", "policy", "a" * 64, fits=True, compile_s=(3.0,))),
    {"base": ([10], 1), "one": ([11], 1), "base again": ([10], 1)},
)
NOW = bench_result("base", "one", num_rounds=9).with_side(Side("one", "policy", "a" * 64))


def test_the_same_measurement_goes_on_with_the_rounds_and_sides_that_are_there() -> None:
    result = continued(NOW, BEFORE, PATH)
    assert result.rounds == BEFORE.rounds
    assert result.side("one").compile_s == (3.0,)
    # How many rounds are wanted, and how they were asked for, is new.
    assert result.num_rounds == 9


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            replace(NOW, model=replace(NOW.model, spec="builtin:other")),
            "model is builtin:other now and builtin:some",
        ),
        (replace(NOW, model=replace(NOW.model, inputs=("int64[2, 8]",))), r"inputs is int64\[2, 8\] now"),
        (replace(NOW, model=replace(NOW.model, num_layers=None)), "layers is none now and 2 there"),
        (replace(NOW, model=replace(NOW.model, num_parameters=1)), "parameters is 1 now and 1000 there"),
        (replace(NOW, model=replace(NOW.model, dtype="float32")), "dtype is float32 now"),
        (replace(NOW, model=replace(NOW.model, optimizer="adamw")), "optimizer is adamw now"),
        (replace(NOW, model=replace(NOW.model, seed=1)), "seed is 1 now and 0 there"),
        (replace(NOW, mode="inductor"), "mode is inductor now and graph there"),
        (replace(NOW, device="cpu"), "device is cpu now and cuda there"),
        (replace(NOW, hardware="h200-pcie5"), "hardware is h200-pcie5 now and none there"),
        (replace(NOW, steps=7), "steps is 7 now and 2 there"),
        (replace(NOW, warmup=7), "warmup is 7 now"),
        (
            replace(NOW, environment=replace(NOW.environment, gpu="Other")),
            "gpu is Other now and Some GPU there",
        ),
        (
            replace(NOW, environment=replace(NOW.environment, torch="3.0")),
            "torch is 3.0 now and 2.13.0 there",
        ),
        (replace(NOW, environment=replace(NOW.environment, package="9")), "package is 9 now and 0.1.0 there"),
        (
            NOW.with_side(Side("one", "policy", "b" * 64)),
            "policy of one is bbbbbbbbbbbb now and aaaaaaaaaaaa there",
        ),
        (bench_result("base", "two"), "sides is base, two, base again now and base, one, base again there"),
        (bench_result("one", "base"), "baseline is one now and base there"),
    ],
)
def test_anything_else_is_refused_by_name(now: BenchResult, said: str) -> None:
    with pytest.raises(RefusedError, match=f"BEN912 result.json holds another measurement: .*{said}"):
        continued(now, BEFORE, PATH)


def test_what_may_change_between_two_runs_does_not_matter() -> None:
    environment = replace(NOW.environment, driver="9", link_gen=1, host_cores=2, python="3.12.0")
    assert continued(replace(NOW, environment=environment, command="x"), BEFORE, PATH).rounds == BEFORE.rounds
