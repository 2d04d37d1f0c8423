"""Values of facts: read from ``NAME=VALUE``, and what a condition compares them with, checked against the table."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from offload_runtime.facts import BYTES, FACTS, SHARE, Fact
from offload_runtime.predicates import Comparison, Predicate, Scalar, comparisons
from offload_runtime.units import parse_percent, parse_size, size_hint

__all__ = ["FactProblem", "choice_hint", "fact_hint", "fact_problems", "parse_fact", "wrong_value"]

MAX_NUMBER = 1 << 63

_MEGATRON = (
    "did you mean megatron_optimizer, megatron_layers (cpu_offloading) or megatron_fine_grained? Where that is not "
    "known, give framework=megatron-bridge"
)
_FSDP = "did you mean fsdp1 (FullyShardedDataParallel) or fsdp2 (fully_shard)?"
_ZERO = (
    "did you mean zero_offload? DeepSpeed on a local SSD is nvme, and DeepSpeed as such framework=deepspeed"
)
_HOOKS = "did you mean activation_hooks? save_on_cpu and other saved-tensor hooks are that"
# Words that people have for a choice and whose spelling is no way to it, written in small letters with underscores.
_MEANT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "offload_mechanism": {
            **dict.fromkeys(("megatron", "megatron_bridge", "megatron_core", "megatron_lm"), _MEGATRON),
            **dict.fromkeys(("fsdp", "cpuoffload", "cpu_offload", "fully_sharded"), _FSDP),
            "cpuoffloadpolicy": "did you mean fsdp2?",
            "cpu_offloading": "did you mean megatron_layers?",
            "optimizer_cpu_offload": "did you mean megatron_optimizer?",
            **dict.fromkeys(("deepspeed", "zero", "zero2", "zero3", "zero_infinity"), _ZERO),
            **dict.fromkeys(("save_on_cpu", "saved_tensors_hooks", "hooks"), _HOOKS),
            **dict.fromkeys(("offload", "torch_compile"), "did you mean offload_runtime?"),
        },
        "framework": {
            **dict.fromkeys(
                ("megatron", "megatron_core", "megatron_lm", "nemo"), "did you mean megatron-bridge?"
            ),
            "fsdp": "did you mean fsdp2? FullyShardedDataParallel is framework=pytorch with offload_mechanism=fsdp1",
            **dict.fromkeys(("hf", "huggingface", "trainer"), "did you mean transformers?"),
            **dict.fromkeys(("zero", "zero_offload"), "did you mean deepspeed?"),
        },
    }
)
# Shares that are easily measured as more than the whole, and what was counted twice.
_ABOVE_ONE: Mapping[str, str] = MappingProxyType(
    {
        "copy_fraction": "time in which copies of both directions run counts once; a sum of the rows of a profile "
        "counts it twice (references/measuring.md of diagnose-offload-overhead)"
    }
)


@dataclass(frozen=True)
class FactProblem:
    """What is wrong with one comparison: ``kind`` is ``name`` (no such fact) or ``value`` (never true of it)."""

    comparison: Comparison
    kind: Literal["name", "value"]
    message: str
    hint: str


def fact_hint(name: str) -> str:
    """Say which fact may have been meant by ``name``, which is none."""
    close = difflib.get_close_matches(name, FACTS, 1, 0.6)
    return f"did you mean {close[0]}?" if close else "`offload list facts` lists them all"


def fact_problems(predicate: Predicate) -> tuple[FactProblem, ...]:
    """Return every comparison of ``predicate`` that names no fact, or that the fact can never meet or miss."""
    found = (_problem(comparison) for comparison in comparisons(predicate))
    return tuple(problem for problem in found if problem is not None)


def parse_fact(text: str) -> tuple[str, Scalar]:
    """Read ``NAME=VALUE`` as ``--fact`` takes it; sizes and percentages become bytes and shares.

    Raises ValueError, with the cure in its message, for an unknown name or a value that the fact cannot have.
    """
    name, equals, written = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as pipeline_parallel=1")
    fact = FACTS.get(name)
    if fact is None:
        raise ValueError(f"there is no fact {name!r}; {fact_hint(name)}")
    value = _read(fact, written)
    wanted = wrong_value(fact, value)
    if wanted is not None:
        hint = choice_hint(fact, value)
        raise ValueError(f"{name} is {wanted}, not {written!r}" + (f"; {hint}" if hint else ""))
    return name, value


def _read(fact: Fact, written: str) -> Scalar:
    if fact.type == "text":
        return written
    if fact.type == "boolean":
        return {"true": True, "false": False}.get(written, written)
    number = _number(fact, written)
    if number is None:
        return written
    return int(number) if fact.type == "integer" and float(number).is_integer() else number


def _number(fact: Fact, value: Scalar) -> float | int | None:
    """Return the number that ``value`` is or writes, in the fact's unit; None where it is none.

    Infinities, NaN and what exceeds 64 bits are none: no machine has that many of anything, and arithmetic would stop
    at them.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if -MAX_NUMBER < value < MAX_NUMBER else None
    try:
        if fact.unit == BYTES:
            return _number(fact, int(value) if value.isdecimal() else parse_size(value))
        if fact.unit == SHARE and value.endswith("%"):
            return float(parse_percent(value))
        return _number(fact, float(value))
    except ValueError:
        return None


