"""The result files of docs/evidence as tables: what was measured, on what, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from offload_runtime.docgen.markdown import table
from offload_runtime.models.bench_file import result_from_data
from offload_runtime.models.bench_result import BenchResult, Side
from offload_runtime.models.bench_statistics import SideSummary, noise, summarise
from offload_runtime.reporting.bench import format_ratio, frontier_line, noise_line
from offload_runtime.units import format_size_short

__all__ = ["EvidenceReference", "read_evidence"]

Data = Mapping[str, Any]
DEEPEST = 3  # levels of a file without a table of its own that are shown


@dataclass(frozen=True)
class EvidenceReference:
    """One result file: its name, what it is, how it was made and on what, and its figures as a table."""

    file: str
    what: str
    command: str
    environment: str
    figures: str


def read_evidence(file: str, data: Data) -> EvidenceReference:
    """Lay out one result file; one without a form that is known here gets a table of its numbers."""
    what = str(data.get("what", "")).split("\n\n")[0].split("\n")[0]
    if data.get("kind") == "BenchResult":
        model = data["model"]
        what = (
            f"{model['spec']}: {model['description']}; mode {data['mode']}, optimizer {model['optimizer']}, "
        )
        what += f"{data['num_rounds']} rounds of {data['steps']} steps"
    write = next((writer for fits, writer in _WRITERS if fits(data)), _numbers)
    return EvidenceReference(
        file=file,
        what=what.rstrip("."),
        command=str(data.get("command", "")),
        environment=", ".join(_environment(_measured_on(data))),
        figures=write(data),
    )


def _measured_on(data: Data) -> Data:
    """Return the environment of a file, or of the document that it holds as a command printed it."""
    own: Data = data.get("environment", {})
    return data["printed"]["data"]["environment"] if _is_apply(data) else own


def _environment(environment: Data) -> Iterator[str]:
    words = {"gpu": "", "driver": "driver ", "torch": "torch ", "python": "Python ", "package": "package "}
    for key, word in words.items():
        if environment.get(key):
            yield f"{word}{environment[key]}"
    if environment.get("host_cores"):
        yield f"{environment['host_cores']} host cores"
    if environment.get("device_memory_bytes"):
        yield f"kept to {format_size_short(environment['device_memory_bytes'])} of device memory"


def _is_bench(data: Data) -> bool:
    return data.get("kind") == "BenchResult"


def _bench(data: Data) -> str:
    result = result_from_data(data)
    summaries = [summarise(result, side.name) for side in result.sides]
    rows = []
    for side, summary in zip(result.sides, summaries, strict=True):
        is_baseline = side.name == result.baseline
        ratios = [ratio for ratio in summary.ratio_by_round if ratio is not None]
        rows.append(
            [
                f"`{side.name}`" + (" (baseline)" if is_baseline else ""),
                _ms(summary.median_ms),
                "" if is_baseline else format_ratio(summary.ratio),
                "" if is_baseline or not ratios else f"{min(ratios):.4f} to {max(ratios):.4f}",
                _size(summary.peak_device_bytes) if side.fits else "out of memory",
                _size(side.moved_bytes),
                *_foretold(side, summary),
                *([side.refused or ""] if _refuses(result) else []),
            ]
        )
    head = ["side", "ms a step", "× baseline", "rounds", "peak", "moved", "of the window"]
    head += ["predicted peak", "predicted ms", *(["why not"] if _refuses(result) else [])]
    said = [noise_line(result, noise(result)), frontier_line(result, summaries)]
    return "\n\n".join(
        [table(head, rows, numbers_from=1), *(f"{line[:1].upper()}{line[1:]}." for line in said if line)]
    )


def _refuses(result: BenchResult) -> bool:
    return any(side.refused for side in result.sides)


def _foretold(side: Side, summary: SideSummary) -> list[str]:
    """Return the share of the link's window that was moved, and the predictions with their errors in percent."""
    predicted = side.predicted
    if predicted is None:
        return ["", "", ""]
    moved = side.moved_bytes
    return [
        f"{100 * moved / predicted.window_bytes:.1f} %" if moved and predicted.window_bytes else "",
        _size(predicted.peak_device_bytes)
        + _error(predicted.peak_device_bytes, summary.peak_device_bytes, 2),
        _ms(predicted.step_ms) + _error(predicted.step_ms, summary.median_ms, 1),
    ]


def _error(predicted: float, measured: float | None, digits: int) -> str:
    return f" ({100 * (predicted / measured - 1):+.{digits}f} %)" if measured else ""


def _is_pair(data: Data) -> bool:
    return {"step_ms", "peak_gib", "ratio", "baseline_is"} <= set(data)


def _pair(data: Data) -> str:
    rows = [
        ["ms a step, median", _ms(data["step_ms"]["baseline"]), _ms(data["step_ms"]["policy"])],
        ["fastest step, ms", _ms(data["step_ms_min"]["baseline"]), _ms(data["step_ms_min"]["policy"])],
        ["peak GiB", f"{data['peak_gib']['baseline']:.1f}", f"{data['peak_gib']['policy']:.1f}"],
        ["× baseline", f"{data['ratio_of_baseline_to_itself']:.3f}", f"{data['ratio']:.3f}"],
        ["moved", "", _size(data["moved_bytes"])],
        ["of the copy time hidden", "", f"{100 * data['hidden_fraction']:.1f} %"],
        ["stalled, ms", "", f"{data['stall_ms']:.2f}"],
    ]
    return table(["", data["baseline_is"], data["policy"]["name"]], rows, numbers_from=1)


