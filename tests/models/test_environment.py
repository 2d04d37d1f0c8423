"""What is said about the machine, with and without an accelerator's driver to ask."""

from __future__ import annotations

import subprocess
import types
from typing import Any

import pytest
import torch

import offload_runtime
from offload_runtime.models import environment
from offload_runtime.models.environment import read_environment

GIB = 2**30


def test_without_an_accelerator_only_the_software_and_the_host_are_known() -> None:
    found = read_environment(torch.device("cpu"))
    assert (found.gpu, found.gpu_bytes, found.driver, found.link_gen, found.link_width) == (None,) * 5
    assert found.torch == torch.__version__
    assert found.package == offload_runtime.__version__


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("580.159.04, 5, 16\n", ("580.159.04", 5, 16)),
        ("580.159.04, [N/A], [N/A]\n", ("580.159.04", None, None)),
        ("No devices were found\n", (None, None, None)),
        ("", (None, None, None)),
        (OSError("no such program"), (None, None, None)),
        (subprocess.CalledProcessError(9, "nvidia-smi"), (None, None, None)),
        (subprocess.TimeoutExpired("nvidia-smi", 20), (None, None, None)),
    ],
)
def test_what_the_driver_does_not_tell_is_none(
    said: str | Exception, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append(command)
        if isinstance(said, Exception):
            raise said
        return types.SimpleNamespace(stdout=said)

    gpu = types.SimpleNamespace(name="Some GPU", total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(environment, "pci_address", lambda device: "0000:1b:00.0")
    monkeypatch.setattr(subprocess, "run", run)
    found = read_environment(torch.device("cuda"))
    assert (found.gpu, found.gpu_bytes) == ("Some GPU", 80 * GIB)
    assert (found.driver, found.link_gen, found.link_width) == expected
    # The very device is asked about, not the first of several.
    assert "--id=0000:1b:00.0" in asked[0]
