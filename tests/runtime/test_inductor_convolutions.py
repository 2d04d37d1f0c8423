"""Under Inductor, which lays convolutions out anew, what is offloaded beside them keeps its layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor import config as inductor_config

from tests.cases.training import assert_exact, compiled, offload_everything, policy_of


class Convolved(nn.Module):
    """Saves what convolutions read and what they write."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.second(nn.functional.silu(self.norm(self.first(x)))))


# A graph out of the cache is no test of how this one is compiled.
@inductor_config.patch(fx_graph_cache=False)
@functorch_config.patch(enable_autograd_cache=False)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_activations_of_convolutions_come_back_with_equal_bits(layout: torch.memory_format) -> None:
    batches = [torch.randn(2, 3, 16, 16).to(memory_format=layout) for _ in range(2)]
    run = assert_exact(
        lambda: Convolved().to(memory_format=layout),  # type: ignore[call-overload]  # torch types no layouts
        offload_everything(),
        batches,
        mode="inductor",
        same_as=["reference"],
    )
    convolved = [verdict for verdict in run.offloaded if verdict.activation.op == "aten.convolution.default"]
    is_contiguous = layout is torch.contiguous_format
    assert {verdict.activation.layout for verdict in convolved} == {
        "contiguous" if is_contiguous else "dense"
    }


@inductor_config.patch(fx_graph_cache=False)
@functorch_config.patch(enable_autograd_cache=False)
def test_the_layout_setting_is_of_the_graphs_with_transfers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and the backward that is compiled later have it; what is compiled between and after does not."""
    seen: list[bool] = []

    def note(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        seen.append(inductor_config.layout_optimization)
        return boxed_nop(gm, list(example_inputs))

    monkeypatch.setattr(inductor, "compile_fx_inner", note)
    usual = inductor_config.layout_optimization
    torch._dynamo.reset()
    image = torch.randn(2, 3, 16, 16)
    outputs = [
        compiled(Convolved(), policy, mode="inductor")(image)
        for policy in (offload_everything(), policy_of(default="save"))
    ]
    assert inductor_config.layout_optimization == usual
    sum(output.sum() for output in outputs).backward()
    assert sorted(seen) == sorted([False, usual, False, usual])
    assert inductor_config.layout_optimization == usual
