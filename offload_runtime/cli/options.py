"""Options that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click

from offload_runtime.models.catalog import DTYPES, OPTIMIZERS
from offload_runtime.units import format_size, parse_size

if TYPE_CHECKING:
    from offload_runtime.models.resolve import ModelRequest

Command = TypeVar("Command", bound=Callable[..., Any])

MODES = ("graph", "inductor")
_COUNT = click.IntRange(min=1)
MAX_SEED = 2**64 - 1  # torch.manual_seed takes no more
DECIDED_FOR = (
    "Decide for this profile (see `offload list hardware`) instead of the device here; needed without one where a "
    "policy plans by time."
)
PLANNED_FOR = "Profile to plan for (see `offload list hardware`); by default that of the CUDA device here."
PREDICTED_FOR = (
    "Profile to plan for and to predict with (see `offload list hardware`); by default that of the device."
)
DEVICES = ("auto", "cpu", "cuda")
_OF_PROFILE = (
    "Memory of the device instead of the profile's, such as 80998MiB (79.1 GiB), as CUDA reports of an H100 of "
    "80 GB; GB are 10^9 bytes: 80GB is 74.5GiB."
)
_OF_PROCESS = (
    "Memory that this process may allocate on a CUDA device, and of the profile, such as 80998MiB (79.1 GiB), as CUDA "
    "reports of an H100 of 80 GB (GB are 10^9 bytes: 80GB is 74.5GiB): runs as on a device of that size. Without "
    "CUDA it stands in the profile alone."
)


class ShapeOptions(TypedDict):
    """What `shape_options` hands to a command: the fields of a `ModelRequest` that shape a model."""

    spec: str
    batch: int | None
    seq: int | None
    layers: int | None
    dtype: str | None
    optimizer: str | None


class ModelOptions(ShapeOptions):
    """What `model_options` hands to a command: the fields of a `ModelRequest`."""

    device: str
    seed: int


def format_option(*formats: str) -> Callable[[Command], Command]:
    """Declare `--format`, with `text`, `json` and the given further formats.

    The value is read in `program.run`, before click parses anything, because a usage error must come in
    the format that was asked for; here it is only checked and documented.
    """
    return click.option(
        "--format",
        type=click.Choice(["text", "json", *formats]),
        default="text",
        show_default=True,
        expose_value=False,
        help="Text for people, or one document on stdout, for errors too.",
    )


def set_option(command: Command) -> Command:
    """Declare the repeatable `--set KEY=VALUE`, checked like the policy file itself."""
    return click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Override one value of the policy, such as limits.budget=8GiB. Repeatable.",
    )(command)


def setting_option(command: Command) -> Command:
    """Declare the repeatable `--setting KEY=VALUE`: what another system is told beside the policy."""
    return click.option(
        "--setting",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of that system, checked like those of the policy, which it replaces. Repeatable.",
    )(command)


def _num_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size such as 80GB; fails as click does for what is no size, and for no memory at all."""
    if value is None:
        return None
    try:
        num_bytes = parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    if not num_bytes:
        raise click.BadParameter(f"{value!r} is no memory", ctx, param)
    return num_bytes


def hardware_option(purpose: str, *, caps: bool = False) -> Callable[[Command], Command]:
    """Declare `--hardware` and `--device-memory`, which stands for its memory.

    ``purpose`` says what the profile is for, and what stands in for it; ``caps``: the command runs, and keeps to it.
    """
    hardware = click.option("--hardware", metavar="NAME|FILE", help=purpose)
    memory = click.option(
        "--device-memory", callback=_num_bytes, metavar="SIZE", help=_OF_PROCESS if caps else _OF_PROFILE
    )
    return lambda command: hardware(memory(command))


def hardware_arguments(hardware: str | None, device_memory: int | None) -> list[str]:
    """Return the arguments that name the same hardware to another command."""
    arguments = [] if hardware is None else ["--hardware", hardware]
    return arguments + ([] if device_memory is None else ["--device-memory", format_size(device_memory)])


def accumulation_option(command: Command) -> Command:
    """Declare `--gradient-accumulation-steps`, the batches whose gradients a step of the optimizer takes."""
    return click.option(
        "--gradient-accumulation-steps",
        type=_COUNT,
        default=1,
        show_default=True,
        metavar="N",
        help="Batches in a step: gradients of earlier ones stay on the device while the next run.",
    )(command)


