"""What every picture shares: colours, type sizes, titles, and matplotlib, which is imported late.

Figures are made through matplotlib's objects (``Figure``), never through pyplot: no window, no global figure, and no
backend to choose, since a figure is saved by the canvas of its file format (Agg for PNG).
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from offload_runtime.compiler import Fate
from offload_runtime.errors import Diagnostic, RefusedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "AFTER",
    "BEFORE",
    "COMPUTE",
    "D2H",
    "FAINT",
    "FATES",
    "H2D",
    "INK",
    "MUTED",
    "OUTSIDE",
    "RIVALS",
    "WARNING",
    "drawing",
    "figure_of",
    "new_figure",
    "set_titles",
    "text_colour",
]

# Told apart under protanopia, deuteranopia and tritanopia; the tests compute it. Mostly from Okabe and Ito's palette.
INK = "#222222"
MUTED = "#5F6770"
FAINT = "#E3E6E9"
BEFORE = "#7F8790"
AFTER = "#0060A8"
WARNING = "#D55E00"
COMPUTE = ("#A9B4C0", "#CBD3DB")
OUTSIDE = "#6F7A86"
D2H = "#0060A8"
H2D = "#56B4E9"
FATES: Mapping[Fate, str] = {
    "save": "#B4BFCA",
    "recompute": "#E69F00",
    "offload": "#0060A8",
    "skip": "#FFFFFF",
}
RIVALS = ("#E69F00", "#009E73", "#882255", "#56B4E9", "#CC79A7")

TITLE_POINTS = 12
CHARACTERS_PER_INCH = 10.6  # of a bold title

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",
    "font.size": 9.5,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "svg.fonttype": "path",  # looks the same where the font is not installed
    "svg.hashsalt": "offload-runtime",  # ids inside the file come from it instead of from chance
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Let matplotlib draw in this package's style inside, whatever the user's matplotlibrc says.

    Raises RefusedError (CLI620) where matplotlib is not installed.
    """
    try:
        import matplotlib.style
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise RefusedError(
            Diagnostic(
                "CLI620",
                "error",
                "a picture needs matplotlib, and it is not installed",
                hint="install the extra: pip install 'offload-runtime[plot]'",
            )
        ) from error
    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure whose parts make room for each other when it is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def figure_of(axes: Axes) -> Figure:
    """Return the figure that ``axes`` stand in."""
    from matplotlib.figure import Figure

    figure = axes.get_figure()
    assert isinstance(figure, Figure), "no picture here is made of subfigures"
    return figure


def text_colour(colour: str) -> str:
    """Return ``colour``, written ``#RRGGBB``, dark enough for small letters on white."""
    return "#" + "".join(f"{int(int(colour[at : at + 2], 16) * 0.65):02X}" for at in (1, 3, 5))


def set_titles(axes: Axes, finding: str, subject: str) -> None:
    """Write what the picture shows as the title of ``axes``, and below it, smaller, what it is a picture of."""
    width_inches = figure_of(axes).get_figwidth()
    width = max(30, int((width_inches - 1.0) * CHARACTERS_PER_INCH))
    pad = 22 if subject else 10
    axes.set_title(
        textwrap.fill(finding, width), loc="left", fontsize=TITLE_POINTS, fontweight="bold", pad=pad
    )
    if subject:
        axes.annotate(
            subject,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 8),
            textcoords="offset points",
            color=MUTED,
            annotation_clip=False,
        )
