import pytest
import torch

from offload_runtime.errors import RefusedError
from offload_runtime.models.devices import capped_memory, choose_device

GIB = 1 << 30


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


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stand in for a device of 160 GiB: return the shares of it that were allowed, the last one in force."""
    allowed = [0.9]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (150 * GIB, 160 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    # Torch's own functions as far as the device's memory: they do not take every way to name a device.
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getMemoryFraction", lambda index: allowed[-1], raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda fraction, index: allowed.append(fraction), raising=False
    )
    return allowed


def test_a_process_is_kept_to_what_it_was_given_and_let_go_again(fractions: list[float]) -> None:
    def fail_within() -> None:
        with capped_memory("cuda", 80 * GIB):
            assert fractions[-1] == 0.5
            raise KeyError

    with pytest.raises(KeyError):
        fail_within()
    assert fractions == [0.9, 0.5, 0.9]


@pytest.mark.parametrize(("device", "num_bytes"), [("cuda", None), ("cpu", 80 * GIB)])
def test_nothing_is_capped_where_nothing_was_given_or_there_is_no_cuda(
    fractions: list[float], device: str, num_bytes: int | None
) -> None:
    with capped_memory(device, num_bytes):
        assert fractions == [0.9]
    assert fractions == [0.9]


def test_more_memory_than_the_device_has_is_refused(fractions: list[float]) -> None:
    with (
        pytest.raises(RefusedError, match=r"MOD708.*200GiB is more than the 160 GiB of Some GPU"),
        capped_memory("cuda", 200 * GIB),
    ):
        pass
    assert fractions == [0.9]
