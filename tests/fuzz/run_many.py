"""Run many random graphs once and write down what was covered: ``python -m tests.fuzz.run_many --out FILE``.

Deterministic: graph number ``n`` is drawn from seed ``n``. Draws that plain autograd itself refuses, or in which nothing
is differentiated, do not count; the run goes on until ``--graphs`` have passed. Exit code 1 if any graph fails.
"""

from __future__ import annotations

import argparse
import json
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

from tests.fuzz.running import draw_case, run_case

MAX_STEPS = 9


@dataclass
class Tally:
    """What a run has seen so far: counts by feature, in how many graphs, draws set aside, and failures by seed."""

    num_graphs: int = 0
    num_draws: int = 0
    shown: Counter[str] = field(default_factory=Counter)
    graphs_with: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, seed: int) -> None:
        """Draw and run the graph of one seed."""
        self.num_draws += 1
        case = draw_case(random.Random(seed), max_steps=MAX_STEPS)
        if case is None:
            self.set_aside["no result that could be returned"] += 1
            return
        try:
            outcome = run_case(case)
        except Exception as error:  # noqa: BLE001 a crash is a result here, to be written down with its seed
            self.num_graphs += 1
            self.failures.append({"seed": seed, "fault": f"{type(error).__name__}: {error}"})
            return
        if outcome.set_aside is not None:
            self.set_aside[outcome.set_aside] += 1
            return
        self.num_graphs += 1
        self.shown += outcome.shown
        self.graphs_with.update(feature for feature, count in outcome.shown.items() if count)
        self.failures += [{"seed": seed, "fault": fault} for fault in outcome.faults]

    def record(self, first_seed: int, elapsed_s: float) -> dict[str, Any]:
        """Return the tally as data."""
        return {
            "what": "random joint graphs rewritten under random policies, compared bit for bit with plain autograd "
            "and with the same partition without transfers, on the simulated engine",
            "command": f"python -m tests.fuzz.run_many --first-seed {first_seed} --graphs {self.num_graphs}",
            "environment": {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "commit": _commit(),
            },
            "first_seed": first_seed,
            "num_graphs": self.num_graphs,
            "num_failures": len(self.failures),
            "num_draws": self.num_draws,
            "elapsed_s": round(elapsed_s),
            "graphs_with": dict(sorted(self.graphs_with.items())),
            "counts": dict(sorted(self.shown.items())),
            "set_aside": dict(self.set_aside.most_common()),
            "failures": self.failures,
        }


def _commit() -> str:
    git = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip()


def main() -> int:
    """Run until enough graphs have passed; write the record; say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tally, started, seed = Tally(), time.monotonic(), arguments.first_seed
    while tally.num_graphs < arguments.graphs:
        tally.add(seed)
        seed += 1
        if seed % 500 == 0:
            print(f"{tally.num_graphs} graphs, {len(tally.failures)} failures", file=sys.stderr, flush=True)  # noqa: T201 progress
    record = tally.record(arguments.first_seed, time.monotonic() - started)
    text = json.dumps(record, indent=2) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
