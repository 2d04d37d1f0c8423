"""Rewritten pairs of random programs with what they were called with, to be broken on purpose and run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from offload_runtime.compiler import load_policy
from offload_runtime.passes.verify import OriginalPair, read_original, verify_partition
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.backend import OPS
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import use_engine
from tests.fuzz.programs import draw_program
from tests.fuzz.rewriting import Capture, Treatment, copy_module, run_pair
from tests.fuzz.running import Case, capture_case, same_bits

__all__ = ["Pair", "draw_pairs"]

_OFFLOAD_ALL = load_policy(
    {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "offload-all",
        "schedule": {"defer": 1, "prefetch": 1, "keep_last": 0},
        "activations": {"default": "offload"},
    }
)


@dataclass(frozen=True)
class Pair:
    """A rewritten forward and backward, what they were before, and one recorded run of them."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    original: OriginalPair
    capture: Capture

    def copied(self) -> Pair:
        """Return a pair whose graphs may be changed."""
        return Pair(copy_module(self.forward), copy_module(self.backward), self.original, self.capture)

    def verify(self) -> None:
        """Raise VerificationError unless the pair is sound."""
        verify_partition(self.forward, self.backward, original=self.original, ops=OPS)

    def numbers_are_right(self, timing: Any) -> bool:
        """Run the pair on recorded arguments with the simulated engine; compare with the recorded results.

        Raises RunError where the engine refuses the order of transfers.
        """
        for gm in (self.forward, self.backward):
            gm.graph.lint()
            gm.recompile()
        assert self.capture.forward is not None
        assert self.capture.backward is not None
        num_outputs = self.original.num_fwd_outputs
        with use_engine(SimulatedEngine(HostArena(), timing=timing)):
            outputs, gradients = run_pair(self.forward, self.backward, num_outputs, self.capture)
        expected = (*self.capture.forward.results[:num_outputs], *self.capture.backward.results)
        return all(
            same_bits(one, other)
            for one, other in zip(expected, (*outputs, *gradients), strict=True)
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        )


def draw_pairs(*, first_seed: int, num_draws: int) -> Iterator[Pair]:
    """Draw programs, offload whatever can be, and yield the pairs that carry transfers.

    Every other pair is split without tags, saving everything, so that views have to be replayed.
    """
    for seed in range(first_seed, first_seed + num_draws):
        program = draw_program(random.Random(seed), max_steps=9)
        partitioning = "save_everything" if seed % 2 else "tagged"
        capture = None
        if program is not None:
            capture = capture_case(Case(program, (Treatment(_OFFLOAD_ALL, partitioning, "early", 0),)))
        if capture is None or not capture.rewritten[0].pair.plan.transfers:
            continue
        partition = capture.rewritten[0].pair.partition
        original = read_original(capture.rewritten[0].reference)
        yield Pair(partition.forward, partition.backward, original, capture)
