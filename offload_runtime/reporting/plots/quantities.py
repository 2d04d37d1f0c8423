"""Bytes, durations and names as a picture writes them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryUnit", "format_ms", "memory_unit", "shorten"]


@dataclass(frozen=True)
class MemoryUnit:
    """The unit of one picture: its name, how many bytes it is, and to how many decimals it is written."""

    name: str
    num_bytes: int
    decimals: int

    def scale(self, num_bytes: float) -> float:
        """Return ``num_bytes`` in this unit."""
        return num_bytes / self.num_bytes

    def number(self, num_bytes: float) -> str:
        """Write ``num_bytes`` in this unit without its name."""
        return f"{self.scale(num_bytes):,.{self.decimals}f}"

    def text(self, num_bytes: float) -> str:
        """Write ``num_bytes`` in this unit: ``40.9 GiB``."""
        return f"{self.number(num_bytes)} {self.name}"


def memory_unit(largest_bytes: float) -> MemoryUnit:
    """Choose the unit in which ``largest_bytes`` is readable: GiB (for nothing too), or less for a small model."""
    if not largest_bytes:
        return MemoryUnit("GiB", 1024**3, 2)
    powers = {"GiB": 3, "MiB": 2, "KiB": 1}
    name = next((name for name, power in powers.items() if largest_bytes >= 1024**power), "KiB")
    num_bytes = 1024 ** powers[name]
    return MemoryUnit(name, num_bytes, 1 if largest_bytes >= 10 * num_bytes else 2)


def format_ms(duration_ms: float) -> str:
    """Write a duration for reading: ``3,723 ms``, ``12.3 ms``, ``0.41 ms``."""
    decimals = 0 if duration_ms >= 100 else 1 if duration_ms >= 10 else 2
    return f"{duration_ms:,.{decimals}f} ms"


def shorten(name: str, length: int) -> str:
    """Cut the middle out of ``name`` where it is longer than ``length`` characters."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[head + 1 - length :]}"
