"""Steps to plan: a decoder of realistic size, and small random ones."""

from __future__ import annotations

import random
from itertools import product

from offload_runtime.compiler import Fate
from offload_runtime.step import Item, Kernel, LinkRates, Recompute, Region, StepTrace

MIB = 2**20
GIB = 2**30

PCIE5 = LinkRates(d2h_bytes_per_ms=55e6, h2d_bytes_per_ms=55e6)

# One layer: (name, MiB, kernel that makes it, last forward use, first and last use in backward, recompute ms, needs).
# Kernels count within the layer's 18 forward and 28 backward kernels.
_SAVED: tuple[tuple[str, int, int, int, int, int, float | None, tuple[str, ...]], ...] = (
    ("norm1", 64, 1, 4, 23, 27, 0.1, ()),
    ("q", 64, 3, 7, 19, 22, None, ()),
    ("k", 16, 4, 7, 19, 22, None, ()),
    ("v", 16, 5, 7, 19, 22, None, ()),
    ("attention", 64, 7, 8, 16, 19, None, ()),
    ("norm2", 64, 10, 13, 9, 13, 0.1, ()),
    ("gate", 224, 12, 14, 5, 8, 1.4, ("norm2",)),
    ("up", 224, 13, 14, 5, 8, 1.4, ("norm2",)),
    ("act", 224, 14, 15, 2, 4, 0.2, ("gate", "up")),
)
_FORWARD, _BACKWARD = 18, 28


def llama(
    num_layers: int = 32,
    *,
    loss_gib: float = 6.0,
    layer_ms: float = 22.0,
    with_act: bool = False,
) -> StepTrace:
    """A decoder: ``num_layers`` of ``layer_ms`` forward and backward, parameters of 15 GiB, a loss at the turn.

    ``with_act`` saves the product of the MLP as well, 224 MiB a layer more.
    """
    saved = [row for row in _SAVED if with_act or row[0] != "act"]
    forward_ms, backward_ms = layer_ms / 3 / _FORWARD, layer_ms * 2 / 3 / _BACKWARD
    kernels = [Kernel("embedding", 0.1)]
    kernels += [Kernel(f"f{la}.{k}", forward_ms, la) for la in range(num_layers) for k in range(_FORWARD)]
    kernels += [Kernel(f"loss.{k}", 3.0) for k in range(3)]
    num_forward = len(kernels)
    kernels += [Kernel(f"loss_backward.{k}", 3.0) for k in range(4)]
    kernels += [
        Kernel(f"b{la}.{k}", backward_ms, la) for la in reversed(range(num_layers)) for k in range(_BACKWARD)
    ]
    last = len(kernels) - 1
    regions = [Region("logits", int(loss_gib * GIB), num_forward - 2, num_forward + 2)]
    items: list[Item] = []
    for layer in range(num_layers):
        start = 1 + layer * _FORWARD
        back = num_forward + 4 + (num_layers - 1 - layer) * _BACKWARD
        regions.append(Region(f"gradients.{layer}", int(0.41 * GIB), back + 3, last))
        at = {row[0]: len(items) + n for n, row in enumerate(saved)}
        for name, mib, made, used, first, until, recompute_ms, needs in saved:
            recompute = (
                None if recompute_ms is None else Recompute(recompute_ms, tuple(at[need] for need in needs))
            )
            fates: set[Fate] = {"save", "offload"} | ({"recompute"} if recompute else set())
            items.append(
                Item(
                    name=f"{name}.{layer}",
                    num_bytes=mib * MIB,
                    moved_bytes=mib * MIB,
                    created=start + made,
                    ready=start + made,
                    last_forward_use=start + used,
                    first_backward_use=back + first,
                    last_backward_use=back + until,
                    fates=frozenset(fates),
                    recompute=recompute,
                )
            )
    return StepTrace(tuple(kernels), num_forward, 15 * GIB, tuple(regions), tuple(items))


def small(seed: int, *, max_items: int = 6) -> tuple[StepTrace, LinkRates]:
    """A random step of at most ``max_items`` items, with sizes of a few bytes and times of a few milliseconds."""
    rng = random.Random(seed)
    num_forward, num_backward = rng.randint(4, 9), rng.randint(4, 10)
    num_kernels = num_forward + num_backward
    kernels = tuple(Kernel(f"k{k}", rng.choice((0.5, 1.0, 1.5, 2.0, 4.0))) for k in range(num_kernels))
    regions = []
    for n in range(rng.randint(0, 4)):
        first = rng.randrange(num_kernels)
        regions.append(Region(f"r{n}", rng.randint(1, 60), first, rng.randrange(first, num_kernels)))
    items: list[Item] = []
    for n in range(rng.randint(1, max_items)):
        created = rng.randrange(num_forward)
        ready = rng.randrange(created, min(created + 2, num_forward))
        first = rng.randrange(num_forward, num_kernels)
        moved = rng.randint(1, 50)
        choices: list[tuple[Fate, ...]] = [("save", "offload"), ("save", "offload", "recompute")]
        choices += [("save", "recompute"), ("save", "offload", "recompute"), ("offload", "recompute")]
        fates = rng.choice(choices)
        needs = tuple(m for m in range(n) if rng.random() < 0.3)
        items.append(
            Item(
                name=f"i{n}",
                num_bytes=moved + rng.choice((0, 0, 0, 5)),
                moved_bytes=moved,
                created=created,
                ready=ready,
                last_forward_use=rng.randrange(ready, num_forward),
                first_backward_use=first,
                last_backward_use=rng.randrange(first, num_kernels),
                fates=frozenset(fates),
                recompute=Recompute(rng.choice((0.1, 0.3, 1.0, 3.0)), needs)
                if "recompute" in fates
                else None,
                num_copies=rng.choice((1, 1, 2)),
            )
        )
    link = LinkRates(
        d2h_bytes_per_ms=rng.choice((3.0, 8.0, 20.0)),
        h2d_bytes_per_ms=rng.choice((3.0, 8.0, 20.0)),
        latency_ms=rng.choice((0.0, 0.0, 0.2)),
        duplex_share=rng.choice((1.0, 0.8)),
        contention=rng.choice((0.0, 0.0, 0.1)),
    )
    return StepTrace(kernels, num_forward, rng.randint(0, 40), tuple(regions), tuple(items)), link


def all_fates(trace: StepTrace) -> list[tuple[Fate, ...]]:
    """Every combination of permitted fates."""
    return list(product(*(sorted(item.fates) for item in trace.items)))
