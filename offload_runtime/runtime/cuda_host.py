"""What the host side needs to know from CUDA: pinning, and where the device sits."""

# torch leaves these constructors untyped.
# mypy: untyped-calls-exclude="torch"

from __future__ import annotations

import torch

_HOST_REGISTER_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process."""


class CudaPinner:
    """Pin arena memory for all CUDA devices of this process."""

    def pin(self, address: int, num_bytes: int) -> None:
        """Pin the range. Raises RuntimeError with the driver's reason if it cannot."""
        cudart = torch.cuda.cudart()
        result = cudart.cudaHostRegister(address, num_bytes, _HOST_REGISTER_PORTABLE)
        if int(result) != 0:
            _clear_last_error()
            raise RuntimeError(f"cudaHostRegister: {cudart.cudaGetErrorString(result)}")

    def unpin(self, address: int) -> None:
        """Undo :meth:`pin`; never raises."""
        if int(torch.cuda.cudart().cudaHostUnregister(address)) != 0:
            _clear_last_error()


def pci_address(device: torch.device) -> str | None:
    """Return the PCI address of a CUDA device, such as ``0000:1b:00.0``; None where torch does not tell."""
    properties = torch.cuda.get_device_properties(device)
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(part is None for part in parts):
        return None
    domain, bus, slot = parts
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _clear_last_error() -> None:
    """Consume the failed call's error, or the next kernel launch would report it as its own."""
    try:
        torch.ones((), device="cuda")
    except RuntimeError:
        return
