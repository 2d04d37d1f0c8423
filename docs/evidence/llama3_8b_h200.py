"""Measure Llama-3-8B with and without a policy on one GPU; every run contains its own baseline.

    python docs/evidence/llama3_8b_h200.py graph docs/evidence/llama3-8b-graph-h200.json
    python docs/evidence/llama3_8b_h200.py inductor docs/evidence/llama3-8b-inductor-h200.json

Shape: 32 layers, batch 1 x 8192 tokens, bf16, forward + loss + backward, no optimizer. All sides share one model in one
process; they take turns, in alternating order, and every number is a median of warm steps. The baseline appears twice
(an A/A control): the ratio between its two halves is the noise of the comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import offload_runtime as off
from offload_runtime.models import resolve_model
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.runtime.engines import get_arena
from offload_runtime.runtime.transfer import get_engine, profile

GIB = 2**30
SAC_OFFLOAD = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "sac-offload-12gib",
    "extends": ["balanced"],
    "limits": {"budget": "12GiB"},
}
INDUCTOR_OFFLOAD = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "inductor-12gib",
    "limits": {"budget": "12GiB"},
    "schedule": {"defer": 8, "prefetch": 2},
    "activations": {
        "default": "auto",
        "rules": [
            {
                "name": "heavy",
                "match": {"op": ["matmul", "attention"], "bytes": {"min": "1MiB"}},
                "action": "offload",
            }
        ],
    },
}
SIDES: dict[str, dict[str, Any]] = {
    "graph": {"baseline": "sac-default", "policy": SAC_OFFLOAD},
    "inductor": {"baseline": None, "policy": INDUCTOR_OFFLOAD},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=sorted(SIDES))
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a side in each round")
    parser.add_argument(
        "--soak", type=int, default=0, help="steps run at the end to see whether memory stays flat"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override the policy under test"
    )
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "stalls"}, indent=1))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    under_test = resolve_model("builtin:llama3-8b", layers=arguments.layers, device="cuda", dtype="bfloat16")
    model, batch = under_test.module, under_test.make_batch(0)
    sides = {name: compile_side(model, policy, arguments) for name, policy in SIDES[arguments.mode].items()}
    seconds = {name: timed(lambda side=side: step(model, side, batch)) for name, side in sides.items()}
    for side in sides.values():
        step(model, side, batch)
    arena = get_arena("cuda")
    pins_after_warmup = arena.snapshot().num_pins
    times: dict[str, list[list[float]]] = {name: [] for name in sides}
    peaks: dict[str, list[int]] = {name: [] for name in sides}
    for turn in range(arguments.rounds):
        for name in sorted(sides, reverse=turn % 2 == 1):
            step(model, sides[name], batch)
            torch.cuda.reset_peak_memory_stats()
            times[name].append(list(step_times(model, sides[name], batch, arguments.steps)))
            peaks[name].append(torch.cuda.max_memory_allocated())
    with profile(get_engine("cuda")) as engine:
        step(model, sides["policy"], batch)
        torch.cuda.synchronize()
        snapshot = engine.snapshot()
    report = off.report(sides["policy"])
    soak = soak_memory(model, sides["policy"], batch, arguments.soak) if arguments.soak else None
    medians = {name: statistics.median(t for turn in turns for t in turn) for name, turns in times.items()}
    halves = [statistics.median(t for turn in times["baseline"][i::2] for t in turn) for i in (0, 1)]
    peak = {name: max(values) for name, values in peaks.items()}
    return {
        "what": f"Llama-3-8B, {arguments.layers} layers, 1 x 8192, bf16, forward + backward, mode {arguments.mode}",
        "command": " ".join(
            ["python", *(Path(word).name if word.startswith("/") else word for word in sys.argv)]
        ),
        "environment": environment(),
        "policy": SIDES[arguments.mode]["policy"],
        "baseline_is": SIDES[arguments.mode]["baseline"] or "torch.compile alone",
        "step_ms": {name: round(value, 2) for name, value in medians.items()},
        "step_ms_min": {
            name: round(min(t for turn in turns for t in turn), 2) for name, turns in times.items()
        },
        "num_steps": {name: sum(map(len, turns)) for name, turns in times.items()},
        "step_ms_spread": {
            name: round(spread([t for turn in turns for t in turn]), 2) for name, turns in times.items()
        },
        "ratio": round(medians["policy"] / medians["baseline"], 4),
        "ratio_by_round": [
            round(statistics.median(p) / statistics.median(b), 4)
            for p, b in zip(times["policy"], times["baseline"], strict=True)
        ],
        "ratio_of_baseline_to_itself": round(halves[1] / halves[0], 4),
        "peak_gib": {name: round(value / GIB, 3) for name, value in peak.items()},
        "peak_lower_by_gib": round((peak["baseline"] - peak["policy"]) / GIB, 3),
        "planned_bytes": report.planned_bytes,
        "moved_bytes": report.moved_bytes,
        "reloaded_bytes": report.reloaded_bytes,
        "num_offloaded": sum(tensor.fate == "offload" for tensor in report.tensors),
        "host_bytes": report.host_bytes,
        "host_waste_fraction": round(report.host_waste_bytes / max(report.host_bytes, 1), 4),
        "pins_after_first_step": arena.snapshot().num_pins - pins_after_warmup,
        "hidden_fraction": snapshot.hidden_fraction,
        "stall_ms": snapshot.stall_ms,
        "copy_ms": snapshot.copy_ms,
        "stalls": sorted(
            (
                (item.name.partition("/")[2], item.num_bytes, item.d2h_ms, item.h2d_ms, item.stall_ms)
                for item in snapshot.transfers
            ),
            key=lambda row: -(row[4] or 0),
        )[:20],
        "numa": report.numa,
        "compile_and_first_step_s": {name: round(value, 1) for name, value in seconds.items()},
        "soak": soak,
    }


def compile_side(
    model: torch.nn.Module, policy: Any, arguments: argparse.Namespace
) -> Callable[..., torch.Tensor]:
    torch._dynamo.config.cache_size_limit = 64
    if policy is None:
        return torch.compile(model)  # type: ignore[return-value]
    overrides = arguments.set if isinstance(policy, dict) else []
    compiled = off.load_policy(policy, overrides=overrides)
    options = {"policy": compiled, "mode": arguments.mode, "model": model}
    return torch.compile(model, backend=offload_backend, options=options)  # type: ignore[return-value,call-overload]


def step(model: torch.nn.Module, side: Callable[..., torch.Tensor], batch: tuple[Any, ...]) -> None:
    loss = side(*batch)
    loss.backward()
    model.zero_grad(set_to_none=True)


def step_times(
    model: torch.nn.Module, side: Callable[..., torch.Tensor], batch: tuple[Any, ...], num_steps: int
) -> Iterator[float]:
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(num_steps)
    ]
    for before, after in marks:
        before.record()
        step(model, side, batch)
        after.record()
    torch.cuda.synchronize()
    for before, after in marks:
        yield before.elapsed_time(after)


def timed(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def soak_memory(
    model: torch.nn.Module, side: Callable[..., torch.Tensor], batch: tuple[Any, ...], num_steps: int
) -> dict[str, Any]:
    """Run many steps and show device, host and arena memory at the beginning and at the end."""

    def memory() -> dict[str, int]:
        torch.cuda.synchronize()
        arena = get_arena("cuda").snapshot()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {
            "device_allocated": torch.cuda.memory_allocated(),
            "device_peak": torch.cuda.max_memory_allocated(),
            "host_resident": resident,
            "arena_reserved": arena.reserved_bytes,
            "arena_in_use": arena.in_use_bytes,
            "num_pins": arena.num_pins,
        }

    for _ in range(3):
        step(model, side, batch)
    before = memory()
    for _ in range(num_steps):
        step(model, side, batch)
    return {"num_steps": num_steps, "before": before, "after": memory()}


def spread(values: list[float]) -> float:
    """Return the interquartile range."""
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def environment() -> dict[str, Any]:
    gpu = torch.cuda.get_device_properties(0)
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,pcie.link.gen.current,pcie.link.width.current",
        "--format=csv,noheader",
    ]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "gpu": gpu.name,
        "gpu_bytes": gpu.total_memory,
        "driver_and_link": driver,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host_cores": os.cpu_count(),
        "package": off.__version__,
    }


if __name__ == "__main__":
    main()