def _wanted(fact: Fact) -> str:
    if fact.unit == BYTES:
        return "a size such as 80GiB, or a whole number of bytes"
    if fact.unit == SHARE:
        return "a number from 0 to 1, or a percentage such as 35%"
    count = "a whole number" if fact.type == "integer" else "a number"
    return count if fact.unit is None else f"{count} in {fact.unit}"


def _problem(comparison: Comparison) -> FactProblem | None:
    fact = FACTS.get(comparison.fact)
    if fact is None:
        hint = fact_hint(comparison.fact)
        return FactProblem(comparison, "name", f"there is no fact {comparison.fact!r}", hint)
    if comparison.operator not in ("is", "in") and not fact.has_order:
        message = f"{fact.name} has no order: {comparison.operator} cannot be asked of it"
        return FactProblem(comparison, "value", message, "write is, or in")
    values = comparison.value if isinstance(comparison.value, tuple) else (comparison.value,)
    for value in values:
        # A condition compares numbers and sizes: a share that is written as a percentage would be a text.
        is_percentage = fact.unit == SHARE and isinstance(value, str)
        if is_percentage or wrong_value(fact, value) is not None:
            wanted = "a number from 0 to 1" if fact.unit == SHARE else wrong_value(fact, value)
            return FactProblem(
                comparison, "value", f"{fact.name} is {wanted}, never {value!r}", _value_hint(fact, value)
            )
    return None


def _value_hint(fact: Fact, value: Scalar) -> str:
    if fact.unit == BYTES:
        return size_hint(value)
    return choice_hint(fact, value) or f"such as {fact.example}"


def choice_hint(fact: Fact, value: Scalar) -> str | None:
    """Say what may have been meant by ``value``, which the fact never has; None where nobody can tell."""
    number = _number(fact, value)
    if fact.name in _ABOVE_ONE and number is not None and number > 1:
        return _ABOVE_ONE[fact.name]
    word = str(value).lower().replace("-", "_").replace(" ", "_").replace(".", "_")
    meant = _MEANT.get(fact.name, {}).get(word)
    if meant is not None:
        return meant
    spelt = {choice.replace("-", "_"): choice for choice in fact.choices}
    close = difflib.get_close_matches(word, spelt, 1, 0.6)
    if close:
        return f"did you mean {spelt[close[0]]}?"
    return f"any {fact.name} that is not listed is other" if "other" in fact.choices else None


def wrong_value(fact: Fact, value: Scalar) -> str | None:
    """Return None where ``value`` can be the fact's value, else what its values are."""
    if fact.choices:
        return None if value in fact.choices else f"one of {', '.join(fact.choices)}"
    if fact.type == "boolean":
        return None if isinstance(value, bool) else "true or false"
    if fact.type == "text":
        return None if isinstance(value, str) and value else "a text"
    number = _number(fact, value)
    if number is None or number < 0 or (fact.unit == SHARE and number > 1):
        return _wanted(fact)
    whole = fact.type != "integer" or float(number).is_integer()
    return None if whole else _wanted(fact)
