"""PLN4xx: what a plan cannot do."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "PLN401",
        "error",
        "a must rule cannot hold",
        "must: true fixes the fate of a tensor, and something stands in the way: it leaves the graph, it "
        "is a "
        "parameter, a limit is spent.",
        "Drop must, exclude the tensor from the rule, or raise the limit; the finding names the reason.",
        "action: offload\nmust: true",
        "action: offload",
    ),
    CodeEntry(
        "PLN402",
        "warning",
        "offloading does not lower the peak",
        "The device memory of this graph peaks where what was offloaded is not alive anyway, or is back already.",
        "Offload or recompute what is alive at the place that the finding names, or drop the offloads.",
    ),
    CodeEntry(
        "PLN403",
        "note",
        "nothing is offloaded",
        "The policy asks for offloading, and a limit, the schedule or the tensors themselves stand in the way; "
        "nothing is wrong where memory suffices.",
        "Raise limits.budget or lower schedule.keep_last, if more is to be offloaded.",
    ),
    CodeEntry(
        "PLN411",
        "error",
        "a hardware profile lacks a figure that planning needs",
        "Predicted times come from the rates of the device; without that of its memory there is none.",
        "Add the figure to the profile, with its source, or choose another profile (offload list hardware).",
    ),
    CodeEntry(
        "PLN412",
        "error",
        "no plan keeps to the limits",
        "Whatever is recomputed or offloaded, device memory stays above limits.device_peak, or the step takes longer "
        "than limits.step_overhead allows. The finding names the floor, where it sits and what holds it there.",
        "Raise the limit, let more tensors be recomputed or offloaded, or shorten batch or sequence.",
        "limits: {device_peak: 1GiB}",
        "limits: {device_peak: 60GiB}",
    ),
)
