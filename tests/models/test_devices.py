import pytest
import torch

from offload_runtime.errors import RefusedError
from offload_runtime.models.devices import choose_device


@pytest.mark.parametrize(
    ("wanted", "available", "chosen"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_auto_is_the_accelerator_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, wanted: str, available: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert choose_device(wanted) == chosen


@pytest.mark.parametrize(
    ("built_for", "reason"), [(None, "built without CUDA"), ("13.0", "no GPU is visible")]
)
def test_a_missing_gpu_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with pytest.raises(RefusedError, match=reason):
        choose_device("cuda")
