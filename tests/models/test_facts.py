"""Facts about a model are those that a plan of the same model works with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload_runtime.advice import advise
from offload_runtime.compiler import load_policy
from offload_runtime.fact_sheet import FactsResult
from offload_runtime.fact_values import wrong_value
from offload_runtime.facts import FACTS
from offload_runtime.hardware import HardwareProfile, load_hardware
from offload_runtime.models.facts import gather_facts
from offload_runtime.models.planning import plan_model
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.predicates import Scalar

TINY = ModelRequest("builtin:llama-tiny", batch=4, layers=2, seq=256)
MIB = 1 << 20


def device_of(num_bytes: int) -> HardwareProfile:
    """Return an H100 with another size of memory."""
    profile = load_hardware("h100-pcie5")
    figures = tuple(
        replace(figure, value=num_bytes / 2**30, unit="GiB") if figure.key == "device.memory" else figure
        for figure in profile.figures
    )
    return HardwareProfile("small", "", figures)


@pytest.fixture(scope="module")
def overflowing() -> tuple[FactsResult, HardwareProfile]:
    hardware = device_of(24 * MIB)
    return gather_facts(TINY, hardware=hardware), hardware


def test_the_facts_of_a_model_are_those_of_its_plan(
    overflowing: tuple[FactsResult, HardwareProfile],
) -> None:
    result, hardware = overflowing
    sheet = result.sheet
    assert {fact.name for fact in sheet.known if wrong_value(FACTS[fact.name], fact.value)} == set()
    plan = plan_model(TINY, "sac-default", hardware=hardware)
    resident = plan.resident_bytes
    assert sheet.size("peak_bytes") == plan.baseline.peak_device_bytes
    assert sheet.number("step_ms") == plan.baseline.step_ms
    assert sheet.size("window_bytes") == plan.window.num_bytes
    assert sheet.size("gradient_bytes") == resident.gradients
    assert sheet.size("optimizer_state_bytes") == resident.optimizer_state
    assert sheet.size("resident_bytes") == resident.throughout + resident.gradients
    assert (sheet.get("num_layers"), sheet.get("num_graphs"), sheet.get("traceable")) == (2, 1, True)
    assert (sheet.get("micro_batch"), sheet.get("sequence_length"), sheet.get("is_moe")) == (4, 256, False)
    assert (sheet.get("trainable_fraction"), sheet.get("world_size")) == (1.0, 1)


def test_a_step_that_does_not_fit_has_a_floor_that_a_plan_reaches_and_none_goes_below(
    overflowing: tuple[FactsResult, HardwareProfile],
) -> None:
    result, hardware = overflowing
    floor, peak = result.sheet.size("floor_bytes"), result.sheet.size("peak_bytes")
    assert result.sheet.get("fits") is False
    assert result.estimate is not None
    assert floor is not None
    assert peak is not None
    assert result.estimate.step_bytes <= floor < peak
    at_floor = plan_model(
        replace(TINY, optimizer="none"),
        load_policy("fit", overrides={"limits.device_peak": f"{floor}B"}),
        hardware=hardware,
    )
    # Without an optimizer there is no state of it: the floor is lower by that.
    assert at_floor.policy.peak_device_bytes <= floor


def test_advice_follows_what_the_device_holds(overflowing: tuple[FactsResult, HardwareProfile]) -> None:
    result, hardware = overflowing
    assert advise(result).conclusion == "activations"
    floor = result.sheet.size("floor_bytes")
    assert floor is not None
    for capacity, conclusion in ((80 << 30, "nothing"), (floor - 1, "refused"), (6 * MIB, "refused")):
        found = gather_facts(TINY, hardware=hardware, given={"gpu_total_bytes": capacity})
        assert advise(found).conclusion == conclusion


def test_float32_masters_are_counted_where_the_run_keeps_them() -> None:
    request = replace(TINY, dtype="bfloat16")
    hardware = load_hardware("h100-pcie5")
    plain = gather_facts(request, hardware=hardware).sheet
    mixed = gather_facts(request, hardware=hardware, given={"master_weights": True})
    num_parameters = plain.size("num_parameters")
    assert num_parameters is not None
    assert plain.size("optimizer_state_bytes") == 4 * num_parameters
    assert mixed.sheet.size("optimizer_state_bytes") == 12 * num_parameters
    for name in ("resident_bytes", "peak_bytes"):
        before, after = plain.size(name), mixed.sheet.size(name)
        assert before is not None
        assert after is not None
        assert after - before == 8 * num_parameters


@pytest.mark.parametrize(
    ("given", "lowers_peak", "lowers_step"),
    [
        ({"parameter_offload": True}, 1, 1),
        ({"optimizer_offload": True}, 2, 3),
        ({"gradient_offload": True}, 0, 1),
        ({"optimizer_offload": True, "gradient_offload": True, "parameter_offload": True}, 3, 5),
    ],
    ids=str,
)
def test_what_another_system_has_off_the_device_is_not_in_the_peak(
    given: dict[str, Scalar],
    lowers_peak: int,
    lowers_step: int,
    overflowing: tuple[FactsResult, HardwareProfile],
) -> None:
    """AdamW in float32 keeps two moments; its step takes one more copy of the parameters, where it runs."""
    before, hardware = overflowing
    after = gather_facts(TINY, hardware=hardware, given=given)
    num_bytes = before.sheet.size("gradient_bytes")  # all parameters are trained, and of one type
    peaks = before.sheet.size("peak_bytes"), after.sheet.size("peak_bytes")
    assert num_bytes is not None
    assert None not in peaks
    assert before.estimate is not None
    assert after.estimate is not None
    assert peaks[0] - peaks[1] == lowers_peak * num_bytes  # type: ignore[operator]  # both are known, as just said
    assert before.estimate.step_bytes - after.estimate.step_bytes == lowers_step * num_bytes
    assert sum(part.num_bytes for part in after.estimate.step_parts) == after.estimate.step_bytes


def test_a_mixture_of_experts_and_adapters_are_recognised() -> None:
    experts = gather_facts(ModelRequest("builtin:moe-tiny", layers=1, seq=32), hardware=device_of(80 << 30))
    assert experts.sheet.get("is_moe") is True
    adapted = gather_facts(ModelRequest("builtin:llama-tiny-lora", layers=1, seq=32)).sheet
    assert adapted.number("trainable_fraction") == pytest.approx(7168 / adapted.values["num_parameters"])
    # Nothing is predicted where nobody said for which hardware.
    assert adapted.get("traceable") is True
    assert not {"peak_bytes", "step_ms", "window_bytes", "fits"} & set(adapted.values)


def test_what_several_ranks_share_is_no_part_of_a_plan_of_one() -> None:
    given: dict[str, Scalar] = {"data_parallel": 8, "zero_stage": 3, "master_weights": False}
    sheet = gather_facts(TINY, hardware=load_hardware("h100-pcie5"), given=given).sheet
    alone = gather_facts(TINY).sheet
    shared, whole = sheet.size("optimizer_state_bytes"), alone.size("optimizer_state_bytes")
    assert shared is not None
    assert whole is not None
    assert shared == -(-whole // 8)
    assert not {"peak_bytes", "floor_bytes", "fits", "world_size"} & set(sheet.values)


def broken() -> tuple[object, tuple[object, ...]]:
    """Return a model that computes with values outside of the graph."""
    import torch

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no such luck")

    return Broken(), (torch.ones(2, 4),)


def test_a_model_that_cannot_be_traced_keeps_the_facts_that_need_no_tracing() -> None:
    result = gather_facts(ModelRequest("tests.models.test_facts:broken"))
    assert result.sheet.get("traceable") is False
    assert result.sheet.size("num_parameters") == 20
    assert [note.code for note in result.notes] == ["ADV911"]
    assert result.notes[0].severity == "note"
