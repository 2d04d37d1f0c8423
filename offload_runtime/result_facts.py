"""Facts out of what `offload bench` and `offload apply` measured, and out of the reports of a run of one's own.

A result holds the slowdown and what else was measured; a report (`OFFLOAD_REPORT`) has nothing to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from offload_runtime.predicates import Scalar

__all__ = [
    "BENCH_FIRST",
    "WARM_STEPS",
    "facts_of_reports",
    "facts_of_result",
    "is_bench",
    "is_report",
    "is_result",
    "subject_of_result",
]

BENCH_FIRST = ("slowdown", "paired_baseline", "warm_steps_only", "offload_step_ms")
"""Facts of which bench has better values than apply: measured in turns, after more steps of warm-up."""

WARM_STEPS = 10
"""Steps that are left out, at least, before those that count as warm."""

_OFFLOADING_PEERS = {
    "save-on-cpu": "activation_hooks",
    "torch-offload": "unknown",
    "largest-first": "offload_runtime",
    "planned": "offload_runtime",
}
# What a `NumaBinding` writes where it is certain: all threads bound, or none of the node's CPUs allowed. A failure that
# is named, a node whose CPUs nobody knows and "not bound" (off, no GPU) leave open where the process ran.
_BOUND = re.compile(r"node [0-9]+: [1-9][0-9]* threads on [1-9][0-9]* CPUs, [^()]*")
_ELSEWHERE = re.compile(
    r"node ([0-9]+): threads not bound, [^()]* \(none of the CPUs of node \1 is allowed to this process\)"
)
_GIVE = (
    "leave --from out and give --fact slowdown=WITH/WITHOUT --fact paired_baseline=true|false "
    "--fact warm_steps_only=true|false"
)


def is_result(data: object) -> bool:
    """Tell whether ``data`` is what bench or apply writes as a result."""
    return isinstance(data, Mapping) and (
        is_bench(data) or {"policy_hash", "stall_ms", "baseline"} <= data.keys()
    )


def is_report(data: object) -> bool:
    """Tell whether ``data`` is one report of a run, as a file that ``OFFLOAD_REPORT`` names holds them."""
    return isinstance(data, Mapping) and {"graphs", "diagnostics"} <= data.keys() and not is_result(data)


def is_bench(data: Mapping[str, Any]) -> bool:
    """Tell whether a result is one of bench; else it is one of apply."""
    return data.get("kind") == "BenchResult"


def subject_of_result(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was measured and where, as far as the result says it: equal in results that belong together."""
    model = data.get("model")
    about = model if isinstance(model, Mapping) else {**data, "spec": model}
    machine = data.get("environment") or {}
    found = {
        "model": about.get("spec"),
        "inputs": about.get("inputs"),
        "num_parameters": about.get("num_parameters"),
        "dtype": about.get("dtype"),
        "optimizer": about.get("optimizer"),
        "mode": data.get("mode"),
        "device": data["device"].partition(":")[0] if isinstance(data.get("device"), str) else None,
        "gpu": machine.get("gpu"),
        "gpu_bytes": machine.get("gpu_bytes"),
        "device_memory_bytes": machine.get("device_memory_bytes"),
    }
    return {name: value for name, value in found.items() if value is not None}


def facts_of_result(data: Mapping[str, Any], side: str | None = None) -> dict[str, Scalar]:
    """Return the facts that a result holds; of several sides of a bench that offload, those of the one named ``side``.

    Raises ValueError, with the facts to give by hand in its message, where it holds no slowdown: nothing was timed, or
    not one side against one without offloading. Raises it, too, for a result of another shape.
    """
    try:
        found = _of_bench(data, side) if is_bench(data) else _of_apply(data)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is a result of another version; {_GIVE}") from error
    return {name: value for name, value in found.items() if value is not None}


def facts_of_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Scalar]:
    """Return what reports say of a run, which is how it is compiled and what of the copies is hidden.

    Of several models in one process only what is the same for all is a fact. Raises ValueError for reports of nothing.
    """
    reports = [report for report in reports if report["graphs"]]
    if not reports:
        raise ValueError(
            "it is a report in which nothing was captured, so that nothing was offloaded; its diagnostics say why, and "
            "results of `offload bench` and `offload apply` hold more"
        )
    each = [_of_report(report) for report in reports]
    return {
        name: value
        for name, value in each[0].items()
        if value is not None and all(other[name] == value for other in each)
    }


