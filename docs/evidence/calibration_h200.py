"""Measure on one GPU what the shipped profile h200-pcie5 is calibrated from.

    python docs/evidence/calibration_h200.py docs/evidence/calibration-h200.json

Rates of products, attention and device copies, each alone; then whole training steps (forward, loss, backward) with
their kernels by name. The rates and every step run in a process of their own, so that workspaces that a library keeps
are not in the peak of another. The file is written after each of them; ``--only NAME`` repeats a single one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from llama3_8b_h200 import compile_side, environment, step
from torch.profiler import ProfilerActivity, profile

from offload_runtime.models import resolve_model

AUTO = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "torch-decides",
    "limits": {"budget": "0B"},
    "activations": {"default": "auto"},
}
RATES = "rates"
TOKENS = 8192
# Products [m, k] x [k, n] of a training step: Llama-3-8B's, its head's, those of Qwen3-14B, and small ones.
MATMULS = (
    (TOKENS, 4096, 4096),
    (TOKENS, 4096, 1024),
    (TOKENS, 4096, 14336),
    (TOKENS, 14336, 4096),
    (4096, TOKENS, 4096),
    (4096, TOKENS, 14336),
    (14336, TOKENS, 4096),
    (1024, TOKENS, 4096),
    (TOKENS, 4096, 128256),
    (128256, TOKENS, 4096),
    (TOKENS, 128256, 4096),
    (TOKENS, 5120, 17408),
    (TOKENS, 17408, 5120),
    (17408, TOKENS, 5120),
    (TOKENS, 5120, 1024),
    (4096, 2048, 4096),
    (4096, 4096, 2048),
)
_NUM_KERNELS = 20
_NAME_LENGTH = 60


@dataclass(frozen=True)
class AttentionShape:
    """Causal attention of one layer; ``value_dim`` is less than ``dim`` in latent attention, which counts as it is."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    dim: int
    value_dim: int = 128

    @property
    def forward_flops(self) -> float:
        """Two products of ``seq`` x ``seq``, of which causal attention needs half."""
        return self.batch * self.heads * self.seq**2 * (self.dim + self.value_dim)

    @property
    def backward_flops(self) -> float:
        """Five products: the scores again, and the gradients of scores, queries, keys and values."""
        return self.batch * self.heads * self.seq**2 * (3 * self.dim + 2 * self.value_dim)

    def __str__(self) -> str:
        return f"{self.batch},{self.heads},{self.kv_heads},{self.seq},{self.dim}"


ATTENTIONS = (
    AttentionShape(1, 32, 8, 8192, 128),
    AttentionShape(2, 40, 8, 4096, 128),
    AttentionShape(1, 32, 4, 4096, 128),
    AttentionShape(1, 16, 16, 4096, 192),
)


@dataclass(frozen=True)
class StepJob:
    """One training step to measure. ``policy`` None: torch.compile alone."""

    model: str
    layers: int
    how: str
    mode: str
    policy: str | Mapping[str, Any] | None