def rows_options(
    groupings: Sequence[str], *, default: str, one_row: str, held: str
) -> Callable[[Command], Command]:
    """Declare `--by` and `--limit` of a report on tensors, whose JSON holds all of them whatever the text shows.

    ``one_row`` says of `--by` what gets a row, ``held`` of `--limit` what JSON holds.
    """
    by = click.option(
        "--by",
        type=click.Choice(groupings),
        default=default,
        show_default=True,
        help=f"One row for {one_row}.",
    )
    limit = click.option(
        "--limit",
        type=_COUNT,
        metavar="N",
        help=f"Show N rows, under --by tensor the largest. JSON always holds every {held}.",
    )
    return lambda command: by(limit(command))


def repeated_arguments(
    model: ShapeOptions,
    mode: str,
    hardware: str | None,
    overrides: Sequence[str],
    gradient_accumulation_steps: int = 1,
    device_memory: int | None = None,
) -> list[str]:
    """Return the arguments that ask another command about the same model under the same conditions."""
    arguments = [*model_arguments(model), *(("--mode", mode) if mode != "graph" else ())]
    if gradient_accumulation_steps > 1:
        arguments += ["--gradient-accumulation-steps", str(gradient_accumulation_steps)]
    arguments += hardware_arguments(hardware, device_memory)
    return [*arguments, *(word for override in overrides for word in ("--set", override))]


def mode_option(command: Command) -> Command:
    """Declare `--mode`, the front end that runs the graphs."""
    return click.option(
        "--mode",
        type=click.Choice(MODES),
        default="graph",
        show_default=True,
        help="graph runs the joint graph as captured, inductor compiles it.",
    )(command)


def model_options(command: Command) -> Command:
    """Declare what chooses and shapes the model that a policy is tried on."""
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command


def shape_options(command: Command) -> Command:
    """Declare what chooses and shapes a model that is traced and never run: it has no device and no seed."""
    for option in reversed(_MODEL_OPTIONS[: len(ShapeOptions.__annotations__)]):
        command = option(command)
    return command


def optional_shape_options(command: Command) -> Command:
    """Declare what `shape_options` declares, for a command that can do without a model: `spec` is None then."""
    for option in reversed((_OPTIONAL_MODEL, *_MODEL_OPTIONS[1 : len(ShapeOptions.__annotations__)])):
        command = option(command)
    return command


def model_request(options: ModelOptions) -> ModelRequest:
    """Return what `options` ask for, with the device chosen. Imports torch.

    Raises RefusedError for a device that is not there.
    """
    from offload_runtime.models.devices import choose_device
    from offload_runtime.models.resolve import ModelRequest

    return replace(ModelRequest(**options), device=choose_device(options["device"]))


def model_arguments(options: ShapeOptions) -> list[str]:
    """Return the arguments that ask for the same model again; what was left at its default is left out."""
    arguments = ["--model", options["spec"]]
    for name, default in _DEFAULTS.items():
        value = cast(Mapping[str, object], options).get(name, default)
        if value != default:
            arguments += [f"--{name}", str(value)]
    return arguments


_DEFAULTS: dict[str, object] = {
    "batch": None,
    "seq": None,
    "layers": None,
    "dtype": None,
    "optimizer": None,
    "device": "auto",
    "seed": 0,
}
_MODEL_HELP = (
    "builtin:NAME (see `offload list models`), hf:PATH of a local config.json, or "
    "package.module:function that returns (module, example_args) or (module, example_args, loss_fn)."
)
_OPTIONAL_MODEL = click.option("--model", "spec", metavar="MODEL", help=_MODEL_HELP)
_MODEL_OPTIONS = (
    click.option("--model", "spec", required=True, metavar="MODEL", help=_MODEL_HELP),
    click.option("--batch", type=_COUNT, metavar="N", help="Sequences or images in a batch."),
    click.option("--seq", type=_COUNT, metavar="N", help="Tokens in a sequence."),
    click.option("--layers", type=_COUNT, metavar="N", help="Layers of the model."),
    click.option("--dtype", type=click.Choice(DTYPES), help="Type of parameters and activations."),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="Optimizer that trains the model."),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="auto takes an accelerator where there is one.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0, max=MAX_SEED),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of weights and data.",
    ),
)
