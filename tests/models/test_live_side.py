"""Sides that really run, on the CPU: they share a model, leave it as it was, and do what their name says."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offload_runtime.compiler import load_policy
from offload_runtime.errors import OffloadError, PolicyError, RefusedError, RunError
from offload_runtime.hardware import load_hardware
from offload_runtime.models import resolve_model
from offload_runtime.models.bench_rounds import OutOfDeviceMemory
from offload_runtime.models.bench_sides import SidePlan, plan_sides
from offload_runtime.models.live_side import CudaMeter, NoMeter, SharedStep, TrainingSide
from offload_runtime.models.peer_losses import FrontEnd, side_loss
from offload_runtime.models.peers import parse_peer
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.runtime.session import living_sessions

STACK = "tests.cli.small_models:stack"
MOVED_BYTES = 2 * 32 * 64 * 4  # the first product of each block but the last, float32
POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "up",
    "activations": {
        "default": "save",
        "rules": [{"name": "up", "match": {"op": "matmul"}, "action": "offload"}],
    },
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def model() -> ModelUnderTest:
    return resolve_model(STACK, optimizer="none")


def peer(text: str) -> SidePlan:
    """Return the side that is the peer ``text``."""
    return SidePlan(text, "peer", peer=parse_peer(text))


def policy(**changes: Any) -> SidePlan:
    """Return a side that offloads the products of each layer but the last."""
    return SidePlan("up", "policy", policy=load_policy({**POLICY, **changes}))


def gradients(model: ModelUnderTest, plan: SidePlan) -> tuple[dict[str, Tensor], int]:
    """Return the gradients under a side, and the bytes that it saved for backward, parameters left out."""
    known = {parameter.untyped_storage().data_ptr() for parameter in model.module.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    loss = side_loss(plan, model, FrontEnd("inductor")).loss
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = loss(model.example_args)
    total.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.module.named_parameters()}
    model.module.zero_grad(set_to_none=True)
    return found, sum(saved.values())


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Compare two sets of gradients."""
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-5)


def test_checkpointing_saves_less_computes_the_same_and_leaves_the_model_as_it_was(
    model: ModelUnderTest,
) -> None:
    eager, eager_bytes = gradients(model, peer("eager"))
    checkpointed, fewer_bytes = gradients(model, peer("eager-checkpoint"))
    assert_close(checkpointed, eager)
    assert fewer_bytes < eager_bytes / 2
    assert all("forward" not in vars(layer) for layer in model.module.layers)


