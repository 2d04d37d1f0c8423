"""Labels beside points, each where it covers neither a line, nor a point, nor another label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offload_runtime.reporting.plots.style import figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path
    from matplotlib.text import Annotation
    from matplotlib.transforms import BboxBase

__all__ = ["GUIDE", "PointLabel", "place_labels"]

# Where a label may stand, seen from its point, in multiples of the distance; the best places first.
PLACES = tuple(
    (side * across, up)
    for across, ups in ((1.0, (0.7, -0.7)), (1.6, (2.2, -2.2)), (2.0, (4.0, -4.0)))
    for up in ups
    for side in (1, -1)
)
NUM_NEAR = 4  # of the places; an optional label stands near its point or not at all
LEADER_FROM = 1.5  # a label that stands farther up or down than this gets a line to its point
AROUND_PIXELS = 3
DISTANCE_POINTS = {False: 8.0, True: 12.0}  # of a label, and of a bold one: its marker is larger
NOTHING = (False, 0, 0)
GUIDE = "guide"  # the gid of a line that a label may cross


@dataclass(frozen=True)
class PointLabel:
    """The text that belongs to the point (x, y), in data coordinates; an ``optional`` one is left out in a crowd."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False
    optional: bool = True


def place_labels(axes: Axes, labels: Sequence[PointLabel]) -> None:
    """Write ``labels``, the most important first, beside their points, clear of all lines, markers and texts.

    Everything else must have been drawn in ``axes``, and its limits set: the places depend on them. A label that
    is not optional crosses lines where no place is clear.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = figure_of(axes)
    figure.draw_without_rendering()
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib leaves the type of its renderer open
    drawn = _Drawn.of(axes, canvas.get_renderer())
    for label in labels:
        places = PLACES[:NUM_NEAR] if label.optional else PLACES
        notes = [_annotate(axes, label, place) for place in places]
        covered = [drawn.covered_by(note) for note in notes]
        best = covered.index(min(covered))
        kept = covered[best][:-1] == NOTHING or not label.optional
        for index, note in enumerate(notes):
            if index != best or not kept:
                note.remove()
        if kept:
            drawn.boxes.append(drawn.box_of(notes[best]))


def _annotate(axes: Axes, label: PointLabel, place: tuple[float, float]) -> Annotation:
    from matplotlib.patheffects import withStroke

    across, up = place
    distance = DISTANCE_POINTS[label.bold]
    far = abs(up) > LEADER_FROM
    return axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(across * distance, up * distance),
        textcoords="offset points",
        ha="left" if across > 0 else "right",
        va="bottom" if up > 0 else "top",
        color=label.colour,
        fontsize=10 if label.bold else 8.5,
        fontweight="bold" if label.bold else "normal",
        arrowprops={"arrowstyle": "-", "color": label.colour, "linewidth": 0.7} if far else None,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        zorder=8,
    )


@dataclass
class _Drawn:
    """What a label must not cover, in pixels: the lines in the axes, and the boxes of markers and texts."""

    inside: BboxBase
    renderer: Any
    lines: list[Path] = field(default_factory=list)
    guides: list[Path] = field(default_factory=list)
    boxes: list[BboxBase] = field(default_factory=list)

    @classmethod
    def of(cls, axes: Axes, renderer: Any) -> _Drawn:
        from matplotlib.transforms import Bbox

        drawn = cls(axes.bbox, renderer)
        drawn.boxes += [text.get_window_extent(renderer) for text in axes.texts if text.get_text()]
        for line in axes.get_lines():
            path = line.get_transform().transform_path(line.get_path())
            if line.get_linestyle() != "None":
                (drawn.guides if line.get_gid() == GUIDE else drawn.lines).append(path)
            if line.get_marker() != "None":
                half = line.get_markersize() / 2 * figure_of(axes).dpi / 72
                points: Any = path.vertices
                drawn.boxes += [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in points]
        return drawn

    def box_of(self, note: Annotation) -> BboxBase:
        """Return where the text of ``note`` stands, without the line to its point."""
        from matplotlib.text import Text

        note.update_positions(self.renderer)
        return Text.get_window_extent(note, self.renderer)

    def covered_by(self, note: Annotation) -> tuple[bool, int, int, int]:
        """Count what ``note`` would cover, the worst first: the edge of the axes, boxes, lines, guides."""
        box = self.box_of(note).padded(AROUND_PIXELS)
        within = self.inside.x0 <= box.x0 and box.x1 <= self.inside.x1
        within = within and self.inside.y0 <= box.y0 and box.y1 <= self.inside.y1
        boxes = sum(bool(box.overlaps(other)) for other in self.boxes)
        lines, guides = (
            sum(path.intersects_bbox(box, filled=False) for path in paths)
            for paths in (self.lines, self.guides)
        )
        return not within, boxes, lines, guides
