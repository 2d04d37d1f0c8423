"""State across steps: cases 23 to 27."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import offload_runtime as off
from offload_runtime.offload_plan import Variant
from tests.cases.training import (
    Values,
    assert_bitwise,
    assert_exact,
    compiled,
    host_bytes,
    mean_square,
    offload_everything,
    on_own_engine,
    train,
    values_of,
)


class TwoHeads(nn.Module):
    """A trunk and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x).sin()
        return self.left(h).tanh() * 2, self.right(h).tanh() * 2


class Deep(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin()
        return x * 2


def batch(seed: int, size: int = 8) -> Tensor:
    return torch.randn(size, 16, generator=torch.Generator().manual_seed(seed))


def test_case_23_a_head_that_the_loss_does_not_use_holds_nothing_over_fifty_steps() -> None:
    reserved, seen = set(), []
    for variant in ("policy", "reference"):
        with on_own_engine() as engine:
            torch.manual_seed(0)
            model = TwoHeads()
            run = compiled(model, offload_everything(), variant=variant)
            steps = []
            for step in range(50):
                model.zero_grad()
                used, unused = run(batch(step))
                loss = mean_square(used)
                loss.backward()
                steps.append(values_of(model, loss))
                del used, unused, loss
                engine.drain()
                snapshot = engine.arena.snapshot()
                assert snapshot.in_use_bytes == 0
                reserved.add((variant, snapshot.reserved_bytes))
            seen.append(steps)
            report = off.report(run)
            assert report.moved_bytes == report.planned_bytes
    assert len(reserved) == 2
    assert_bitwise(*seen)


class Fails(nn.Module):
    """Raises in the middle of a compiled forward when its input says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).sin()
        h = torch.ops.case_24.fail_if_negative(h.cos(), x[0, :1])
        out: Tensor = self.second(h).tanh() * 2
        return out


LIBRARY = torch.library.Library("case_24", "DEF")
LIBRARY.define("fail_if_negative(Tensor x, Tensor flag) -> Tensor")


def _fail_if_negative(x: Tensor, flag: Tensor) -> Tensor:
    if flag.item() < 0:
        raise ValueError("the middle of forward failed")
    return x.clone()


LIBRARY.impl("fail_if_negative", _fail_if_negative, "CPU")
torch.library.register_fake("case_24::fail_if_negative", lambda x, flag: torch.empty_like(x), lib=LIBRARY)
torch.library.register_autograd(
    "case_24::fail_if_negative", lambda context, gradient: (gradient, None), lib=LIBRARY
)


def flagged(seed: int, *, fails: bool) -> Tensor:
    x = batch(seed)
    x[0, 0] = -1.0 if fails else 1.0
    return x


def interrupted(variant: Variant) -> tuple[list[Values], int]:
    """Train three steps with every kind of interruption in between."""
    with on_own_engine() as engine:
        torch.manual_seed(0)
        model = Fails()
        run = compiled(model, offload_everything(), variant=variant)
        steps, held = [], 0
        for step in range(3):
            model.zero_grad()
            loss = run(flagged(step, fails=False)).sum()
            held = max(held, host_bytes(engine))
            loss.backward()
            steps.append(values_of(model, loss))
            del loss
            with pytest.raises(ValueError, match="the middle of forward failed"):
                run(flagged(step, fails=True))
            with torch.no_grad():
                run(flagged(step, fails=False))
            dropped = run(flagged(step + 10, fails=False))
            del dropped
            assert host_bytes(engine) == 0
        # Each failed forward had copied two tensors and waited for none of them.
        assert engine.snapshot().num_abandoned == (6 if variant == "policy" else 0)
        return steps, held


def test_case_24_dropped_failed_and_gradless_forwards_leave_training_as_it_was() -> None:
    steps, held = interrupted("policy")
    assert held > 0
    expected, _ = interrupted("reference")
    assert_bitwise(steps, expected)


def test_case_24_backward_may_run_after_the_context_of_its_forward_closed() -> None:
    results = []
    for variant in ("policy", "reference"):
        with on_own_engine() as engine:
            torch.manual_seed(0)
            model = Deep()
            loss = compiled(model, offload_everything(), variant=variant)(batch(0)).sum()
        loss.backward()
        results.append([values_of(model, loss)])
        del loss
        assert host_bytes(engine) == 0
    assert_bitwise(*results)


def twice(variant: Variant, mode: str = "graph") -> list[Values]:
    """Run backward twice through one forward, three times over."""
    with on_own_engine() as engine:
        torch.manual_seed(0)
        model = Deep()
        run = compiled(model, offload_everything(), variant=variant, mode=mode)
        steps = []
        for step in range(3):
            loss = run(batch(step)).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            steps.append(values_of(model, loss))
            del loss
            assert host_bytes(engine) == 0
        return steps


def test_case_25_one_forward_serves_two_backwards() -> None:
    assert_bitwise(twice("policy"), twice("reference"))
    assert_bitwise(twice("policy"), twice("baseline"))


def test_case_25_under_inductor_two_backwards_give_the_same_or_torchs_own_error() -> None:
    """Inductor reuses saved buffers ("donated buffers") and says how to turn that off."""
    try:
        ours = twice("policy", "inductor")
    except RuntimeError as error:
        assert re.search("donated_buffer", str(error))  # noqa: PT017  # either outcome is torch's to choose
        return
    assert_bitwise(ours, twice("reference", "inductor"))


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_case_26_batches_of_4_then_7_then_1(dynamic: bool | None) -> None:
    sizes = [batch(i, size) for i, size in enumerate((4, 7, 1, 7, 4))]
    run = assert_exact(Deep, offload_everything(), sizes, dynamic=dynamic, same_as=["reference"])
    assert run.offloaded


def test_case_26_batches_of_4_then_7_then_1_under_inductor() -> None:
    sizes = [batch(i, size) for i, size in enumerate((4, 7, 1))]
    policy = offload_everything()
    assert_exact(Deep, policy, sizes, mode="inductor", dynamic=True, same_as=["reference"])


def micro_batches(variant: Variant, *, in_flight: int) -> list[Values]:
    """Accumulate four micro-batches a step, with so many forwards before their backwards."""
    with on_own_engine() as engine:
        torch.manual_seed(0)
        model = Deep()
        run = compiled(model, offload_everything(), variant=variant, dynamic=False)
        steps = []
        for step in range(3):
            model.zero_grad()
            parts = list(batch(step, 16).chunk(4))
            while parts:
                losses = [run(part).square().sum() for part in parts[:in_flight]]
                parts = parts[in_flight:]
                for loss in losses:
                    loss.backward()
                total = losses[0].detach()
                del losses, loss
                assert host_bytes(engine) == 0
            steps.append(values_of(model, total))
            report = off.report(run)
            if variant == "policy":
                assert report.moved_bytes == report.planned_bytes == report.reloaded_bytes
            torch.optim.SGD(model.parameters(), lr=0.01).step()
        return steps


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_case_27_four_micro_batches_accumulate_as_without_transfers(in_flight: int) -> None:
    ours = micro_batches("policy", in_flight=in_flight)
    assert_bitwise(ours, micro_batches("reference", in_flight=in_flight))


def test_case_27_four_micro_batches_give_the_gradients_of_one_batch() -> None:
    def loss_of(output: Tensor) -> Tensor:
        return output.square().sum()

    whole = train(Deep, offload_everything(), [batch(0, 16)], loss_of=loss_of).steps[0]
    parts = micro_batches("policy", in_flight=2)[0]
    gradients = [name for name in whole if name.startswith("gradient")]
    assert len(gradients) == 6
    for name in gradients:
        torch.testing.assert_close(parts[name], whole[name])