def test_a_checkpointed_layer_runs_its_forward_again_in_backward(model: ModelUnderTest) -> None:
    calls: list[int] = []
    layer = model.module.layers[1]
    original = type(layer).forward

    def counted(self: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return original(self, x)

    layer.forward = types.MethodType(counted, layer)
    # Replaced for the while, and put back as it was found.
    side_loss(peer("eager-checkpoint"), model, FrontEnd("graph")).loss(model.example_args).backward()
    assert len(calls) == 2
    assert layer.forward.__func__ is counted


def test_a_model_without_layers_cannot_be_checkpointed(model: ModelUnderTest) -> None:
    plain = replace(model, module=nn.Linear(16, 16), name="plain")
    with pytest.raises(OffloadError, match="BEN931 plain has no repeated layers to checkpoint"):
        side_loss(peer("eager-checkpoint"), plain, FrontEnd("graph"))


def test_save_on_cpu_computes_the_same(model: ModelUnderTest) -> None:
    eager, _ = gradients(model, peer("eager"))
    side_loss(peer("save-on-cpu"), model, FrontEnd("graph")).loss(model.example_args).backward()
    assert_close({name: p.grad for name, p in model.module.named_parameters()}, eager)


def test_an_activation_budget_holds_while_its_own_side_compiles_and_for_no_other(
    model: ModelUnderTest,
) -> None:
    """The three share one forward; torch alone would take the settings of the first for all."""
    eager, _ = gradients(model, peer("eager"))
    whole, whole_bytes = gradients(model, peer("compile"))
    none, none_bytes = gradients(model, peer("activation-budget:0"))
    all_again, all_bytes = gradients(model, peer("activation-budget:1"))
    assert none_bytes < whole_bytes == all_bytes
    for compiled in (whole, none, all_again):
        assert_close(compiled, eager)
    assert torch._functorch.config.activation_memory_budget == 1.0


def test_a_setting_that_torch_lacks_is_refused_by_name(
    model: ModelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offload_runtime.models import peer_losses

    monkeypatch.setattr(peer_losses, "functorch_config", types.SimpleNamespace())
    for text, setting in (
        ("torch-offload", "enable_activation_offloading"),
        ("activation-budget:0.5", "activation_memory_budget"),
    ):
        with pytest.raises(OffloadError, match=f"BEN931 torch .* has no setting {setting}"):
            side_loss(peer(text), model, FrontEnd("inductor"))


def side(model: ModelUnderTest, plan: SidePlan, mode: str = "graph") -> TrainingSide:
    """Return a live side that is not warm yet."""
    return TrainingSide(plan, SharedStep(model), FrontEnd(mode), NoMeter())


def test_a_policy_side_tells_planned_moved_and_the_simulated_peak_and_no_time(model: ModelUnderTest) -> None:
    live = side(model, policy())
    warm = live.warm_up(1)
    assert warm.compile_s is None
    assert warm.planned_bytes == warm.moved_bytes == MOVED_BYTES
    step_ms, peak_bytes = live.take_turn(2)
    assert step_ms is None
    assert peak_bytes is not None
    assert peak_bytes > 0
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_a_side_that_is_no_policy_has_neither_bytes_nor_a_peak(model: ModelUnderTest) -> None:
    live = side(model, peer("eager"))
    warm = live.warm_up(1)
    assert (warm.planned_bytes, warm.moved_bytes) == (None, None)
    assert live.take_turn(1) == (None, None)


def test_two_policies_on_one_model_are_told_apart(model: ModelUnderTest) -> None:
    step = SharedStep(model)
    plans = [policy(name="none", limits={"budget": "0B"}), policy()]
    lives = [TrainingSide(plan, step, FrontEnd("graph"), NoMeter()) for plan in plans]
    moved = [live.warm_up(1).moved_bytes for live in lives]
    assert moved[0] == 0
    assert moved[1]
    peaks = [live.take_turn(1)[1] for live in lives]
    assert peaks[1] < peaks[0]  # type: ignore[operator]


def test_a_dropped_side_leaves_nothing_behind_and_the_other_still_runs_what_was_compiled(
    model: ModelUnderTest,
) -> None:
    before = set(map(id, living_sessions()))
    step = SharedStep(model)
    kept, dropped = (
        TrainingSide(policy(name=name), step, FrontEnd("graph"), NoMeter()) for name in ("kept", "dropped")
    )
    for live in (kept, dropped):
        live.warm_up(1)
    session = weakref.ref(dropped.session)
    dropped.drop()
    gc.collect()
    assert session() is None
    kept.take_turn(1)
    left = [each for each in living_sessions() if id(each) not in before]
    assert left == [kept.session]
    assert len(left[0].graphs) == 1  # nothing was compiled again


def raising(kind: type[Exception], message: str) -> Callable[[Tensor], Tensor]:
    """Return a loss that raises while it holds a tensor."""

    def loss(output: Tensor) -> Tensor:
        held.append(weakref.ref(output))
        raise kind(message)

    return loss


held: list[weakref.ref[Tensor]] = []


def test_running_out_of_memory_is_told_apart_and_nothing_of_the_step_stays(model: ModelUnderTest) -> None:
    held.clear()
    broken = replace(model, loss_fn=raising(torch.OutOfMemoryError, "CUDA out of memory"))
    live = side(broken, peer("eager"))
    with pytest.raises(OutOfDeviceMemory) as caught:
        live.warm_up(1)
    # While the error is in hand its frames hold no tensor of the step.
    assert caught.value.__context__ is None
    live.drop()
    assert [reference() for reference in held] == [None]


def test_a_model_that_fails_is_a_run_error_that_names_side_and_model(model: ModelUnderTest) -> None:
    broken = replace(model, loss_fn=raising(ZeroDivisionError, "by zero"))
    with pytest.raises(RunError, match=f"MOD733 eager on {STACK} failed: ZeroDivisionError: by zero"):
        side(broken, peer("eager")).warm_up(1)


def test_a_rule_that_matches_nothing_is_the_policy_s_own_error(model: ModelUnderTest) -> None:
    rules = [{"name": "conv", "match": {"op": "convolution"}, "action": "offload"}]
    with pytest.raises(PolicyError, match="POL180"):
        side(model, policy(activations={"default": "save", "rules": rules})).warm_up(1)


def test_an_optimizer_takes_part_in_the_step_where_there_is_one(model: ModelUnderTest) -> None:
    before = [parameter.detach().clone() for parameter in model.module.parameters()]
    side(model, peer("eager")).warm_up(1)
    assert all(torch.equal(old, new) for old, new in zip(before, model.module.parameters(), strict=True))
    side(replace(model, optimizer="sgd"), peer("eager")).warm_up(1)
    assert not all(torch.equal(old, new) for old, new in zip(before, model.module.parameters(), strict=True))


class FakeCuda:
    """As much of ``torch.cuda`` as a meter uses, with a clock that each event reads."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.log: list[str] = []

    def Event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        cuda = self

        class Event:
            def record(self) -> None:
                self.at_ms = cuda.now_ms

            def elapsed_time(self, end: Event) -> float:
                assert "synchronize" in cuda.log, "an event is read after the device has passed it"
                return end.at_ms - self.at_ms  # type: ignore[no-any-return]

        return Event()

    def synchronize(self, device: object) -> None:
        self.log.append("synchronize")

    def reset_peak_memory_stats(self, device: object) -> None:
        self.log.append("reset")

    def max_memory_allocated(self, device: object) -> int:
        self.log.append("peak")
        return 123


def test_the_meter_times_each_step_between_two_events_and_takes_the_peak_of_them_alone() -> None:
    cuda = FakeCuda()
    durations_ms = iter([5.0, 7.0004, 6.0])

    def step() -> None:
        cuda.log.append("step")
        cuda.now_ms += next(durations_ms)

    assert CudaMeter(torch.device("cuda"), cuda).measure(step, 3) == ((5.0, 7.0, 6.0), 123)
    assert cuda.log == ["reset", "step", "step", "step", "synchronize", "peak"]


def test_wall_time_ends_when_the_device_has_finished() -> None:
    cuda = FakeCuda()
    seconds = CudaMeter(torch.device("cuda"), cuda).seconds(lambda: cuda.log.append("step"))
    assert cuda.log == ["step", "synchronize"]
    assert seconds >= 0


def test_a_timed_turn_has_one_step_before_it(model: ModelUnderTest) -> None:
    cuda = FakeCuda()

    class Counting(CudaMeter):
        def measure(self, action: Callable[[], None], times: int) -> tuple[tuple[float, ...], int]:
            cuda.log.append("measure")
            return super().measure(action, times)

    counted = replace(model, loss_fn=lambda output: (cuda.log.append("step"), output.square().mean())[1])
    live = TrainingSide(
        peer("eager"), SharedStep(counted), FrontEnd("graph"), Counting(torch.device("cuda"), cuda)
    )
    assert live.warm_up(1).compile_s is not None
    cuda.log.clear()
    step_ms, peak_bytes = live.take_turn(2)
    assert cuda.log == ["step", "measure", "reset", "step", "step", "synchronize", "peak"]
    assert (step_ms, peak_bytes) == ((0.0, 0.0), 123)


def test_largest_first_goes_through_the_back_end(model: ModelUnderTest) -> None:
    plan = plan_sides([], ["largest-first:1GiB"], mode="graph").sides[1]
    layer_outputs_bytes = 2 * 32 * 16 * 4
    assert side(model, plan).warm_up(1).moved_bytes == MOVED_BYTES + layer_outputs_bytes


def test_a_side_on_known_hardware_tells_what_is_predicted_of_it(model: ModelUnderTest) -> None:
    known = FrontEnd("graph", load_hardware("h200-pcie5"))
    warm = TrainingSide(policy(), SharedStep(model), known, NoMeter()).warm_up(1)
    assert warm.predicted is not None
    assert warm.predicted.hardware == "h200-pcie5"
    assert warm.predicted.step_ms > 0
    assert warm.predicted.peak_device_bytes > 0
    assert side(model, policy()).warm_up(1).predicted is None


def test_planned_goes_through_the_back_end_and_needs_known_hardware(model: ModelUnderTest) -> None:
    plan = plan_sides([], ["planned:1GiB"], mode="graph").sides[1]
    with pytest.raises(RefusedError, match="RUN524"):
        side(model, plan).warm_up(1)
    known = FrontEnd("graph", load_hardware("h200-pcie5"))
    warm = TrainingSide(plan, SharedStep(model), known, NoMeter()).warm_up(1)
    assert (warm.planned_bytes, warm.moved_bytes) == (0, 0), "a target that is met needs nothing"
