"""The Python that is exported for FSDP2 really shards a model, on one CPU rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from offload_runtime.export.exporter import export_policy
from offload_runtime.export.rendering import render_export
from tests.export.policies import policy

NUM_BLOCKS = 4


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Stack(nn.Module):
    """Linear blocks between an entrance and an exit."""

    def __init__(self) -> None:
        super().__init__()
        self.entrance = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(NUM_BLOCKS))
        self.exit = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entrance(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        out: torch.Tensor = self.exit(x)
        return out


def exported(**parameters: Any) -> dict[str, Callable[..., Any]]:
    export = export_policy(policy(parameters={"offload": True, **parameters}), "fsdp2")
    names: dict[str, Any] = {"__name__": "exported"}
    exec(compile(render_export(export), "exported.py", "exec"), names)
    return names


def step(model: nn.Module) -> list[torch.Tensor]:
    """One step of SGD; the parameters after it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]


@pytest.mark.usefixtures("one_rank")
def test_a_model_is_sharded_block_by_block_and_trains_as_before() -> None:
    torch.manual_seed(0)
    plain, sharded = Stack(), Stack()
    sharded.load_state_dict(plain.state_dict())
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    exported()["shard"](sharded, sharded.layers, pin_memory=torch.cuda.is_available(), mesh=mesh)
    assert all(isinstance(module, FSDPModule) for module in (sharded, *sharded.layers))
    assert {p.device.type for p in sharded.parameters()} == {"cpu"}
    for ours, theirs in zip(step(sharded), step(plain), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("one_rank")
def test_fully_shard_is_asked_to_offload_the_layers_of_the_policy_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = exported(layers=":50%")
    real, asked = names["fully_shard"], []

    def recording(module: nn.Module, *, offload_policy: Any, **fsdp: Any) -> Any:
        asked.append(type(offload_policy).__name__)
        return real(module, offload_policy=offload_policy, **fsdp)

    monkeypatch.setitem(names, "fully_shard", recording)
    model = Stack()
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    names["shard"](model, model.layers, pin_memory=torch.cuda.is_available(), mesh=mesh)
    assert asked == ["CPUOffloadPolicy"] * 2 + ["OffloadPolicy"] * 3


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, {0, 1, 2, 3}),
        (":2", {0, 1}),
        ("-1", {3}),
        ("25%:75%", {1, 2}),
        ("::2", {0, 2}),
        (["0", "3:"], {0, 3}),
        ("outside", set()),
    ],
)
def test_the_layers_of_a_policy_select_the_same_blocks_there(layers: Any, expected: set[int]) -> None:
    given = {} if layers is None else {"layers": layers}
    assert exported(**given)["offloaded_blocks"](NUM_BLOCKS) == expected
