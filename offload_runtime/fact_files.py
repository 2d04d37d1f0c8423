"""Facts of several files as those of one run: results of bench and apply, and facts that were printed or written.

Files that measured something else, or that say different things of one fact, are not joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.fact_sheet import FactFile, open_fact_file
from offload_runtime.facts import FACTS
from offload_runtime.predicates import Scalar
from offload_runtime.result_facts import BENCH_FIRST

__all__ = ["JoinedFacts", "read_fact_files"]


@dataclass(frozen=True, slots=True)
class JoinedFacts:
    """Facts of all files; ``is_of_another`` tells that they speak of a machine, which is not taken for this one."""

    facts: dict[str, Scalar]
    is_of_another: bool = False
    notes: tuple[Diagnostic, ...] = ()


def read_fact_files(paths: Sequence[Path], side: str | None = None) -> JoinedFacts:
    """Read files as `open_fact_file` does, and return what they say together; ``side`` is one of a bench.

    What a bench timed stands before what an apply did. Raises UsageError (ADV903) for every fact that two files give
    different values, and for results of different models, inputs or devices, and (CLI603) for a side without a bench.
    """
    files = [open_fact_file(path, side) for path in paths]
    if side is not None and not any(file.is_bench for file in files):
        message = "--side names one side of a bench, and no result of a bench is given"
        raise UsageError(Diagnostic("CLI603", "error", message, hint="give the result with --from FILE"))
    problems = [problem for pair in combinations(files, 2) for problem in _problems(*pair)]
    if problems:
        raise UsageError(*problems)
    joined: dict[str, Scalar] = {}
    for file in sorted(files, key=lambda file: file.is_bench):
        joined |= file.facts
    about = [file for file in files if _of_machine(file)]
    return JoinedFacts(joined, bool(about), tuple(_note(file) for file in about if file.subject))


def _problems(one: FactFile, other: FactFile) -> list[Diagnostic]:
    differing = [
        f"{name} is {one.subject[name]} in one and {other.subject[name]} in the other"
        for name in one.subject
        if name in other.subject and one.subject[name] != other.subject[name]
    ]
    where = f"{one.path} and {other.path}"
    if differing:
        message = f"{where} are results of different runs: {'; '.join(differing)}"
        return [Diagnostic("ADV903", "error", message, hint="ask about each of them by itself")]
    # Bench and apply of one run never time exactly the same.
    settled = BENCH_FIRST if one.subject and other.subject and one.is_bench != other.is_bench else ()
    return [
        Diagnostic(
            "ADV903",
            "error",
            f"{name} is {one.facts[name]} in {one.path} and {other.facts[name]} in {other.path}",
            hint="leave one of the files out, or take the fact out of one",
        )
        for name in one.facts
        if name in other.facts and name not in settled and one.facts[name] != other.facts[name]
    ]


def _of_machine(file: FactFile) -> list[str]:
    return [name for name in file.facts if FACTS[name].source == "machine"]


def _note(file: FactFile) -> Diagnostic:
    message = (
        f"the machine of {file.path} is taken for another one than this, as a result does not say that it was measured "
        f"here; of the machine it gives {', '.join(_of_machine(file))}, and this one is not asked for the rest"
    )
    hint = "on the machine that it was measured on: `offload facts` prints the rest, to be given with --fact"
    return Diagnostic("ADV912", "note", message, hint=hint)
