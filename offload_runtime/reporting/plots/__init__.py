"""The pictures of a plan: frontier, memory over the step, timeline, fates by layer; matplotlib is imported late."""

from offload_runtime.reporting.plots.fates import FateShare, draw_fates
from offload_runtime.reporting.plots.files import PictureFormat, picture_format, write_figure
from offload_runtime.reporting.plots.frontier import (
    Floor,
    Frontier,
    FrontierPoint,
    FrontierSeries,
    draw_frontier,
)
from offload_runtime.reporting.plots.memory import MemoryLimit, draw_memory
from offload_runtime.reporting.plots.timeline import draw_timeline

__all__ = [
    "FateShare",
    "Floor",
    "Frontier",
    "FrontierPoint",
    "FrontierSeries",
    "MemoryLimit",
    "PictureFormat",
    "draw_fates",
    "draw_frontier",
    "draw_memory",
    "draw_timeline",
    "picture_format",
    "write_figure",
]
