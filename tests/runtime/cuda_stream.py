"""The CUDA device of the tests, and streams that are kept busy."""

from __future__ import annotations

import torch

GPU = torch.device("cuda", 0)
HOLD_CYCLES = 200_000_000
"""About 0.1 s of GPU time: longer than anything the host does in between."""


def hold(stream: torch.cuda.Stream) -> None:
    """Keep a stream busy, so that what is enqueued behind it runs late."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(HOLD_CYCLES)
