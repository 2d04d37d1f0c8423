"""`offload init`: a first version of a policy, or of an adapter that gives a training script's model to offload."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from offload_runtime.cli.options import Command, format_option
from offload_runtime.cli.outcome import Outcome
from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.scaffold.adapter import AdapterWishes, adapter_model, write_adapter
from offload_runtime.scaffold.policy import PolicyWishes, write_policy
from offload_runtime.scaffold.script import FUNCTION_KINDS, read_script

_POLICY_OPTIONS = (
    click.option("--name", help="Name of the policy.  [default: the file's, or mine]"),
    click.option("--summary", metavar="TEXT", help="One sentence on what it does."),
    click.option("--preset", metavar="POLICY", help="Start from a shipped policy, or a path."),
    click.option("--budget", metavar="SIZE", help="Bytes offloaded per rank and step, such as 8GiB."),
    click.option("--device-peak", metavar="SIZE|auto", help="Let the planner fit the step into this much."),
    click.option(
        "--step-overhead", metavar="PERCENT", help="Let the planner add at most this much time: 5%."
    ),
    click.option("--host", metavar="SIZE", help="Pinned host bytes that may be reserved."),
    click.option("--defer", metavar="LAYERS", help="Layers by which device memory is released later."),
    click.option("--prefetch", metavar="LAYERS", help="Layers ahead at which a tensor starts to come back."),
    click.option("--keep-last", metavar="LAYERS", help="Last layers in which nothing is offloaded."),
    click.option("--ops", metavar="OP,...", help="Op classes or overloads to offload, with commas between."),
    click.option("--layers", metavar="SLICE", help="Layers in which, such as :75%."),
    click.option("--moe", is_flag=True, help="The model is a mixture of experts."),
)
_ADAPTER_OPTIONS = (
    click.option("--adapter-kind", type=click.Choice(FUNCTION_KINDS), help="What FUNCTION gives: see above."),
    click.option("--batch", metavar="FUNCTION", help="Function of the script that returns one batch."),
    click.option("--loss", metavar="FUNCTION", help="Its loss: of the output, or of output and target."),
    click.option("--script-args", metavar="TEXT", help="Command line of the script, in one argument."),
)
_ADAPTER_NAMES = ("adapter_kind", "batch", "loss", "script_args")


def _policy_options(command: Command) -> Command:
    for option in reversed(_POLICY_OPTIONS):
        command = option(command)
    return command


def _adapter_options(command: Command) -> Command:
    for option in reversed(_ADAPTER_OPTIONS):
        command = option(command)
    return command


@click.command(short_help="Write a commented policy, or an adapter of a training script.")
@_policy_options
@click.option("--model-adapter", metavar="SCRIPT.py:FUNCTION", help="Write an adapter instead of a policy.")
@_adapter_options
@click.option("--output", metavar="FILE", help="Write this file instead of stdout.")
@click.option("--force", is_flag=True, help="Replace the file where it is there already.")
@format_option()
def command(model_adapter: str | None, output: str | None, force: bool, **wishes: Any) -> Outcome:
    """Write a commented, valid policy from a few wishes; or an adapter for --model.

    An adapter gives the model of a training script to explain, plan and apply, as `adapter:build`. FUNCTION is one of
    the script, and is called without arguments. It returns the model (name a function for --batch, and one for --loss
    unless the model returns its loss), or returns a transformers.Trainer, or is the loop that trains, such as main:
    then it runs until its first backward, and saves nothing for it. Which of these (model, trainer, loop) is read from
    its text, unless --adapter-kind says it. The script is not run by init.

    \b
    Example:
      offload init --budget 8GiB --ops matmul,attention --output policy.yaml
      offload init --device-peak 40GiB --moe
      offload init --model-adapter train.py:main --script-args "--width 32" --output adapter.py
      offload init --model-adapter train.py:make_model --batch make_batch --loss loss_fn --output adapter.py
    """
    _refuse_mixture(model_adapter is not None, wishes)
    if output is not None and not force and os.path.lexists(output):
        hint = "name another file, or add --force"
        raise UsageError(Diagnostic("CLI636", "error", f"{output} is there already", hint=hint))
    if model_adapter is None:
        return _policy(output, wishes)
    return _adapter(model_adapter, output, wishes)


def _refuse_mixture(is_adapter: bool, wishes: dict[str, Any]) -> None:
    foreign = [
        f"--{name.replace('_', '-')}"
        for name, value in wishes.items()
        if value not in (None, False) and (name in _ADAPTER_NAMES) is not is_adapter
    ]
    if foreign:
        what, other = ("an adapter", "a policy") if is_adapter else ("a policy", "an adapter")
        verb = "says" if len(foreign) == 1 else "say"
        message = f"{' and '.join(foreign)} {verb} nothing about {what}"
        hint = f"leave out what is about {other}, or write that in a call of its own"
        if not is_adapter:
            hint += ", with --model-adapter"
        raise UsageError(Diagnostic("CLI635", "error", message, hint=hint))


def _policy(output: str | None, wishes: dict[str, Any]) -> Outcome:
    given = {name: value for name, value in wishes.items() if name not in _ADAPTER_NAMES}
    ops = tuple(op.strip() for op in (given.pop("ops") or "").split(",") if op.strip())
    name = given.pop("name") or _name_of(output)
    text, findings = write_policy(PolicyWishes(name=name, ops=ops, **given), file=output)
    following = () if output is None else (shlex.join(["offload", "validate", output]),)
    return _written(output, text, findings, following)


def _name_of(output: str | None) -> str:
    """Name a policy after its folder where the file is called policy.yaml, as shipped ones are."""
    if output is None:
        return "mine"
    path = Path(output)
    name = path.resolve().parent.name if path.stem == "policy" else path.stem
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept.strip("-_.")[:64].rstrip("-_.") or "mine"


def _adapter(reference: str, output: str | None, wishes: dict[str, Any]) -> Outcome:
    file, colon, function = reference.rpartition(":")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise click.BadParameter(f"{reference!r} is not SCRIPT.py:FUNCTION", param_hint="'--model-adapter'")
    if output is not None and not (output.endswith(".py") and Path(output).stem.isidentifier()):
        raise click.BadParameter(
            f"{output!r} is no module that can be imported, such as adapter.py", param_hint="'--output'"
        )
    script = read_script(file)
    script.check_call(function)
    kind = wishes["adapter_kind"] or script.kind_of(function)
    batch, loss = wishes["batch"], wishes["loss"]
    if kind != "model" and (batch or loss):
        message = (
            f"--batch and --loss are of a function that returns a model, and {function} is taken for a {kind}"
        )
        hint = "leave them out, or add --adapter-kind model"
        raise UsageError(Diagnostic("CLI635", "error", message, hint=hint))
    if batch is not None:
        script.check_call(batch)
    if loss is not None:
        script.check_name(loss)
    arguments = _split(wishes["script_args"] or "")
    adapter = AdapterWishes(file, function, kind, batch, loss, arguments, output)
    findings = script.work_on_import()
    following: tuple[str, ...] = ()
    if kind == "model" and batch is None:
        hint = "edit one_batch in the adapter, or name a function of the script with --batch"
        message = f"what {function}'s model is called with is left to be written"
        findings += (Diagnostic("CLI638", "note", message, hint=hint),)
    elif output is not None:
        model = adapter_model(adapter)
        following = (shlex.join(["offload", "explain", "balanced", "--model", model, "--mode", "inductor"]),)
    return _written(output, write_adapter(adapter), findings, following)


def _split(script_args: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(script_args))
    except ValueError as error:
        message = f"{script_args!r} is no command line: {str(error).lower()}"
        raise click.BadParameter(message, param_hint="'--script-args'") from error


def _written(
    output: str | None, text: str, findings: tuple[Diagnostic, ...], following: tuple[str, ...]
) -> Outcome:
    if output is not None:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            hint = "name a file in a folder that exists and may be written to"
            message = f"{output} cannot be written: {error.strerror}"
            raise UsageError(Diagnostic("CLI637", "error", message, hint=hint)) from error
    return Outcome(
        data={"file": output, "text": text},
        text=text.rstrip("\n") if output is None else f"written: {output}",
        diagnostics=findings,
        next=following,
    )
