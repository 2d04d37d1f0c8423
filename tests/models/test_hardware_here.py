import pytest
import torch

from offload_runtime.errors import UsageError
from offload_runtime.models.hardware_here import profile_here


@pytest.mark.parametrize(
    ("name", "profile"), [("NVIDIA H200", "h200-pcie5"), ("NVIDIA A100-SXM4-80GB", "a100-pcie4")]
)
def test_the_profile_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch, name: str, profile: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    assert profile_here().name == profile


@pytest.mark.parametrize(
    ("available", "said"), [(False, "no CUDA device"), (True, "no profile is shipped for GTX 1")]
)
def test_without_a_profile_the_choices_are_named(
    monkeypatch: pytest.MonkeyPatch, available: bool, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "GTX 1")
    with pytest.raises(UsageError, match=said) as caught:
        profile_here()
    assert "rtx4090-pcie4" in (caught.value.diagnostics[0].hint or "")
