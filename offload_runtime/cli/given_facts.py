"""`--fact NAME=VALUE`: what a person knows of the run, checked against the table of facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.fact_values import parse_fact
from offload_runtime.predicates import Scalar

Command = TypeVar("Command", bound=Callable[..., Any])


def fact_option(command: Command) -> Command:
    """Declare the repeatable `--fact NAME=VALUE`."""
    return click.option(
        "--fact",
        "facts",
        metavar="NAME=VALUE",
        multiple=True,
        help="What is known of the run, such as pipeline_parallel=2 or num_layers=32. Repeatable.",
    )(command)


def given_facts(texts: Iterable[str]) -> dict[str, Scalar]:
    """Return the facts given; raises UsageError with every text that gives none."""
    facts: dict[str, Scalar] = {}
    problems = []
    for text in texts:
        try:
            name, value = parse_fact(text)
        except ValueError as error:
            message, _, hint = str(error).partition("; ")
            problems.append(
                Diagnostic("CLI614", "error", message, hint=hint or "`offload list facts` lists them")
            )
        else:
            facts[name] = value
    if problems:
        raise UsageError(*problems)
    return facts
