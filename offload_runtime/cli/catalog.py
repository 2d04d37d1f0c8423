"""`offload list`: the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from offload_runtime.cli.options import format_option
from offload_runtime.cli.outcome import Outcome
from offload_runtime.reporting.tables import Column, render_table


@dataclass(frozen=True)
class Catalog:
    """One list: what programs get of each entry, and the columns and cells that people see."""

    entries: tuple[Mapping[str, Any], ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]


def models_catalog() -> Catalog:
    """List the built-in models, the small ones first."""
    from offload_runtime.models.catalog import list_models

    models = list_models()
    keys = ("name", "summary", "num_parameters", "num_layers", "batch", "seq", "dtype", "optimizer", "loss")
    return Catalog(
        entries=tuple({key: getattr(model, key) for key in keys} for model in models),
        columns=(
            Column("model"),
            Column("parameters", "right"),
            Column("layers", "right"),
            Column("batch x seq"),
            Column("dtype"),
            Column("summary"),
        ),
        cells=tuple(
            (
                f"builtin:{model.name}",
                f"{model.num_parameters:,}",
                str(model.num_layers),
                str(model.batch) if model.seq is None else f"{model.batch} x {model.seq}",
                model.dtype,
                model.summary,
            )
            for model in models
        ),
    )


def facts_catalog() -> Catalog:
    """List the facts that a policy's `requires` and a card's conditions can name."""
    from offload_runtime.facts import FACTS
    from offload_runtime.reporting.facts import FACT_COLUMNS, fact_cells, fact_entry

    return Catalog(
        entries=tuple(map(fact_entry, FACTS.values())),
        columns=FACT_COLUMNS,
        cells=tuple(map(fact_cells, FACTS.values())),
    )


def op_classes_catalog() -> Catalog:
    """List the op classes that a rule's `op` can name."""
    from offload_runtime.op_classes import OP_CLASSES

    return _named("op class", sorted(OP_CLASSES.items()))


def policies_catalog() -> Catalog:
    """List the shipped policies with their summaries."""
    from offload_runtime.compiler import load_policy
    from offload_runtime.shipped import shipped_policies

    return _named("policy", [(name, load_policy(name).policy.summary) for name in shipped_policies()])


def hardware_catalog() -> Catalog:
    """List the shipped hardware profiles with their figures and the sources of those."""
    from offload_runtime.hardware import list_hardware

    profiles = list_hardware()
    shown = ("device.memory", "link.d2h", "link.h2d", "device.matmul_bfloat16", "host.memory")
    return Catalog(
        entries=tuple(
            {
                "name": profile.name,
                "summary": profile.summary,
                "figures": [
                    {"figure": f.key, "value": f.value, "unit": f.unit, "source": f.source}
                    for f in profile.figures
                ],
            }
            for profile in profiles
        ),
        columns=(
            Column("hardware"),
            *(
                Column(title, "right")
                for title in ("memory", "D2H", "H2D", "bfloat16 in theory", "host memory")
            ),
            Column("summary"),
        ),
        cells=tuple(
            (
                profile.name,
                *("" if figure is None else str(figure) for figure in map(profile.figure, shown)),
                profile.summary,
            )
            for profile in profiles
        ),
    )


def _named(title: str, listed: list[tuple[str, str]]) -> Catalog:
    return Catalog(
        entries=tuple({"name": name, "summary": summary} for name, summary in listed),
        columns=(Column(title), Column("summary")),
        cells=tuple(listed),
    )


CATALOGS: Mapping[str, Callable[[], Catalog]] = MappingProxyType(
    {
        "facts": facts_catalog,
        "hardware": hardware_catalog,
        "models": models_catalog,
        "op-classes": op_classes_catalog,
        "policies": policies_catalog,
    }
)


@click.command(short_help="List facts, hardware profiles, built-in models, op classes or policies.")
@click.argument("what", type=click.Choice(sorted(CATALOGS)), metavar="|".join(sorted(CATALOGS)))
@format_option()
def command(what: str) -> Outcome:
    """List the facts, the hardware profiles, the built-in models, the op classes or the shipped policies.

    \b
    Example:
      offload list policies
    """
    catalog = CATALOGS[what]()
    return Outcome(
        data={what.replace("-", "_"): [dict(entry) for entry in catalog.entries]},
        text=render_table(catalog.columns, catalog.cells, indent=""),
    )
