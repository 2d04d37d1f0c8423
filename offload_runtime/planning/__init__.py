"""Decide what a training step saves, recomputes and offloads, and when each copy runs.

From a :class:`offload_runtime.step.StepTrace` and a link: :func:`window_bound` says what can leave for free,
:func:`plan_fates` decides, :func:`place` puts the copies of given fates on the time line, :func:`simulate` runs the
three lanes, :func:`step_bound` and :func:`peak_bound` say what no plan can beat. No torch, no graph.
"""

from offload_runtime.planning.bound import peak_bound, step_bound
from offload_runtime.planning.lanes import simulate
from offload_runtime.planning.limits import Holder, Infeasible, Limits
from offload_runtime.planning.placement import COPY_MARGIN, place
from offload_runtime.planning.search import PlannedStep, plan_fates
from offload_runtime.planning.window import Window, window_bound

__all__ = [
    "COPY_MARGIN",
    "Holder",
    "Infeasible",
    "Limits",
    "PlannedStep",
    "Window",
    "peak_bound",
    "place",
    "plan_fates",
    "simulate",
    "step_bound",
    "window_bound",
]