STEPS: dict[str, StepJob] = {
    "llama-compile": StepJob("builtin:llama3-8b", 4, "torch.compile alone", "inductor", None),
    "llama-auto": StepJob("builtin:llama3-8b", 4, "inductor, default auto", "inductor", AUTO),
    "llama-sac": StepJob("builtin:llama3-8b", 4, "graph, sac-default", "graph", "sac-default"),
    "dsv3-auto": StepJob("builtin:dsv3-16b", 3, "inductor, default auto", "inductor", AUTO),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", action="append", choices=(RATES, *STEPS), help="measure this one again")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process, to stdout
    arguments = parser.parse_args()
    if arguments.here:
        (name,) = arguments.only
        print(json.dumps(measure_rates() if name == RATES else measure_step(STEPS[name])))
        return
    before = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for name in arguments.only or (RATES, *STEPS):
        before = merge(before, name, in_own_process(name, arguments.output))
        arguments.output.write_text(json.dumps(before, indent=1) + "\n")
        print(name, "measured", flush=True)


def in_own_process(name: str, output: Path) -> dict[str, Any]:
    """Run this script for one measurement; raises CalledProcessError where it fails."""
    command = [sys.executable, __file__, str(output), "--only", name, "--here"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def merge(before: Mapping[str, Any], name: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Put one measurement into the result file's place for it; steps keep the order of the table."""
    result = {
        "what": "Rates of one H200 from which the shipped profile h200-pcie5 is calibrated, and the training steps "
        "that they are calibrated on; the rates and each step ran in a process of their own",
        "command": "python docs/evidence/calibration_h200.py docs/evidence/calibration-h200.json",
        **{key: before[key] for key in ("environment", "matmul", "attention") if key in before},
        **{key: before[key] for key in ("hbm_gbps_of_eager_copies",) if key in before},
        "steps": list(before.get("steps", ())),
    }
    if name == RATES:
        steps = result.pop("steps")
        return {**result, **measured, "steps": steps}
    order = [(job.model, job.how) for job in STEPS.values()]
    others = [
        row for row in result["steps"] if (row["model"], row["how"]) != (STEPS[name].model, STEPS[name].how)
    ]
    result["steps"] = sorted(
        [*others, dict(measured)], key=lambda row: order.index((row["model"], row["how"]))
    )
    return result


def measure_rates() -> dict[str, Any]:
    """Measure products, attention and copies, each alone."""
    return {
        "environment": environment(),
        "matmul": [row for shape in MATMULS for row in matmul_rows(*shape)],
        "attention": [attention_row(shape) for shape in ATTENTIONS],
        "hbm_gbps_of_eager_copies": copy_rates(),
    }


def matmul_rows(m: int, k: int, n: int) -> list[dict[str, Any]]:
    """Measure one product, and the same with its second operand transposed (``t``), as a weight is."""
    left = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    transposed = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    rows = []
    for suffix, operand in (("", right), ("t", transposed)):
        ms = duration_ms(partial(torch.mm, left, operand), 10)
        rows.append(
            {"shape": f"{m}x{k}x{n}{suffix}", "ms": round(ms, 4), "tflops": tflops(2 * m * k * n, ms)}
        )
    return rows


def attention_row(shape: AttentionShape) -> dict[str, Any]:
    """Measure forward and backward of one attention, and name the kernel that torch chose."""

    def leaf(heads: int, dim: int) -> torch.Tensor:
        size = (shape.batch, heads, shape.seq, dim)
        return torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    inputs = (
        leaf(shape.heads, shape.dim),
        leaf(shape.kv_heads, shape.dim),
        leaf(shape.kv_heads, shape.value_dim),
    )

    def attend() -> torch.Tensor:
        grouped = shape.heads != shape.kv_heads
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=grouped)

    forward_ms = duration_ms(attend, 10)
    output = attend()
    gradient = torch.randn_like(output)
    backward_ms = duration_ms(lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True), 10)
    return {
        "batch_heads_kvheads_seq_dim": str(shape),
        "forward_ms": round(forward_ms, 4),
        "forward_tflops": tflops(shape.forward_flops, forward_ms),
        "backward_ms": round(backward_ms, 4),
        "backward_tflops": tflops(shape.backward_flops, backward_ms),
        "kernel": type(output.grad_fn).__name__,
    }


def copy_rates() -> dict[str, int]:
    """Measure device memory by eager copies, in GB/s read and written."""
    large = torch.randn(TOKENS, 4 * 4096, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(large)
    small = torch.randn(TOKENS, 4096, device="cuda", dtype=torch.bfloat16)
    return {
        "copy": gbps(2 * large.nbytes, duration_ms(lambda: target.copy_(large))),
        "add": gbps(3 * large.nbytes, duration_ms(lambda: torch.add(large, large, out=target))),
        "copy64MiB": gbps(2 * small.nbytes, duration_ms(small.clone)),
    }


def measure_step(job: StepJob) -> dict[str, Any]:
    """Measure warm steps of one model, its peak, and the kernels of a profiled step."""
    under_test = resolve_model(job.model, layers=job.layers, device="cuda", dtype="bfloat16")
    model, batch = under_test.module, under_test.make_batch(0)
    side = compile_side(model, job.policy, argparse.Namespace(mode=job.mode, set=[]))
    for _ in range(4):
        step(model, side, batch)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step_ms = duration_ms(lambda: step(model, side, batch), 5)
    peak_bytes, allocated_bytes = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        step(model, side, batch)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # torch does not list it as exported
    kernels = [(e.name, e.time_range.elapsed_us()) for e in profiled.events() if e.device_type == cuda]
    return {
        "model": job.model,
        "layers": job.layers,
        "how": job.how,
        "step_ms": round(step_ms, 2),
        "peak_bytes": peak_bytes,
        "allocated_after_bytes": allocated_bytes,
        "parameter_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "kernels": longest_kernels(kernels),
    }


def longest_kernels(kernels: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """Add up kernels of one name, given with their microseconds; return those that take the most time, first."""
    found: dict[str, list[float]] = {}
    for name, duration_us in kernels:
        found.setdefault(name[:_NAME_LENGTH], []).append(duration_us)
    ordered = sorted(found.items(), key=lambda entry: -sum(entry[1]))[:_NUM_KERNELS]
    return [{"name": name, "count": len(each), "ms": round(sum(each) / 1000, 3)} for name, each in ordered]


def duration_ms(action: Callable[[], object], num_times: int = 20) -> float:
    """Return the mean time of one call on the device, after three calls that do not count."""
    for _ in range(3):
        action()
    torch.cuda.synchronize()
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    for _ in range(num_times):
        action()
    after.record()
    torch.cuda.synchronize()
    elapsed_ms: float = before.elapsed_time(after)
    return elapsed_ms / num_times


def tflops(num_flops: float, duration: float) -> float:
    """Return TFLOP/s of so many operations in ``duration`` milliseconds."""
    return round(num_flops / duration / 1e9, 1)


def gbps(num_bytes: int, duration: float) -> int:
    """Return GB/s of so many bytes in ``duration`` milliseconds."""
    return round(num_bytes / duration / 1e6)


if __name__ == "__main__":
    main()
