"""An adapter: a Python file that gives a training script's model to the commands that take --model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePath

from offload_runtime.scaffold.script import FunctionKind

__all__ = ["AdapterWishes", "adapter_model", "write_adapter"]


@dataclass(frozen=True)
class AdapterWishes:
    """What an adapter is made of.

    ``function`` of ``script`` gives what ``kind`` says. For a model, ``batch`` names a function that returns one batch,
    and ``loss`` one of the output, or of the output and the batch's last value. ``arguments`` are the script's on its
    command line; ``file`` is where the adapter will stand, by default beside the script's path as it is given.
    """

    script: str
    function: str
    kind: FunctionKind
    batch: str | None = None
    loss: str | None = None
    arguments: tuple[str, ...] = ()
    file: str | None = None


def adapter_model(wishes: AdapterWishes) -> str:
    """Return what to give to --model for the adapter, from the current folder."""
    path = PurePath(os.path.relpath(wishes.file)) if wishes.file is not None else PurePath("adapter.py")
    return f"{'.'.join(path.with_suffix('').parts)}:build"


def write_adapter(wishes: AdapterWishes) -> str:
    """Return the adapter's text."""
    call, used = _call(wishes)
    model = adapter_model(wishes)
    script = wishes.script
    if wishes.file is not None and not os.path.isabs(script):
        script = os.path.relpath(script, os.path.dirname(wishes.file) or ".")
    path = repr(script) if os.path.isabs(script) else f"Path(__file__).parent / {script!r}"
    what = f"one training step of what {wishes.function} {_does(wishes.kind)}"
    return f'''"""The model of {wishes.script} for offload: {what}.

    offload explain balanced --model {model} --mode inductor
    offload plan fit --model {model} --mode inductor --hardware h200-pcie5 --set limits.device_peak=40GiB
    offload apply balanced --model {model} --mode inductor --steps 3

Only these commands need this file. To train with a policy, a shipped one or a file such as policy.yaml, compile the
model in the script itself, before it is trained: for a plain loop

    model = torch.compile(model, backend="offload", options={{"policy": "balanced", "mode": "inductor"}})

and for a transformers.Trainer, before the model is given to it

    model.compile(backend="offload", options={{"policy": "balanced", "mode": "inductor"}})
"""

from pathlib import Path

from offload_runtime.models.adapters import {used}, running_script

SCRIPT = {path}
ARGUMENTS: list[str] = {list(wishes.arguments)!r}  # what stands after the script's name when it is started


def build():
    """Return (module, example_args), or (module, example_args, loss_fn) with the loss of the module's output."""
    with running_script(SCRIPT, ARGUMENTS) as script:
{call}
'''


def _does(kind: FunctionKind) -> str:
    return {"model": "returns", "trainer": "returns as a Trainer", "loop": "trains"}[kind]


def _call(wishes: AdapterWishes) -> tuple[str, str]:
    """Return the lines that build the model, and the function of the package that they call."""
    indent = " " * 8
    if wishes.kind == "loop":
        lines = [
            "# Runs until the first backward, and keeps the model that was called before it, its arguments and the",
            "# loss that was computed from its output.",
            f"return first_training_step(script.{wishes.function})",
        ]
        return "\n".join(indent + line for line in lines), "first_training_step"
    if wishes.kind == "trainer":
        lines = [
            "# The first batch of the trainer's own data; the model returns its loss.",
            f"return trainer_step(script.{wishes.function}())",
        ]
        return "\n".join(indent + line for line in lines), "trainer_step"
    batch = f"script.{wishes.batch}()" if wishes.batch is not None else "one_batch()"
    arguments = [f"script.{wishes.function}()", batch, *([f"script.{wishes.loss}"] if wishes.loss else [])]
    lines = [
        "# A batch that is a dict gives keyword arguments, a tuple positional ones. A loss of two arguments gets the",
        "# output and the batch's last value; without one the model returns its loss, or an output with .loss.",
        f"return model_and_batch({', '.join(arguments)})",
    ]
    text = "\n".join(indent + line for line in lines)
    if wishes.batch is None:
        text += (
            "\n\n\ndef one_batch():\n"
            f'    """Return one batch for {wishes.function}, of the shape that is trained on."""\n'
            '    raise NotImplementedError("edit one_batch: return (torch.randint(0, 32000, (2, 4096)),), say")'
        )
    return text, "model_and_batch"
