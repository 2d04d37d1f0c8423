"""What a step holds and takes without a policy: the optimizer's state and step, gradients that accumulate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from offload_runtime.hardware import load_hardware
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.planning import plan_policy, predict_baseline
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.traced_model import trace_request
from tests.models.planned_models import stack
from tests.models.planned_runs import PARAMETER_BYTES, WORKSPACE, baseline, policy


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("none", 0), ("sgd", 0), ("adamw", 2), ("adamw-fused", 2)]
)
def test_what_stays_is_counted_by_kind(optimizer: str, moments: int) -> None:
    resident = baseline(optimizer=optimizer).resident
    assert resident.parameters == resident.gradients == PARAMETER_BYTES
    assert resident.optimizer_state == moments * PARAMETER_BYTES
    assert resident.batch == 4096 * 64 * 4
    assert (resident.buffers, resident.workspace) == (0, WORKSPACE)
    assert baseline(optimizer=optimizer).planned.step.trace.resident_bytes == resident.throughout


def test_optimizer_state_is_as_torch_allocates_it() -> None:
    module, args = stack()
    optimizer = torch.optim.AdamW(module.parameters())
    module(*args).backward()
    optimizer.step()
    held = [
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    ]
    assert sum(held) == baseline(optimizer="adamw").resident.optimizer_state


@pytest.mark.parametrize(
    ("asked", "default", "assumed"),
    [(None, "sgd", True), (None, "none", True), (None, "adamw", False), ("sgd", "sgd", False)],
)
def test_an_optimizer_that_nobody_named_is_assumed(asked: str | None, default: str, assumed: bool) -> None:
    found = replace(baseline(optimizer=default), optimizer_is_given=asked is not None)
    assert plan_policy(found, policy()).assumes_no_state is assumed


def test_the_fused_step_takes_no_temporaries_and_passes_once_over_all() -> None:
    default, fused = baseline(optimizer="adamw"), baseline(optimizer="adamw-fused")
    assert default.optimizer_step_bytes == fused.optimizer_step_bytes + PARAMETER_BYTES
    assert fused.optimizer_step_bytes == fused.resident.throughout + PARAMETER_BYTES
    # p, g, m and v are read, p, m and v are written.
    rate = load_hardware("h200-pcie5").hbm_bytes_per_ms
    assert rate is not None
    assert fused.optimizer_ms == pytest.approx(7 * PARAMETER_BYTES / rate)
    assert fused.optimizer_ms < default.optimizer_ms


def accumulating(number: int, optimizer: str = "none") -> Baseline:
    once = baseline(optimizer=optimizer)
    model = replace(once.traced.model, gradient_accumulation_steps=number)
    return predict_baseline(replace(once.traced, model=model), once.hardware)


def test_gradients_that_accumulate_are_there_throughout_and_those_of_a_batch_on_top() -> None:
    once, twice = baseline(), accumulating(2)
    assert twice.resident.throughout == once.resident.throughout + PARAMETER_BYTES
    assert twice.forecast.peak_device_bytes == once.forecast.peak_device_bytes + PARAMETER_BYTES
    # However many batches there are, they add to the same gradients.
    assert accumulating(8).forecast == twice.forecast


def test_the_optimizers_step_holds_gradients_once_however_many_batches_made_them() -> None:
    assert accumulating(4, "adamw").optimizer_step_bytes == baseline(optimizer="adamw").optimizer_step_bytes


def test_a_step_of_several_batches_takes_each_of_them_and_adding_them_up() -> None:
    once, four = baseline(optimizer="adamw"), accumulating(4, "adamw")
    rate = load_hardware("h200-pcie5").hbm_bytes_per_ms
    assert rate is not None
    adding_ms = 3 * 3 * PARAMETER_BYTES / rate
    step_ms = once.forecast.step_ms
    assert four.whole_step_ms(step_ms) == pytest.approx(4 * step_ms + adding_ms + once.optimizer_ms)


def test_a_limit_counts_gradients_that_accumulate() -> None:
    twice = accumulating(2)
    target = (twice.forecast.peak_device_bytes + baseline().forecast.peak_device_bytes) // 2
    asked = policy(select="planned", action="auto", keep_last=0, limits={"device_peak": f"{target}B"})
    result = plan_policy(twice, asked)
    assert result.num_offloaded + result.num_recomputed > 0
    assert result.policy.peak_device_bytes <= target
    assert plan_policy(baseline(), asked).changes_nothing


def test_the_baseline_of_mode_graph_computes_attention_once() -> None:
    """Torch's default partitioner leaves a copy in backward that nobody reads: a plan would look faster than none."""
    request = ModelRequest("builtin:llama3-8b-lora", batch=1, seq=128, layers=1)
    found = predict_baseline(trace_request(request, mode="graph"), load_hardware("h200-pcie5"))
    partition = found.planned.pairs[0].selected.partition
    attention = [
        [str(node.target) for node in gm.graph.nodes if "dot_product" in str(node.target)]
        for gm in (partition.forward, partition.backward)
    ]
    assert attention == [
        ["aten._scaled_dot_product_cudnn_attention.default"],
        ["aten._scaled_dot_product_cudnn_attention_backward.default"],
    ]
