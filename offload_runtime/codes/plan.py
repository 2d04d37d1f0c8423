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
)
