"""`offload facts`: what is known of this machine, a model and a run."""

from __future__ import annotations

from typing import Unpack

import click

from offload_runtime.cli.gathered_facts import FactOptions, fact_options, gather
from offload_runtime.cli.options import format_option, hardware_arguments
from offload_runtime.cli.outcome import Outcome


@click.command(short_help="Print the facts of this machine and a model.")
@fact_options
@format_option()
def command(**options: Unpack[FactOptions]) -> Outcome:
    """Print the facts that conditions of policies and cards can name, and where each value comes from.

    Of the machine: this one, or the one that --hardware describes. Of the model: with --model, by tracing it with fake
    tensors and planning it; nothing is run, no GPU and no weights are needed. What is not known is listed as unknown.
    `offload list facts` says what each fact means.

    \b
    Example:
      offload facts --format json > facts.json
      offload facts --model builtin:llama3-8b-lora --hardware h100-pcie5
    """
    from offload_runtime.reporting.facts import facts_data, render_facts

    gathered = gather(options)
    hardware = hardware_arguments(options["hardware"], options["device_memory"])
    again = ("advise", *gathered.model_arguments, *hardware)
    return Outcome(
        data=facts_data(gathered.result),
        text=render_facts(gathered.result),
        diagnostics=gathered.result.notes,
        next=(" ".join(("offload", *again)),),
    )
