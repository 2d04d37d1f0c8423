"""Layers that were treated alike are reported as one run."""

from __future__ import annotations

from offload_runtime.compiler import Fate, SavedActivation
from offload_runtime.models.layer_runs import LayerRun, layer_runs
from offload_runtime.offload_plan import TensorVerdict


def verdict(
    layer: int | None, fate: Fate, *, rule: str | None = "heavy", num_bytes: int = 100, moved_bytes: int = 0
) -> TensorVerdict:
    activation = SavedActivation(
        name="t",
        op="aten.mm.default",
        op_class="matmul",
        module="",
        layer=layer,
        num_layers=4,
        num_bytes=num_bytes,
        dtype="float32",
        layout="contiguous",
    )
    return TensorVerdict(activation, fate, rule, "", moved_bytes=moved_bytes)


def test_consecutive_layers_with_equal_fates_join() -> None:
    verdicts = [verdict(layer, "offload", moved_bytes=100) for layer in range(3)] + [verdict(3, "save")]
    assert layer_runs(verdicts) == (
        LayerRun("0-2", "offload", "heavy", 3, 300, 300),
        LayerRun("3", "save", "heavy", 1, 100, 0),
    )


def test_a_gap_between_layers_ends_a_run() -> None:
    runs = layer_runs([verdict(0, "save"), verdict(2, "save")])
    assert [run.layers for run in runs] == ["0", "2"]


def test_layers_of_other_bytes_or_rules_do_not_join() -> None:
    runs = layer_runs(
        [verdict(0, "save"), verdict(1, "save", num_bytes=7), verdict(2, "save", rule=None, num_bytes=7)]
    )
    assert [(run.layers, run.rule, run.num_bytes) for run in runs] == [
        ("0", "heavy", 100),
        ("1", "heavy", 7),
        ("2", None, 7),
    ]


def test_fates_within_a_run_come_largest_first_and_what_is_outside_comes_last() -> None:
    verdicts = [
        verdict(None, "skip", rule=None, num_bytes=10_000),
        verdict(0, "save", num_bytes=5),
        verdict(0, "offload", num_bytes=50, moved_bytes=50),
    ]
    runs = layer_runs(verdicts)
    assert [(run.layers, run.fate) for run in runs] == [("0", "offload"), ("0", "save"), ("outside", "skip")]


def test_no_tensors_give_no_runs() -> None:
    assert layer_runs([]) == ()
