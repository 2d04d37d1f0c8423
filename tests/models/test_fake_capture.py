"""A model is traced without weights, as it is with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from offload_runtime.errors import RefusedError
from offload_runtime.models.fake_capture import NotTraceable, capture_request, fake_model
from offload_runtime.models.resolve import ModelRequest
from tests.models.configurations import CONFIGURATIONS


def request_of(name: str, tmp_path: Path) -> ModelRequest:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGURATIONS[name]))
    return ModelRequest(f"hf:{path}", batch=1)


def shared_names(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter: several where it is tied."""
    named = list(module.named_parameters(remove_duplicate=False))
    return [[name for name, found in named if found is parameter] for parameter in module.parameters()]


@pytest.mark.parametrize("name", ["gpt2", "t5", "llama", "gemma2", "vit", "unet"])
def test_a_model_without_values_has_the_parameters_of_one_with_them(name: str, tmp_path: Path) -> None:
    request = request_of(name, tmp_path)
    fake, real = fake_model(request), request.resolve()
    assert shared_names(fake.module) == shared_names(real.module)
    assert (fake.num_parameters, fake.num_layers) == (real.num_parameters, real.num_layers)
    assert all(isinstance(parameter, FakeTensor) for parameter in fake.module.parameters())


def test_the_device_that_is_asked_for_need_not_be_there() -> None:
    captured = capture_request(
        ModelRequest("builtin:llama-tiny", batch=1, layers=1, device="cuda"), mode="graph", accelerator=True
    )
    assert captured.model.device == torch.device("cpu")
    assert len(captured.graphs) == 1


def test_tracing_leaves_the_random_state_as_it_was() -> None:
    before = torch.get_rng_state()
    capture_request(ModelRequest("tests.cli.small_models:stack"), mode="graph", accelerator=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_does_not_exist_is_refused_as_everywhere() -> None:
    with pytest.raises(RefusedError, match="MOD701"):
        capture_request(ModelRequest("builtin:llama-tinny"), mode="graph", accelerator=True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return self.w if self.w.sum().item() else -self.w", "DataDependent"),
        ("raise KeyError('no such head')", "no such head"),
    ],
)
def test_what_cannot_be_traced_says_why(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"untraceable_{reason.split()[0].lower()}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.w = nn.Parameter(torch.ones(4))\n"
        f"    def forward(self):\n        {body}\ndef build():\n    return M(), ()\n"
    )
    with pytest.raises(NotTraceable, match=reason):
        capture_request(ModelRequest(f"{name}:build"), mode="graph", accelerator=False)
