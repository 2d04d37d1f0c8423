"""Run many random graphs once and write down what was covered: ``python -m tests.fuzz.run_many --out FILE``.

Deterministic: program number ``n`` and what is done to it are drawn from seed ``n``. A *graph* is one joint
graph rewritten in one way (policy, split, timing of copies); every program gives several. Draws that plain
autograd itself refuses, or in which nothing is differentiated, do not count; the run goes on until
``--graphs`` have run. Exit code 1 if any of them fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.running import Outcome, draw_case, run_case

MAX_STEPS = 9
NUM_TREATMENTS = 5
BATCH = 100


@dataclass
class Tally:
    """What a run has seen: counts by feature, in how many graphs, draws set aside, and failures by seed."""

    num_graphs: int = 0
    num_programs: int = 0
    num_draws: int = 0
    shown: Counter[str] = field(default_factory=Counter)
    graphs_with: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    commit: str = field(default_factory=lambda: _commit())

    def add(self, seed: int, outcome: Outcome) -> None:
        """Count what one seed gave."""
        self.num_draws += 1
        self.failures += [{"seed": seed, "fault": fault} for fault in outcome.faults]
        if outcome.set_aside is not None:
            self.set_aside[outcome.set_aside] += 1
            return
        self.num_programs += 1
        self.num_graphs += len(outcome.graphs)
        for shown in outcome.graphs:
            self.shown += shown
            self.graphs_with.update(feature for feature, count in shown.items() if count)

    def record(self, first_seed: int, num_wanted: int, elapsed_s: float) -> dict[str, Any]:
        """Return the tally as data."""
        return {
            "what": "random joint graphs rewritten under random policies, compared bit for bit with plain "
            "autograd and with the same partition without transfers, on the simulated engine",
            "command": f"python -m tests.fuzz.run_many --first-seed {first_seed} --graphs {num_wanted}",
            "environment": {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "commit": self.commit,
            },
            "first_seed": first_seed,
            "num_graphs": self.num_graphs,
            "num_programs": self.num_programs,
            "num_failures": len(self.failures),
            "num_draws": self.num_draws,
            "elapsed_s": round(elapsed_s),
            "graphs_with": dict(sorted(self.graphs_with.items())),
            "counts": dict(sorted(self.shown.items())),
            "set_aside": dict(self.set_aside.most_common()),
            "failures": self.failures,
        }


def run_seed(seed: int) -> Outcome:
    """Draw and run the program of one seed; a crash is an outcome, too."""
    case = draw_case(random.Random(seed), max_steps=MAX_STEPS, num_treatments=NUM_TREATMENTS)
    if case is None:
        return Outcome("no result that could be returned")
    try:
        return run_case(case)
    except Exception as error:  # noqa: BLE001 a crash is a result here, to be written down with its seed
        return Outcome(faults=[f"{type(error).__name__}: {error}"])


def _commit() -> str:
    git = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip()


def main() -> int:
    """Run until enough graphs have passed; write the record; say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tally, started = Tally(), time.monotonic()
    batches = itertools.count(arguments.first_seed, BATCH)
    with multiprocessing.get_context("spawn").Pool(arguments.processes, torch.set_num_threads, (1,)) as pool:
        while tally.num_graphs < arguments.graphs:
            seeds = range(first := next(batches), first + BATCH)
            for seed, outcome in zip(seeds, pool.imap(run_seed, seeds), strict=True):
                tally.add(seed, outcome)
            progress = f"{tally.num_graphs} graphs, {len(tally.failures)} failures"
            print(progress, file=sys.stderr, flush=True)  # noqa: T201 progress is for people
    record = tally.record(arguments.first_seed, arguments.graphs, time.monotonic() - started)
    text = json.dumps(record, indent=2) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
