"""Count and predict on a machine without a GPU what the published article measured on eight of them.

    python docs/evidence/published_table.py docs/evidence/published-table.json --page docs/published-results.md

Three models are traced with fake tensors at the published shapes and planned under the shipped policies ``sac-default``
(nothing leaves) and ``max-savings`` (everything that the policy lets leave does), with and without view replay. Beside
them stands the published rule (``published_rule.py``) on the same graphs, and the way from our selection to its own,
filter by filter. ``--layers 2 --model llama3-8b`` makes a small run; ``--render`` writes the page from the file alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from published_page import write_page
from published_peaks import Shards, forecast_with
from published_rule import PublishedRule, attention_as_published, topk_as_published
from published_steps import by_place, chosen_by, moved_bytes, steps_to_published

import offload_runtime as off
from offload_runtime.graph.operators import operator_of
from offload_runtime.hardware import HardwareProfile, load_hardware
from offload_runtime.models.catalog import BUILTINS
from offload_runtime.models.configs import LatentAttention
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.traced_model import TracedModel, trace_request
from offload_runtime.passes.pipeline import PlannedPair, plan_joint
from offload_runtime.passes.selection import Selected, Setting

BASE, POLICY = "sac-default", "max-savings"
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "llama3-8b": {"num_moved": 155, "saving_percent": 33, "saving_percent_without_view_replay": 4},
    "qwen3-14b": {"num_marked": 351, "num_moved": 273, "moved_gb": 28.8, "saving_percent": 38},
    "dsv3-16b": {"num_marked": 335, "num_moved": 129, "moved_gb": 6.8},
}


@dataclass(frozen=True)
class Run:
    """One model at one shape. ``layers`` None: all of them."""

    model: str
    batch: int
    seq: int
    layers: int | None = None


RUNS = (
    Run("llama3-8b", 1, 8192),
    Run("qwen3-14b", 2, 4096),
    Run("qwen3-14b", 4, 4096),
    Run("dsv3-16b", 1, 4096),
    Run("dsv3-16b", 4, 4096),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path, help="the JSON file")
    parser.add_argument("--page", type=Path, help="page whose generated part is written from the result")
    parser.add_argument(
        "--model", action="append", choices=sorted(PUBLISHED), help="only this one; may be repeated"
    )
    parser.add_argument("--layers", type=int, help="layers instead of the model's own, for a quick run")
    parser.add_argument("--hardware", default="h100-sxm", help="profile to predict for (default: h100-sxm)")
    parser.add_argument("--render", action="store_true", help="measure nothing; only write the page")
    arguments = parser.parse_args()
    if not arguments.render:
        runs = [
            Run(run.model, run.batch, run.seq, arguments.layers)
            for run in RUNS
            if arguments.model is None or run.model in arguments.model
        ]
        result = measure_all(runs, load_hardware(arguments.hardware))
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.page is not None:
        write_page(arguments.page, json.loads(arguments.output.read_text()))


def measure_all(runs: Sequence[Run], hardware: HardwareProfile) -> dict[str, Any]:
    """Measure each run in turn."""
    measured = []
    for run in runs:
        measured.append(measure(run, hardware))
        gc.collect()
        print(summary(measured[-1]), file=sys.stderr, flush=True)
    return {
        "what": "The published table, counted and predicted with fake tensors; no GPU took part",
        "command": " ".join(
            ["python", *(Path(word).name if word.startswith("/") else word for word in sys.argv)]
        ),
        "environment": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "package": off.__version__,
        },
        "hardware": hardware.name,
        "policies": {"base": BASE, "policy": POLICY},
        "published": {name: dict(figures) for name, figures in PUBLISHED.items()},
        "runs": measured,
    }


def measure(run: Run, hardware: HardwareProfile) -> dict[str, Any]:
    """Trace one model and plan it three times; count and predict what the policies and the published rule do."""
    request = ModelRequest(f"builtin:{run.model}", run.batch, run.seq, run.layers)
    traced = trace_request(request, mode="graph")
    base = plan(traced, BASE, hardware)
    full = plan(traced, POLICY, hardware)
    plain = plan(traced, POLICY, hardware, view_replay=False)
    rule = PublishedRule.of(full.joint)
    base_peak = peak_of(base)
    return {
        "model": run.model,
        "num_layers": full.joint.layers.num_layers,
        "batch": run.batch,
        "seq": run.seq,
        "num_tokens": run.batch * run.seq,
        "parameter_bytes": traced.state.parameters,
        "base_peak_bytes": base_peak,
        "base_peak_at": peak_place(base),
        "with_view_replay": selection(full, base_peak),
        "without_view_replay": selection(plain, base_peak),
        "published_rule": published(full, rule, hardware, base_peak),
        "published_model": published_model(run, full, rule),
        "on_eight_gpus": on_eight_gpus(full, rule, Shards.of(traced), hardware)
        if "saving_percent" in PUBLISHED[run.model]
        else None,
    }


def plan(
    traced: TracedModel, policy: str, hardware: HardwareProfile, *, view_replay: bool = True
) -> PlannedPair:
    """Plan the one graph of a model as a run with a stateless optimizer would."""
    compiled, state = off.load_policy(policy), traced.state
    (graph,) = traced.graphs
    setting = Setting(
        compiled.policy.limits,
        hardware,
        resident_bytes=hardware.workspace_bytes,
        allocated_bytes=state.parameters + state.buffers + state.batch,
        view_replay=view_replay,
    )
    return plan_joint(
        graph.copy(), graph.inputs, policy=compiled, mode="graph", variant="policy", setting=setting
    )


def peak_of(planned: PlannedPair) -> int:
    """Return the predicted peak in bytes."""
    assert planned.selected.simulation is not None
    return planned.selected.simulation.peak_bytes


def peak_place(planned: PlannedPair) -> str:
    """Say where the predicted peak is."""
    assert planned.forecast is not None
    return str(planned.forecast.peak_at)


def selection(planned: PlannedPair, base_peak: int) -> dict[str, Any]:
    """Count what a policy did with the forward storages of a graph."""
    selected = planned.selected
    own = [index for index, item in enumerate(selected.stored) if item.judged.decision is not None]
    candidates = [selected.candidates[index] for index in own]
    obstacles = Counter(item.obstacle for item in candidates if item.obstacle is not None)
    kept = Counter(why_kept(selected, index) for index in own if selected.fates[index] != "offload")
    moved = [selected.candidates[i].moved_bytes for i in own if selected.fates[i] == "offload"]
    return {
        "num_activations": len(planned.judged_activations),
        "num_candidates": len(candidates),
        "num_eligible": sum(item.obstacle is None for item in candidates),
        "obstacles": dict(sorted(obstacles.items())),
        "num_offloaded": len(moved),
        "kept": dict(sorted(kept.items())),
        **amounts(sum(moved)),
        "peak_bytes": peak_of(planned),
        "peak_at": peak_place(planned),
        "saving_percent": percent(peak_of(planned), base_peak),
    }


def why_kept(selected: Selected, index: int) -> str:
    """Say in a few words why a saved storage stays on the device."""
    decision, reason = selected.stored[index].judged.decision, selected.reasons[index]
    assert decision is not None
    if decision.action != "offload":
        return f"rule {decision.decided_by}: {decision.action}"
    return (
        "the last layer, and what follows it"
        if (reason or "").startswith("schedule.keep_last")
        else str(reason)
    )


def amounts(num_bytes: int) -> dict[str, float]:
    """Give one number of bytes in the three units that figures of this kind are quoted in."""
    return {
        "bytes": num_bytes,
        "gb": round(num_bytes / 1e9, 2),
        "gib": round(num_bytes / 2**30, 2),
        "mib_over_1000": round(num_bytes / 2**20 / 1000, 2),
    }


def percent(peak_bytes: int, base_bytes: int) -> float:
    """Return by how much a peak is lower, in percent."""
    return round(100 * (1 - peak_bytes / base_bytes), 1)


def published(
    planned: PlannedPair, rule: PublishedRule, hardware: HardwareProfile, base_peak: int
) -> dict[str, Any]:
    """Count the published selection, predict its peak, and go from our selection to it."""
    selected = planned.selected
    moved = chosen_by(selected, rule.moved)
    forecast = forecast_with(planned, moved, hardware)
    plain = forecast_with(planned, chosen_by(selected, rule.moved_without_views), hardware)
    return {
        "num_marked": len(rule.marked),
        "num_moved": len(rule.moved),
        "num_moved_without_view_replay": len(rule.moved_without_views),
        **amounts(moved_bytes(selected, moved)),
        "peak_bytes": forecast.peak_bytes,
        "peak_at": str(forecast.peak_at),
        "saving_percent": percent(forecast.peak_bytes, base_peak),
        "peak_bytes_without_view_replay": plain.peak_bytes,
        "saving_percent_without_view_replay": percent(plain.peak_bytes, base_peak),
        "marked_and_moved": by_place(planned, rule.marked & rule.moved),
        "marked_and_not_moved": by_place(planned, rule.marked - rule.moved),
        "from_ours": steps_to_published(planned, rule),
    }


def on_eight_gpus(
    planned: PlannedPair, rule: PublishedRule, shards: Shards, hardware: HardwareProfile
) -> dict[str, Any]:
    """Predict the peak of one of eight GPUs that hold the model and its state between them."""
    selected = planned.selected
    chosen: dict[str, list[int]] = {
        "base": [],
        "published_rule": chosen_by(selected, rule.moved),
        "published_rule_without_view_replay": chosen_by(selected, rule.moved_without_views),
        "ours": [index for index, fate in enumerate(selected.fates) if fate == "offload"],
    }
    peaks = {
        name: forecast_with(planned, indices, hardware, shards).peak_bytes for name, indices in chosen.items()
    }
    savings = {name: percent(peak, peaks["base"]) for name, peak in peaks.items() if name != "base"}
    return {"peak_bytes": peaks, "saving_percent": savings}


def published_model(run: Run, planned: PlannedPair, rule: PublishedRule) -> dict[str, Any] | None:
    """Count what the published rule sees where the published code writes the model otherwise; None where it does not.

    Its DeepSeek-V3 computes attention token by token with flex attention, and its trace keeps both results of top-k.
    """
    config = getattr(BUILTINS[run.model].config, "attention", None)
    if not isinstance(config, LatentAttention):
        return None
    here = [node for node in planned.joint.forward_nodes() if node.name in rule.marked]
    attention = [node for node in here if "attention" in str(operator_of(node))]
    outputs = {node.name for node in attention if node.meta["val"].dtype == torch.bfloat16}
    topk = [node for node in here if "topk" in str(operator_of(node))]
    num_layers = len({planned.joint.layer_of(node) for node in attention})
    flex = attention_as_published(config.num_heads, config.nope_dim + config.rotary_dim, config.value_dim)
    num_topk_marked = topk_as_published()
    moved = chosen_by(planned.selected, rule.moved - outputs)
    return {
        "attention_marked": {"here": len(attention), "published": num_layers * flex.num_marked},
        "attention_moved": {
            "here": len({node.name for node in attention} & rule.moved),
            "published": num_layers * flex.num_moved,
        },
        "topk_marked": {"here": len(topk), "published": len(topk) * num_topk_marked},
        "num_marked": len(rule.marked)
        - len(attention)
        + num_layers * flex.num_marked
        + len(topk) * (num_topk_marked - 1),
        "num_moved": len(rule.moved - {node.name for node in attention}) + num_layers * flex.num_moved,
        **amounts(moved_bytes(planned.selected, moved)),
    }


def summary(measured: Mapping[str, Any]) -> str:
    """Return one line for the terminal."""
    ours, theirs = measured["with_view_replay"], measured["published_rule"]
    return (
        f"{measured['model']} {measured['batch']} x {measured['seq']}: {ours['num_offloaded']} of "
        f"{ours['num_candidates']} offloaded, {ours['gb']} GB, {ours['saving_percent']} %; published rule "
        f"{theirs['num_moved']} of {theirs['num_marked']}, {theirs['gb']} GB, {theirs['saving_percent']} %"
    )


if __name__ == "__main__":
    main()
