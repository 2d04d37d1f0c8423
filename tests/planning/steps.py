"""Steps of a few kernels for tests that compute by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload_runtime.compiler import Fate
from offload_runtime.step import Item, Kernel, LinkRates, Recompute, Region, StepTrace

LINK = LinkRates(d2h_bytes_per_ms=10.0, h2d_bytes_per_ms=10.0)
ANY: frozenset[Fate] = frozenset({"save", "offload", "recompute"})


def item(
    name: str,
    num_bytes: int,
    forward: tuple[int, int],
    backward: tuple[int, int],
    *,
    ready: int | None = None,
    fates: Iterable[Fate] = ANY,
    recompute_ms: float = 1.0,
    needs: tuple[int, ...] = (),
) -> Item:
    """An item that lives in the kernels ``forward`` and is used in the kernels ``backward``, ends included."""
    permitted = frozenset(fates)
    return Item(
        name=name,
        num_bytes=num_bytes,
        moved_bytes=num_bytes,
        created=forward[0],
        ready=forward[0] if ready is None else ready,
        last_forward_use=forward[1],
        first_backward_use=backward[0],
        last_backward_use=backward[1],
        fates=permitted,
        recompute=Recompute(recompute_ms, needs) if "recompute" in permitted else None,
    )


def step(
    items: Sequence[Item],
    *,
    num_forward: int = 4,
    num_backward: int = 4,
    kernel_ms: float = 1.0,
    regions: Sequence[Region] = (),
    resident_bytes: int = 0,
) -> StepTrace:
    """A step of kernels that all take ``kernel_ms``."""
    kernels = tuple(Kernel(f"k{k}", kernel_ms) for k in range(num_forward + num_backward))
    return StepTrace(kernels, num_forward, resident_bytes, tuple(regions), tuple(items))
