import pytest
import torch

from offload_runtime.errors import UsageError
from offload_runtime.hardware import load_hardware
from offload_runtime.models.hardware_here import profile_here, profile_of_memory


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


def test_memory_that_was_given_stands_for_that_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    named = load_hardware("gb200")
    assert profile_of_memory(named, "cpu", None) is named
    assert profile_of_memory(None, "cpu", None) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    for given, name in ((named, "gb200"), (None, "h200-pcie5")):
        found = profile_of_memory(given, "cuda", 80_000_000_000)
        assert found is not None
        assert (found.name, found.device_memory_bytes) == (name, 80_000_000_000)


def test_memory_of_a_device_that_nobody_described_is_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "GTX 1")
    assert profile_of_memory(None, "cuda", 80_000_000_000) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="PLN421"):
        profile_of_memory(None, "cpu", 80_000_000_000)
