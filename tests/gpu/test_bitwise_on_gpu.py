"""On a GPU, with deterministic algorithms: a policy's numbers are those of its offloads replaced by saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import offload_runtime as off  # noqa: E402  # after the skip
from offload_runtime.models import resolve_model  # noqa: E402
from offload_runtime.runtime.backend import offload_backend  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "everything",
    "schedule": {"defer": 1, "prefetch": 1},
    "activations": {
        "default": "recompute",
        "layer_outputs": "offload",
        "rules": [{"name": "heavy", "match": {"op": ["matmul", "attention"]}, "action": "offload"}],
    },
}


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def train(mode: str, variant: str, num_steps: int = 3, **options: Any) -> tuple[list[Any], Any]:
    torch._dynamo.reset()
    under_test = resolve_model(
        "builtin:llama3-8b", layers=4, seq=1024, device="cuda", dtype="bfloat16", seed=0
    )
    model = under_test.module
    settings = {"policy": POLICY, "mode": mode, "variant": variant, "model": model, **options}
    compiled = torch.compile(model, backend=offload_backend, options=settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    seen = []
    for index in range(num_steps):
        loss = compiled(*under_test.make_batch(index))
        loss.backward()
        seen += [loss.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen, off.report(compiled)


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_numbers_equal_those_of_saving_instead(mode: str) -> None:
    moved, report = train(mode, "policy")
    kept, _ = train(mode, "reference")
    assert report.planned_bytes == report.moved_bytes == report.reloaded_bytes > 0
    assert len(moved) == len(kept)
    assert all(torch.equal(one, other) for one, other in zip(moved, kept, strict=True))


def test_verify_runs_the_first_step_on_the_checking_engine() -> None:
    checked, report = train("graph", "policy", verify=True)
    kept, _ = train("graph", "reference")
    assert all(torch.equal(one, other) for one, other in zip(checked, kept, strict=True))
    assert report.moved_bytes == report.planned_bytes
