"""Every diagnostic code, in one table: the command line, the documentation and the tests read it here.

A family is a tuple of rows in a module of its own; adding a code is adding a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from offload_runtime.codes import (
    advice,
    bench,
    capture,
    cards,
    docs,
    export,
    hardware,
    models,
    pictures,
    plan,
    policy,
    policy_tests,
    reading,
    runtime,
    scaffold,
    usage,
)
from offload_runtime.codes.entry import CodeEntry

__all__ = ["CODES", "FAMILIES", "CodeEntry"]

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "YAML": "reading a file",
        "POL": "policies",
        "PTS": "policy tests",
        "GRF": "capture and graphs",
        "PLN": "plans",
        "RUN": "running",
        "CLI": "usage",
        "MOD": "models and comparisons",
        "HWP": "hardware profiles",
        "CRD": "skill cards",
        "ADV": "facts and advice",
        "BEN": "paired measurements",
        "DOC": "documentation",
        "EXP": "exports to other systems",
    }
)


def _table(families: Iterable[tuple[CodeEntry, ...]]) -> Mapping[str, CodeEntry]:
    rows = [row for family in families for row in family]
    table = {row.code: row for row in rows}
    assert len(table) == len(rows), "a code stands twice in the table"
    return MappingProxyType(dict(sorted(table.items())))


CODES: Mapping[str, CodeEntry] = _table(
    (
        reading.CODES,
        policy.CODES,
        policy_tests.CODES,
        capture.CODES,
        plan.CODES,
        runtime.CODES,
        usage.CODES,
        models.CODES,
        pictures.CODES,
        scaffold.CODES,
        bench.CODES,
        advice.CODES,
        hardware.CODES,
        cards.CODES,
        docs.CODES,
        export.CODES,
    )
)
