"""Fates by layer: stacks, sums, words."""

from __future__ import annotations

import pytest

from offload_runtime.reporting.plots import (
    FateShare,
    draw_fates,
)
from tests.reporting.plots.drawn import (
    GIB,
    MIB,
    SHARES,
    legend,
    title,
)

pytest.importorskip("matplotlib")


def bars(axes, words: str, lying: bool = False) -> list[tuple[float, float]]:
    """Return where each bar of a fate begins and how long it is."""
    (container,) = [found for found in axes.containers if found.get_label() == words]
    return [
        (bar.get_x(), bar.get_width()) if lying else (bar.get_y(), bar.get_height())
        for bar in container.patches
    ]


def test_a_layer_stacks_what_stays_and_what_leaves() -> None:
    layers, _ = draw_fates(SHARES).axes
    assert bars(layers, "saved (stays on the device)") == [(0, 100)] * 4
    assert bars(layers, "recomputed in backward") == [(100, 0), (100, 0), (100, 0), (100, 200)]
    assert bars(layers, "offloaded to the host") == [(100, 400), (100, 300), (100, 300), (300, 0)]
    assert layers.get_ylabel() == "saved tensors per layer (MiB)"
    assert layers.get_xlabel() == "layer"


def test_what_is_outside_the_layers_has_a_bar_of_its_own_beside_the_sum_of_the_layers() -> None:
    figure = draw_fates(SHARES)
    sums = figure.axes[1]
    assert [label.get_text() for label in sums.get_yticklabels()] == ["all layers", "outside the layers"]
    assert bars(sums, "saved (stays on the device)", lying=True) == [(0, 400 / 1024), (0, 2)]
    assert bars(sums, "offloaded to the host", lying=True) == [(600 / 1024, 1000 / 1024), (2, 0)]
    assert bars(sums, "skipped (no activation: parameters, inputs)", lying=True)[1] == (2, 1)
    assert sums.get_xlabel() == "saved tensors in total (GiB)"
    assert legend(figure) == [
        "saved (stays on the device)",
        "recomputed in backward",
        "offloaded to the host",
        "skipped (no activation: parameters, inputs)",
    ]


@pytest.mark.parametrize(
    ("shares", "finding"),
    [
        (
            SHARES,
            "Of 3.56 GiB of activations, 0.98 leave for the host, 0.20 are recomputed and 2.39 stay on the device",
        ),
        ([FateShare(0, "save", GIB)], "All 1.00 GiB of activations stay on the device"),
        ([FateShare(None, "offload", GIB)], "All 1.00 GiB of activations leave for the host"),
        ([FateShare(0, "skip", GIB)], "No activation is saved for backward"),
        ([], "No activation is saved for backward"),
    ],
)
def test_the_title_of_the_fates_says_how_much_goes_where(shares: list[FateShare], finding: str) -> None:
    assert title(draw_fates(shares)) == finding


def test_layers_that_save_nothing_keep_their_place() -> None:
    layers, _ = draw_fates([FateShare(1, "save", MIB)], num_layers=5).axes
    assert bars(layers, "saved (stays on the device)") == [(0, 0), (0, 1), (0, 0), (0, 0), (0, 0)]
    assert [int(tick) for tick in layers.get_xticks()] == [0, 1, 2, 3, 4]


def test_eighty_layers_are_all_drawn_and_every_second_is_numbered() -> None:
    layers, _ = draw_fates([FateShare(layer, "offload", MIB) for layer in range(80)]).axes
    assert len(bars(layers, "offloaded to the host")) == 80
    assert [int(tick) for tick in layers.get_xticks()] == list(range(0, 80, 2))