def _is_apply(data: Data) -> bool:
    return bool(data.get("printed", {}).get("command") == "apply")


def _apply(data: Data) -> str:
    result = data["printed"]["data"]
    runs = [result["baseline"], result["policy"]]
    foretold = [result["predicted"]["baseline"], result["predicted"]["policy"]]
    rows = [
        ["peak", *(_size(run["peak_device_bytes"]) for run in runs)],
        ["predicted peak", *(_foretold_peak(*pair) for pair in zip(foretold, runs, strict=True))],
        ["ms a step", *(_ms(run["step_ms"]) for run in runs)],
        ["predicted ms", *(_foretold_ms(*pair) for pair in zip(foretold, runs, strict=True))],
        ["× baseline", "", format_ratio(runs[1]["step_ms"] / runs[0]["step_ms"])],
        ["moved a step", "", _size(result["moved_bytes"])],
        ["stalled, ms", "", f"{result['stall_ms']:.2f}"],
    ]
    lines = table(["", "`torch.compile` alone", f"`{result['policy_name']}`"], rows, numbers_from=1)
    return f"{lines}\n\n{result['verdict']}"


def _foretold_peak(predicted: Data, run: Data) -> str:
    peak = predicted["peak_device_bytes"]
    return _size(peak) + _error(peak, run["peak_device_bytes"], 2)


def _foretold_ms(predicted: Data, run: Data) -> str:
    return _ms(predicted["step_ms"]) + _error(predicted["step_ms"], run["step_ms"], 1)


def _is_prediction(data: Data) -> bool:
    return bool(data.get("models")) and all({"measured", "predicted"} <= set(m) for m in data["models"])


def _prediction(data: Data) -> str:
    rows = []
    for model in data["models"]:
        measured, predicted, error = model["measured"], model["predicted"], model["error"]
        rows.append(
            [
                f"`{model['model']}`, {model['layers']} layers",
                _ms(measured["step_ms"]),
                _ms(predicted["step_ms"]),
                f"{100 * error['step']:+.1f} %",
                _size(measured["peak_bytes"]),
                _size(predicted["peak_bytes"]),
                f"{100 * error['peak']:+.2f} %",
            ]
        )
    head = ["model", "measured ms", "predicted ms", "error", "measured peak", "predicted peak", "error"]
    return table(head, rows, numbers_from=1)


def _is_bitwise(data: Data) -> bool:
    return all("bitwise_identical" in data.get(mode, {}) for mode in ("graph", "inductor"))


def _bitwise(data: Data) -> str:
    rows = [
        [
            f"`{mode}`",
            "yes" if data[mode]["bitwise_identical"] else "no",
            str(data[mode]["num_tensors_compared"]),
            str(data[mode]["num_offloaded"]),
            _size(data[mode]["moved_bytes"]),
        ]
        for mode in ("graph", "inductor")
    ]
    head = ["mode", "bitwise identical", "tensors compared", "offloaded", "moved a step"]
    return table(head, rows, numbers_from=1)


def _is_effects(data: Data) -> bool:
    return "policy_hash" in next(iter(data.get("policies", {}).values()), ())


def _effects(data: Data) -> str:
    rows = []
    for name, effect in data["policies"].items():
        base, policy = effect["baseline"], effect["policy"]
        rows.append(
            [
                f"`{name}`" + "".join(f", `{override}`" for override in effect["overrides"]),
                f"`{effect['model']}`",
                f"{_size(base['peak_device_bytes'])} → {_size(policy['peak_device_bytes'])}",
                _ratio(policy["step_ms"] / base["step_ms"]),
                _size(effect["offloaded_bytes"]),
            ]
        )
    return table(["policy", "model", "peak", "× baseline's time", "offloaded"], rows, numbers_from=2)


def _is_plans(data: Data) -> bool:
    return "plans" in data and "hardware_hashes" in data


def _plans(data: Data) -> str:
    rows = []
    for name, plan in data["plans"].items():
        if plan["refused"] is not None:
            figures = ["", "", "", f"{plan['refused']['code']} {plan['refused']['message']}"]
        else:
            base, policy = plan["baseline"]["peak_device_bytes"], plan["policy"]["peak_device_bytes"]
            peak = _size(base) if base == policy else f"{_size(base)} → {_size(policy)}"
            figures = [peak, format_ratio(plan["ratio"]), _size(plan["window_bytes"]), plan["verdict"]]
        rows.append([f"`{name}`", f"`{plan['command']}`", *figures])
    head = ["plan", "command", "peak", "× baseline's time", "leaves for free", "says"]
    return table(head, rows)


def _numbers(data: Data) -> str:
    """Show the numbers of any file, those nested deeply left to the file itself."""
    rows = [[f"`{path}`", value] for path, value in _scalars(data, "", 0)]
    return table(["figure", "value"], rows, numbers_from=1) if rows else ""


def _scalars(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < DEEPEST:
        for key, member in value.items():
            if key not in ("environment", "what", "command", "first_seed"):
                yield from _scalars(member, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, bool):
        yield path, "yes" if value else "no"
    elif isinstance(value, int | float):
        yield path, f"{value:,}"


_WRITERS: tuple[tuple[Callable[[Data], bool], Callable[[Data], str]], ...] = (
    (_is_bench, _bench),
    (_is_pair, _pair),
    (_is_apply, _apply),
    (_is_prediction, _prediction),
    (_is_bitwise, _bitwise),
    (_is_effects, _effects),
    (_is_plans, _plans),
)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _size(value: float | None) -> str:
    return "" if value is None else format_size_short(round(value))
