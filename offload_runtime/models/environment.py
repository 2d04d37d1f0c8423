"""The machine and the software that something is measured on."""

from __future__ import annotations

import os
import platform
import subprocess

import torch

import offload_runtime
from offload_runtime.models.bench_result import Environment
from offload_runtime.runtime.cuda_host import pci_address

__all__ = ["read_environment"]

_QUERY = ("driver_version", "pcie.link.gen.current", "pcie.link.width.current")
_TIMEOUT_S = 20


def read_environment(device: torch.device, device_memory_bytes: int | None = None) -> Environment:
    """Describe this process's machine, and ``device`` where it is an accelerator.

    The link is as it runs now: an idle one may have slowed down, so ask when it was busy just before.
    ``device_memory_bytes`` is what the process was given of the device.
    """
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    driver, gen, width = _query(pci_address(device)) if gpu is not None else (None, None, None)
    return Environment(
        gpu=gpu.name if gpu is not None else None,
        gpu_bytes=gpu.total_memory if gpu is not None else None,
        driver=driver,
        link_gen=_number(gen),
        link_width=_number(width),
        torch=torch.__version__,
        python=platform.python_version(),
        host_cores=os.cpu_count(),
        package=offload_runtime.__version__,
        device_memory_bytes=device_memory_bytes,
    )


def _query(address: str | None) -> tuple[str | None, ...]:
    """Ask the driver's tool about one device; None for all that it does not tell."""
    which = [] if address is None else [f"--id={address}"]
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader", *which]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return (None,) * len(_QUERY)
    values = [value.strip() for value in said.partition("\n")[0].split(",")]
    return tuple(values) if len(values) == len(_QUERY) else (None,) * len(_QUERY)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
