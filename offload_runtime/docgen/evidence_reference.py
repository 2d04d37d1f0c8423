"""The result files of docs/evidence as tables: what was measured, on what, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from offload_runtime.docgen.markdown import table
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
        what = f"{data['model']['spec']}, mode {data['mode']}, {data['num_rounds']} rounds of {data['steps']} steps"
    write = next((writer for fits, writer in _WRITERS if fits(data)), _numbers)
    return EvidenceReference(
        file=file,
        what=what.rstrip("."),
        command=str(data.get("command", "")),
        environment=", ".join(_environment(data.get("environment", {}))),
        figures=write(data),
    )


def _environment(environment: Data) -> Iterator[str]:
    words = {"gpu": "", "driver": "driver ", "torch": "torch ", "python": "Python ", "package": "package "}
    for key, word in words.items():
        if environment.get(key):
            yield f"{word}{environment[key]}"
    if environment.get("host_cores"):
        yield f"{environment['host_cores']} host cores"


def _is_bench(data: Data) -> bool:
    return data.get("kind") == "BenchResult"


def _bench(data: Data) -> str:
    rows = []
    for side in data["sides"]:
        summary = side["summary"]
        rows.append(
            [
                f"`{side['name']}`" + (" (baseline)" if side["name"] == data["baseline"] else ""),
                _ms(summary["median_ms"]),
                _ratio(summary["ratio"]),
                _size(summary["peak_device_bytes"]),
                _size(side["moved_bytes"]),
                side["refused"] or "",
            ]
        )
    head = ["side", "ms a step", "× baseline", "peak", "moved", "why not"]
    return table(head, rows, numbers_from=1)


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
    (_is_prediction, _prediction),
    (_is_bitwise, _bitwise),
    (_is_effects, _effects),
)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _size(value: float | None) -> str:
    return "" if value is None else format_size_short(round(value))
