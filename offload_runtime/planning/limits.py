"""What a plan has to keep to, and what is said when it cannot."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Holder", "Infeasible", "Limits"]


@dataclass(frozen=True)
class Limits:
    """Caps, each None for none.

    ``device`` bounds the peak in bytes, ``step_ms`` the predicted step time, ``host`` the bytes on the host at any
    kernel, ``budget`` the sum of ``moved_bytes`` over the offloaded items.
    """

    device: int | None = None
    step_ms: float | None = None
    host: int | None = None
    budget: int | None = None


@dataclass(frozen=True)
class Holder:
    """What is on the device at the kernel that sets the floor."""

    name: str
    num_bytes: int


class Infeasible(Exception):
    """No plan keeps to the limits.

    ``floor_bytes`` is the least peak that was found within the other limits, ``kernel`` where it sits, and
    ``holders`` what is alive there, ``resident`` (parameters and other lasting memory) among it.
    ``floor_ms`` is the least step time that was found under the device limit; None where the device limit alone
    cannot be held.
    """

    def __init__(
        self, floor_bytes: int, kernel: int, holders: tuple[Holder, ...], floor_ms: float | None = None
    ) -> None:
        self.floor_bytes = floor_bytes
        self.kernel = kernel
        self.holders = holders
        self.floor_ms = floor_ms
        held = ", ".join(f"{holder.name} ({holder.num_bytes} bytes)" for holder in holders[:3])
        time = "" if floor_ms is None else f"; the least step time is {floor_ms:.3f} ms"
        super().__init__(f"the least peak is {floor_bytes} bytes, at kernel {kernel}: {held}{time}")