def _of_report(report: Mapping[str, Any]) -> dict[str, Scalar | None]:
    return {
        "offload_mechanism": "offload_runtime",
        "compiled": True,
        "mode": report.get("mode"),
        "num_graphs": len(report["graphs"]),
        "stall_ms": report.get("stall_ms"),
        "hidden_fraction": report.get("hidden_fraction"),
        "moved_bytes": report.get("moved_bytes"),
        "planned_bytes": report.get("planned_bytes"),
        "numa_local": _is_local(report.get("numa", "")),
    }


def _of_apply(data: Mapping[str, Any]) -> dict[str, Scalar | None]:
    step_ms, without_ms = data["policy"]["step_ms"], data["baseline"]["step_ms"]
    if step_ms is None:
        raise ValueError(f"it has no times, as nothing is timed without an accelerator; {_GIVE}")
    if not data["moved_bytes"]:
        raise ValueError("nothing was offloaded in this result, so that offloading slowed nothing")
    return {
        "offload_enabled": True,
        "offload_mechanism": "offload_runtime",
        "slowdown": step_ms / without_ms if without_ms else None,
        "paired_baseline": True if without_ms else None,
        # apply leaves out three steps at most.
        "warm_steps_only": False,
        "offload_step_ms": step_ms,
        "stall_ms": data["stall_ms"],
        "hidden_fraction": data["hidden_fraction"],
        "moved_bytes": data["moved_bytes"],
        "planned_bytes": data["planned_bytes"],
        "mode": data.get("mode"),
        "num_graphs": data.get("num_graphs"),
        "numa_local": _is_local(data.get("numa", "")),
        **_of_machine(data.get("environment") or {}),
    }


def _of_machine(environment: Mapping[str, Any]) -> dict[str, Scalar | None]:
    """Return what a result says of the device that it was measured on; nothing where there was none."""
    gpu = environment.get("gpu")
    return {
        "accelerator": None if gpu is None else "cuda",
        "gpu_name": gpu,
        "pcie_generation": environment.get("link_gen"),
        "pcie_link_width": environment.get("link_width"),
    }


def _is_local(numa: str) -> bool | None:
    """Return whether the run was bound to the node of each GPU, by what its host arenas said; None: not certain."""
    bindings = numa.split("; ")
    if all(_BOUND.fullmatch(binding) for binding in bindings):
        return True
    return False if any(_ELSEWHERE.fullmatch(binding) for binding in bindings) else None


def _of_bench(data: Mapping[str, Any], named: str | None) -> dict[str, Scalar | None]:
    sides: Sequence[Mapping[str, Any]] = data["sides"]
    offloading = [side for side in sides if _mechanism(side) is not None and side["name"] != data["control"]]
    timed = [side for side in offloading if side["summary"]["ratio"] is not None]
    if any(side["name"] == data["baseline"] for side in offloading):
        raise ValueError(f"its baseline {data['baseline']} offloads, too; {_GIVE}")
    if not timed:
        raise ValueError(f"no side that offloads was timed, and the facts are of one; {_GIVE}")
    names = ", ".join(str(side["name"]) for side in timed)
    if named is not None:
        timed = [side for side in timed if side["name"] == named]
    if not timed:
        raise ValueError(f"it has no side {named} that offloads and was timed; name one with --side: {names}")
    if len(timed) > 1:
        which = f"{len(timed)} sides offload and were timed, and the facts are of one"
        raise ValueError(f"{which}; name it with --side: {names}")
    (side,) = timed
    return {
        "offload_enabled": True,
        "offload_mechanism": _mechanism(side),
        "mode": data.get("mode") if _mechanism(side) == "offload_runtime" else None,
        "slowdown": side["summary"]["ratio"],
        "paired_baseline": True,
        "warm_steps_only": data["warmup"] >= WARM_STEPS,
        "offload_step_ms": side["summary"]["median_ms"],
        "moved_bytes": side["moved_bytes"],
        "planned_bytes": side["planned_bytes"],
        **_of_machine(data["environment"]),
    }


def _mechanism(side: Mapping[str, Any]) -> str | None:
    """Return what offloads on a side of a bench; None where nothing does."""
    if side["moved_bytes"]:
        return "offload_runtime"
    return _OFFLOADING_PEERS.get(side["name"].partition(":")[0]) if side["kind"] == "peer" else None
