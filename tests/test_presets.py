"""The shipped policies are the published presets: values, not constants in code."""

from __future__ import annotations

import pytest

from offload_runtime.compiler import Decision, load_policy
from offload_runtime.shipped import shipped_policies
from offload_runtime.targets import TARGETS
from offload_runtime.validate import validate_file
from tests.activations import activation

PRESETS = {"conservative": (5, 8), "balanced": (10, 8), "max-savings": (100, 1), "moe": (10, 1)}


def test_the_presets_are_shipped() -> None:
    assert set(shipped_policies()) == {"sac-default", "fit", *PRESETS}


def test_fit_leaves_the_decision_to_the_planner() -> None:
    fit = load_policy("fit")
    assert (fit.policy.schedule.select, fit.policy.limits.device_peak) == ("planned", "auto")
    assert fit.decide(activation(op_class="matmul")) == Decision("auto", source="default")
    assert fit.decide(activation(op="aten.topk.default", op_class="routing")).must


@pytest.mark.parametrize(("name", "values"), PRESETS.items())
def test_a_preset_has_the_published_budget_and_defer(name: str, values: tuple[int, int]) -> None:
    policy = load_policy(name).policy
    assert (policy.limits.budget, policy.schedule.defer) == (values[0] * 10**9, values[1])
    assert (policy.schedule.select, policy.schedule.prefetch, policy.schedule.keep_last) == (
        "largest_first",
        1,
        1,
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_offloads_what_sac_default_saves_where_it_is_large_and_dense(name: str) -> None:
    preset, saved = load_policy(name), load_policy("sac-default")
    for op_class in ("matmul", "attention", "convolution"):
        large = activation(op_class=op_class, layout="dense")
        assert saved.decide(large) == Decision("save", rule="compute")
        assert preset.decide(large) == Decision("offload", rule="offload-compute")
        assert preset.decide(activation(op_class=op_class, num_bytes=4095)).action == "save"
        assert preset.decide(activation(op_class=op_class, layout="strided")).action == "save"
    crossing = activation(op="aten.add.Tensor", op_class="elementwise", crosses_layer=True)
    assert saved.decide(crossing).action == "save"
    assert preset.decide(crossing).action == "offload"


@pytest.mark.parametrize("name", ["sac-default", *PRESETS])
def test_routing_is_always_saved_and_the_rest_recomputed(name: str) -> None:
    policy = load_policy(name)
    assert policy.decide(activation(op_class="routing")) == Decision("save", must=True, rule="routing")
    assert policy.decide(activation(op="aten.mul.Tensor", op_class="elementwise")).action == "recompute"


@pytest.mark.parametrize("name", ["sac-default", *PRESETS])
@pytest.mark.parametrize(
    "op",
    [
        "_c10d_functional.reduce_scatter_tensor.default",
        "_c10d_functional.all_to_all_single.default",
        "_c10d_functional.wait_tensor.default",
        "deepep.dispatch.default",
        "deepep.combine.default",
        "hybridep.dispatch.default",
    ],
)
def test_no_preset_offloads_a_collective_or_its_wait(name: str, op: str) -> None:
    assert load_policy(name).decide(activation(op=op, op_class="collective")).action != "offload"


@pytest.mark.parametrize("name", ["sac-default", *PRESETS])
@pytest.mark.parametrize("target", TARGETS)
def test_every_front_end_honours_every_preset_without_a_finding(name: str, target: str) -> None:
    verdict = validate_file(name, target=target)
    assert (verdict.kind, verdict.diagnostics) == ("Policy", ())
