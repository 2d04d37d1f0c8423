"""What `facts` and `advise` have in common: options, and the facts that these lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click

from offload_runtime.cli.foreign import foreign_code
from offload_runtime.cli.given_facts import fact_option, given_facts
from offload_runtime.cli.options import (
    PLANNED_FOR,
    ShapeOptions,
    hardware_arguments,
    hardware_option,
    mode_option,
    model_arguments,
    optional_shape_options,
)
from offload_runtime.cli.progress import shown_progress
from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.fact_files import read_fact_files
from offload_runtime.fact_sheet import FactsResult
from offload_runtime.models.catalog import algorithm_of
from offload_runtime.predicates import Scalar

if TYPE_CHECKING:
    from offload_runtime.models.resolve import ModelRequest

__all__ = ["FactOptions", "Gathered", "fact_options", "gather"]

Command = TypeVar("Command", bound=Callable[..., Any])

_MAKES_FACT = {
    "batch": "micro_batch",
    "seq": "sequence_length",
    "layers": "num_layers",
    "dtype": "dtype",
    "optimizer": "optimizer",
}


class FactOptions(TypedDict):
    """What `fact_options` hands to a command."""

    spec: str | None
    batch: int | None
    seq: int | None
    layers: int | None
    dtype: str | None
    optimizer: str | None
    mode: str
    hardware: str | None
    device_memory: int | None
    facts: tuple[str, ...]
    files: tuple[Path, ...]
    side: str | None


@dataclass(frozen=True)
class Gathered:
    """Facts, and the arguments that ask another command about the same model and hardware."""

    result: FactsResult
    model_arguments: tuple[str, ...]
    hardware: str | None
    mode: str
    device_memory: int | None = None

    @property
    def hardware_arguments(self) -> list[str]:
        """The arguments that name the hardware."""
        return hardware_arguments(self.hardware, self.device_memory)


def fact_options(command: Command) -> Command:
    """Declare the options of a command that gathers facts."""
    options = (
        optional_shape_options,
        mode_option,
        hardware_option(PLANNED_FOR),
        fact_option,
        click.option(
            "--from",
            "files",
            multiple=True,
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Facts of another machine, as `offload facts --format json` printed them there, or a result of "
            "`offload bench` or `offload apply`, as a file or from --format json, or the report of a run "
            "(OFFLOAD_REPORT). Repeatable, for files about one run.",
        ),
        click.option(
            "--side",
            metavar="NAME",
            help="Where several sides of a bench offload: the one that the facts are of, such as save-on-cpu.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def gather(options: FactOptions) -> Gathered:
    """Return the facts that `options` ask for and give. Imports torch.

    Raises UsageError for a fact that is none, and as the model's and the profile's readers do.
    """
    given = _given(options)
    joined = read_fact_files(options["files"], options["side"])
    from offload_runtime.hardware import load_hardware

    # The name of a profile stands for what the profile says, however it is given.
    named = options["hardware"] or given.get("hardware")
    profile = None if named is None else load_hardware(str(named))
    memory = options["device_memory"]
    if profile is not None and memory is not None:
        profile = profile.with_device_memory(memory)
    # From here on torch is needed; what was written wrong has been refused without.
    from offload_runtime.models.facts import gather_facts

    with foreign_code(), shown_progress() as advance:
        result = gather_facts(
            _request(options),
            hardware=profile,
            given={**joined.facts, **given},
            mode=options["mode"],
            ask_machine=not joined.is_of_another,
            progress=advance,
        )
    if profile is None:
        result = replace(result, notes=(*joined.notes, *result.notes))
    hardware = named or result.sheet.get("hardware")
    arguments = model_arguments(cast(ShapeOptions, options)) if options["spec"] is not None else []
    return Gathered(
        result, tuple(arguments), None if hardware is None else str(hardware), options["mode"], memory
    )


def _given(options: FactOptions) -> Mapping[str, Scalar]:
    """Return the facts given; without a model, what would shape one is a fact, too."""
    given = given_facts(options["facts"])
    if options["spec"] is None:
        shape = {fact: cast(Mapping[str, Any], options)[name] for name, fact in _MAKES_FACT.items()}
        if shape["optimizer"] is not None:
            shape["optimizer"] = algorithm_of(shape["optimizer"])
        given = {**{fact: value for fact, value in shape.items() if value is not None}, **given}
    memory = options["device_memory"]
    if memory is None:
        return given
    if given.get("gpu_total_bytes", memory) != memory:
        message = (
            f"gpu_total_bytes is given as {given['gpu_total_bytes']} and --device-memory as {memory} bytes"
        )
        raise UsageError(Diagnostic("CLI614", "error", message, hint="leave one of them out"))
    return {**given, "gpu_total_bytes": memory}


def _request(options: FactOptions) -> ModelRequest | None:
    from offload_runtime.models.resolve import ModelRequest

    if options["spec"] is None:
        return None
    return ModelRequest(
        options["spec"],
        options["batch"],
        options["seq"],
        options["layers"],
        options["dtype"],
        options["optimizer"],
    )
