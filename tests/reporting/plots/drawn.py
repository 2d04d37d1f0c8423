"""Steps and frontiers to draw, and what to ask of a figure."""

from __future__ import annotations

from offload_runtime.reporting.plots import (
    FateShare,
    Floor,
    Frontier,
    FrontierPoint,
    FrontierSeries,
)
from offload_runtime.step import Copy, Item, Kernel, Simulation, StepTrace

GIB = 1024**3
MIB = 1024**2
BASELINE = FrontierPoint(55 * GIB, 700.0, "torch.compile")
POLICY = FrontierPoint(43 * GIB, 707.0, "dense-balanced")
PLANNED = FrontierSeries(
    "planned",
    (FrontierPoint(43 * GIB, 707.0), FrontierPoint(36 * GIB, 721.0), FrontierPoint(32 * GIB, 742.0)),
)
PEER = FrontierSeries(
    "activation_memory_budget",
    (FrontierPoint(40 * GIB, 738.0, "0.6"), FrontierPoint(34 * GIB, 818.0, "0.3")),
)
FRONTIER = Frontier(
    (PLANNED, PEER),
    BASELINE,
    POLICY,
    infeasible_bytes=(28 * GIB, 30 * GIB),
    floor=Floor(32 * GIB, "the loss holds its logits three times in float32"),
    subject="Llama-3-8B, predicted for h200-pcie5",
)


SHARES = [
    *(FateShare(layer, "save", 100 * MIB) for layer in range(4)),
    *(FateShare(layer, "offload", 300 * MIB) for layer in range(3)),
    FateShare(0, "offload", 100 * MIB),
    FateShare(3, "recompute", 200 * MIB),
    FateShare(None, "save", 2 * GIB),
    FateShare(None, "skip", GIB),
]


def step(num_layers: int, kernels_per_layer: int = 3, kernel_ms: float = 1.0) -> StepTrace:
    """Build a step: forward through the layers, a loss outside of them, the layers backward; one item a layer."""
    forward = [
        Kernel(f"mm_{k}", kernel_ms, layer) for layer in range(num_layers) for k in range(kernels_per_layer)
    ]
    loss = [Kernel("log_softmax", kernel_ms), Kernel("log_softmax_backward", kernel_ms)]
    backward = [Kernel(f"{kernel.name}_backward", kernel_ms, kernel.layer) for kernel in reversed(forward)]
    num_kernels = 2 * len(forward) + 2
    items = tuple(
        Item(
            name=f"layers.{layer}.w1",
            num_bytes=GIB,
            moved_bytes=GIB,
            created=layer * kernels_per_layer,
            ready=layer * kernels_per_layer,
            last_forward_use=layer * kernels_per_layer,
            first_backward_use=num_kernels - 1 - layer * kernels_per_layer,
            last_backward_use=num_kernels - 1 - layer * kernels_per_layer,
            fates=frozenset({"save", "offload"}),
        )
        for layer in range(num_layers)
    )
    return StepTrace((*forward, *loss, *backward), len(forward) + 1, 2 * GIB, (), items)


def simulation(
    trace: StepTrace,
    stalls_ms: dict[int, float] | None = None,
    copies: tuple[Copy, ...] = (),
    device_bytes: tuple[int, ...] | None = None,
    host_bytes: tuple[int, ...] | None = None,
) -> Simulation:
    """Run the kernels one after the other, standing still before some; memory rises to the loss and falls again."""
    starts, ends, now = [], [], 0.0
    for index, kernel in enumerate(trace.kernels):
        now += (stalls_ms or {}).get(index, 0.0)
        starts.append(now)
        now += kernel.duration_ms
        ends.append(now)
    num = len(trace.kernels)
    curve = tuple((2 + min(i, num - 1 - i)) * GIB for i in range(num))
    return Simulation(tuple(starts), tuple(ends), copies, device_bytes or curve, host_bytes or (0,) * num)


def texts(figure) -> list[str]:
    """Return every text of the figure's axes on one line each."""
    return [
        text.get_text().replace("\n", " ") for axes in figure.axes for text in axes.texts if text.get_text()
    ]


def title(figure) -> str:
    return figure.axes[0].get_title(loc="left").replace("\n", " ")


def line(axes, label: str):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def points(drawn) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(drawn.get_xdata(), drawn.get_ydata(), strict=True)]


def of_gid(axes, gid: str) -> list[float]:
    """Return where the upright lines with this gid stand."""
    return [float(line.get_xdata()[0]) for line in axes.get_lines() if line.get_gid() == gid]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def copies_of(trace: StepTrace, direction, starts_ms: list[float], stall_ms: float = 0.0) -> tuple[Copy, ...]:
    return tuple(
        Copy(item.name, direction, item.moved_bytes, start, start + 0.9, stall_ms)
        for item, start in zip(trace.items, starts_ms, strict=False)
    )
