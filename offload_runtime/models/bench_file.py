"""Result files: a measurement as JSON, by `schemas/result.schema.json`; written whole or not at all, and read back."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offload_runtime.errors import Diagnostic, RunError, UnreadableError
from offload_runtime.models.bench_result import (
    BenchModel,
    BenchResult,
    Environment,
    Prediction,
    Round,
    Side,
    Turn,
)
from offload_runtime.models.bench_statistics import noise, summarise
from offload_runtime.shape import load_schema

__all__ = ["SCHEMA_VERSION", "check_output", "read_result", "result_data", "result_from_data", "write_result"]

SCHEMA_VERSION = 1
KIND = "BenchResult"


def result_data(result: BenchResult) -> dict[str, Any]:
    """Return what a result file holds: what was measured, and under each side what follows from it."""
    summaries = {side.name: summarise(result, side.name) for side in result.sides}
    measured = noise(result)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "command": result.command,
        "complete": result.complete,
        "model": asdict(result.model),
        "mode": result.mode,
        "device": result.device,
        "environment": _environment_data(result.environment),
        "steps": result.steps,
        "warmup": result.warmup,
        "num_rounds": result.num_rounds,
        "hardware": result.hardware,
        "baseline": result.baseline,
        "control": result.control,
        "noise": asdict(measured),
        "sides": [
            {
                **asdict(side),
                "summary": {k: v for k, v in asdict(summaries[side.name]).items() if k != "side"},
            }
            for side in result.sides
        ],
        "rounds": [asdict(taken) for taken in result.rounds],
    }


def _environment_data(environment: Environment) -> dict[str, Any]:
    """Leave out the device's memory where none was given: files stay what they were before it could be."""
    data = asdict(environment)
    if environment.device_memory_bytes is None:
        del data["device_memory_bytes"]
    return data


def result_from_data(data: Mapping[str, Any]) -> BenchResult:
    """Return the result that `result_data` wrote; what follows from the rounds is computed anew.

    ``data`` has the shape of the schema.
    """
    return BenchResult(
        command=data["command"],
        model=BenchModel(**{**data["model"], "inputs": tuple(data["model"]["inputs"])}),
        mode=data["mode"],
        device=data["device"],
        environment=Environment(**data["environment"]),
        steps=data["steps"],
        warmup=data["warmup"],
        num_rounds=data["num_rounds"],
        hardware=data["hardware"],
        baseline=data["baseline"],
        control=data["control"],
        sides=tuple(_side(item) for item in data["sides"]),
        rounds=tuple(_round(item) for item in data["rounds"]),
    )


def _side(data: Mapping[str, Any]) -> Side:
    fields = {key: value for key, value in data.items() if key != "summary"}
    predicted = None if data["predicted"] is None else Prediction(**data["predicted"])
    return Side(**{**fields, "compile_s": tuple(data["compile_s"]), "predicted": predicted})


def _round(data: Mapping[str, Any]) -> Round:
    turns = tuple(
        Turn(
            turn["side"],
            None if turn["step_ms"] is None else tuple(turn["step_ms"]),
            turn["peak_device_bytes"],
        )
        for turn in data["turns"]
    )
    return Round(data["number"], data["run"], turns)


def check_output(path: Path) -> None:
    """Raise RunError (BEN914) if no result could be written to ``path``: better said before the work than after."""
    folder = path.parent
    if os.path.exists(path) and not os.path.isfile(path):
        raise _unwritable(path, "it is no regular file")
    if not os.path.isdir(folder):
        raise _unwritable(path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise _unwritable(path, f"folder {folder} cannot be written to")


def write_result(path: Path, result: BenchResult) -> None:
    """Replace the file at ``path`` by ``result`` in one move: a reader sees the old one or the new one.

    Raises RunError where it cannot be written.
    """
    check_output(path)
    target = Path(os.path.realpath(path))  # a link stays a link
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    text = json.dumps(result_data(result), indent=1, allow_nan=False) + "\n"
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, target)
    except OSError as error:
        with contextlib.suppress(OSError):  # a name that is too long cannot be looked up either
            beside.unlink()
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: Path, why: str) -> RunError:
    hint = "name a file in a folder that exists and can be written to"
    return RunError(Diagnostic("BEN914", "error", f"{path} cannot be written: {why}", hint=hint))


def read_result(path: Path) -> BenchResult:
    """Return the result in the file at ``path``. Raises UnreadableError (BEN911) where there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _unreadable(path, f"no JSON: {error.msg}", error.lineno, error.colno) from error
    except RecursionError as error:
        raise _unreadable(path, "it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(getattr(error, "strerror", None) or error)) from error
    _check_shape(path, data)
    result = result_from_data(data)
    _check_names(path, result)
    return result


def _refuse_constant(word: str) -> None:
    raise ValueError(f"no JSON: {word} is no number")


def _check_shape(path: Path, data: object) -> None:
    import jsonschema  # only where a file is read: it takes its time to import

    found = jsonschema.Draft7Validator(load_schema("result")).iter_errors(data)
    first = next(iter(sorted(found, key=lambda error: [str(part) for part in error.absolute_path])), None)
    if first is not None:
        where = ".".join(map(str, first.absolute_path)) or "the document"
        raise _unreadable(path, f"no result of `offload bench`: {where}: {first.message[:200]}")


def _check_names(path: Path, result: BenchResult) -> None:
    """Check what a schema cannot say: every name that is used belongs to a side."""
    known = {side.name for side in result.sides}
    used = {result.baseline, result.control, *(turn.side for taken in result.rounds for turn in taken.turns)}
    if used - known:
        raise _unreadable(path, f"no result of `offload bench`: there is no side {min(used - known)!r}")


def _unreadable(path: Path, why: str, line: int | None = None, column: int | None = None) -> UnreadableError:
    message, hint = f"{path} cannot be read: {why}", "name a file that `offload bench --output` wrote"
    return UnreadableError(Diagnostic("BEN911", "error", message, str(path), line, column, hint=hint))
