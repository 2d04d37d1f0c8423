"""Fates by layer: how much of what each layer saves stays, is computed again, or leaves for the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offload_runtime.compiler import Fate
from offload_runtime.reporting.plots.quantities import MemoryUnit, memory_unit
from offload_runtime.reporting.plots.style import FATES, INK, MUTED, drawing, new_figure, set_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FateShare", "draw_fates"]

# In the order in which they are stacked: what stays on the device is at the bottom.
WORDS: Mapping[Fate, str] = {
    "save": "saved (stays on the device)",
    "recompute": "recomputed in backward",
    "offload": "offloaded to the host",
    "skip": "skipped (no activation: parameters, inputs)",
}
HATCHES: Mapping[Fate, str | None] = {"save": None, "recompute": "//", "offload": None, "skip": ".."}
FEWEST_LAYERS = 8  # so many find room: one layer alone does not fill the picture
MOST_NUMBERED = 40
LEGIBLE_SHARE = 0.035  # of the longest bar: in a shorter piece its amount finds no room


@dataclass(frozen=True)
class FateShare:
    """One saved tensor, or several of one layer and one fate; ``layer`` None: outside of the layers."""

    layer: int | None
    fate: Fate
    num_bytes: int


Stack = dict[Fate, int]


def draw_fates(shares: Sequence[FateShare], *, num_layers: int | None = None, subject: str = "") -> Figure:
    """Draw a stacked bar for each layer, and below them one bar for all layers and one for what is outside them.

    ``num_layers`` counts layers that save nothing too; by default the last one that saves something is the last.
    Raises RefusedError (CLI620) without matplotlib.
    """
    num_layers = max([num_layers or 0, *(share.layer + 1 for share in shares if share.layer is not None)])
    stacks = [_stack(share for share in shares if share.layer == layer) for layer in range(num_layers)]
    outside = _stack(share for share in shares if share.layer is None)
    sums = {"outside the layers": outside}
    if stacks:
        sums = {"all layers": _stack(share for share in shares if share.layer is not None), **sums}
    unit = memory_unit(sum(sum(stack.values()) for stack in sums.values()))
    with drawing():
        figure = new_figure(11, 6.2 if stacks else 2.8)
        if stacks:
            layers, totals = figure.subplots(2, height_ratios=(3.4, 1))
            _draw_layers(layers, stacks)
        else:
            layers = totals = figure.add_subplot()
        set_titles(layers, _finding(shares, unit), subject)
        _draw_sums(totals, sums, unit)
        if totals.get_legend_handles_labels()[0]:
            figure.legend(*totals.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _stack(shares: Iterable[FateShare]) -> Stack:
    stack: Stack = dict.fromkeys(WORDS, 0)
    for share in shares:
        stack[share.fate] += share.num_bytes
    return stack


def _finding(shares: Sequence[FateShare], unit: MemoryUnit) -> str:
    """Say how much goes where; what is no activation does not count."""
    totals = _stack(shares)
    total = sum(num_bytes for fate, num_bytes in totals.items() if fate != "skip")
    if not total:
        return "No activation is saved for backward"
    verbs: dict[Fate, str] = {
        "offload": "leave for the host",
        "recompute": "are recomputed",
        "save": "stay on the device",
    }
    parts = [f"{unit.number(totals[fate])} {verb}" for fate, verb in verbs.items() if totals[fate]]
    if len(parts) == 1:
        return f"All {unit.text(total)} of activations {parts[0].partition(' ')[2]}"
    return f"Of {unit.text(total)} of activations, {', '.join(parts[:-1])} and {parts[-1]}"


def _draw_layers(axes: Axes, stacks: Sequence[Stack]) -> None:
    unit = memory_unit(max(sum(stack.values()) for stack in stacks))
    bottoms = [0.0] * len(stacks)
    for fate, words in WORDS.items():
        heights = [unit.scale(stack[fate]) for stack in stacks]
        if any(heights):
            axes.bar(range(len(stacks)), heights, 0.8, bottom=bottoms, label=words, **_look(fate))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    around = max(0.3, (FEWEST_LAYERS - len(stacks)) / 2)
    axes.set_xlim(-0.5 - around, len(stacks) - 0.5 + around)
    axes.set_ylim(0, 1.06 * max(bottoms) or 1)
    axes.set_xlabel("layer")
    axes.set_ylabel(f"saved tensors per layer ({unit.name})")
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(0, len(stacks), -(-len(stacks) // MOST_NUMBERED)))


def _draw_sums(axes: Axes, sums: Mapping[str, Stack], unit: MemoryUnit) -> None:
    """Draw one lying bar for each sum, on a scale of their own, the amount written where it finds room."""
    most = unit.scale(max(sum(stack.values()) for stack in sums.values()))
    lefts = [0.0] * len(sums)
    for fate, words in WORDS.items():
        widths = [unit.scale(stack[fate]) for stack in sums.values()]
        if any(widths):
            bars = axes.barh(list(sums), widths, 0.66, left=lefts, label=words, **_look(fate))
            texts = [f"{width:.{unit.decimals}f}" if width > LEGIBLE_SHARE * most else "" for width in widths]
            colour = "white" if fate == "offload" else INK
            for text in axes.bar_label(bars, texts, label_type="center", fontsize=9, color=colour):
                text.set_bbox(
                    {"facecolor": FATES[fate], "linewidth": 0, "pad": 1} if text.get_text() else None
                )
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    if not most:
        axes.barh(list(sums), lefts)
        axes.text(
            0.5, 0.5, "nothing is saved", transform=axes.transAxes, ha="center", va="center", color=MUTED
        )
    axes.set_xlim(0, 1.02 * most or 1)
    axes.invert_yaxis()
    axes.set_xlabel(f"saved tensors in total ({unit.name})")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _look(fate: Fate) -> dict[str, Any]:
    return {
        "facecolor": FATES[fate],
        "edgecolor": MUTED if fate == "skip" else "white",
        "linewidth": 0.5,
        "hatch": HATCHES[fate],
    }
