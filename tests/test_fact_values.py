"""Values of facts are read in the unit of the table, and a condition that could never decide is found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from offload_runtime.document import document_from_data
from offload_runtime.fact_values import choice_hint, fact_hint, fact_problems, parse_fact, wrong_value
from offload_runtime.facts import FACTS
from offload_runtime.policy_reading import read_predicate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("pipeline_parallel=2", 2),
        ("gpu_total_bytes=80GB", 80_000_000_000),
        ("gpu_total_bytes=1.5GiB", 3 << 29),
        ("gpu_total_bytes=85899345920", 80 << 30),
        ("offload_fraction=25%", 0.25),
        ("offload_fraction=0.25", 0.25),
        ("slowdown=3", 3.0),
        ("num_parameters=8e9", 8_000_000_000),
        ("cuda_graphs=true", True),
        ("framework=deepspeed", "deepspeed"),
        ("gpu_name=NVIDIA H200=x", "NVIDIA H200=x"),
    ],
)
def test_a_value_is_read_in_the_unit_of_its_fact(text: str, value: object) -> None:
    assert parse_fact(text) == (text.partition("=")[0], value)
    assert type(parse_fact(text)[1]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipeline_parallel", "NAME=VALUE"),
        ("pipline_parallel=2", "did you mean pipeline_parallel"),
        ("moon=full", "offload list facts"),
        ("pipeline_parallel=1.5", "a whole number, not '1.5'"),
        ("pipeline_parallel=-1", "a whole number"),
        ("pipeline_parallel=true", "a whole number"),
        ("gpu_total_bytes=large", "a size such as 80GiB"),
        ("gpu_total_bytes=80gb", "a size such as 80GiB"),
        ("offload_fraction=1.5", "a number from 0 to 1"),
        ("offload_fraction=150%", "a number from 0 to 1"),
        ("cuda_graphs=yes", "true or false"),
        ("slowdown=nan", "a number in times"),
        ("slowdown=inf", "a number in times"),
        pytest.param(f"gpu_total_bytes={'9' * 400}", "a size such as 80GiB", id="bytes without end"),
        pytest.param(
            f"gpu_total_bytes={'9' * 5000}", "a size such as 80GiB", id="more digits than Python reads"
        ),
        ("gpu_total_bytes=99999PiB", "a size such as 80GiB"),
        ("num_parameters=1e30", "a whole number"),
        ("framework=megatron", "one of pytorch, torchtitan, megatron-bridge"),
        ("gpu_name=", "a text"),
    ],
)
def test_what_is_no_value_of_a_fact_is_refused_with_what_would_be(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_fact(text)


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ({"fact": "pipeline_paralel", "le": 1}, "name"),
        ({"not": {"any": [{"fact": "num_gpus", "ge": 2}, {"fact": "gpus", "ge": 2}]}}, "name"),
        ({"fact": "framework", "is": "jax"}, "value"),
        ({"fact": "framework", "in": ["pytorch", "jax"]}, "value"),
        ({"fact": "framework", "gt": 1}, "value"),
        ({"fact": "is_moe", "ge": 1}, "value"),
        ({"fact": "is_moe", "is": "true"}, "value"),
        ({"fact": "num_layers", "is": 1.5}, "value"),
        ({"fact": "num_layers", "le": "8GiB"}, "value"),
        ({"fact": "gpu_free_bytes", "ge": "8"}, None),
        ({"fact": "gpu_free_bytes", "ge": "8GiB"}, None),
        ({"fact": "offload_fraction", "ge": "50%"}, "value"),
        ({"fact": "offload_fraction", "ge": 0.5}, None),
        ({"fact": "offload_fraction", "ge": 50}, "value"),
        ({"all": [{"fact": "is_moe", "is": True}, {"fact": "framework", "in": ["pytorch"]}]}, None),
    ],
)
def test_a_comparison_that_could_never_decide_is_a_problem(condition: Any, kind: str | None) -> None:
    predicate = read_predicate(document_from_data(condition).root)
    assert predicate is not None
    assert [problem.kind for problem in fact_problems(predicate)] == ([] if kind is None else [kind])
    assert all(problem.hint for problem in fact_problems(predicate))


def test_the_closest_name_is_suggested_and_the_list_where_none_is_close() -> None:
    assert fact_hint("gpu_free_byte") == "did you mean gpu_free_bytes?"
    assert fact_hint("colour") == "`offload list facts` lists them all"


def test_a_value_that_is_not_listed_is_other_where_that_is() -> None:
    assert choice_hint(FACTS["optimizer"], "muon") == "any optimizer that is not listed is other"
    assert choice_hint(FACTS["optimizer"], "adamv") == "did you mean adam?"
    assert choice_hint(FACTS["dtype"], "qqq") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -1])
@pytest.mark.parametrize("name", ["num_parameters", "gpu_total_bytes", "slowdown", "offload_fraction"])
def test_a_number_that_no_arithmetic_bears_is_no_value_wherever_it_comes_from(
    name: str, value: float
) -> None:
    assert wrong_value(FACTS[name], value) is not None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("offload_mechanism=megatron", "give framework=megatron-bridge"),
        ("offload_mechanism=Megatron-Bridge", "give framework=megatron-bridge"),
        ("offload_mechanism=cpu_offloading", "did you mean megatron_layers?"),
        ("copy_fraction=1.3", "time in which copies of both directions run counts once"),
        ("offload_mechanism=deepspeed", "did you mean zero_offload?"),
        ("offload_mechanism=fsdp", "fsdp1 (FullyShardedDataParallel) or fsdp2 (fully_shard)"),
        ("offload_mechanism=save_on_cpu", "did you mean activation_hooks?"),
        ("offload_mechanism=save-on-cpu", "did you mean activation_hooks?"),
        ("offload_mechanism=zero-offload", "did you mean zero_offload?"),
        ("framework=megatron", "did you mean megatron-bridge?"),
        ("framework=fsdp", "did you mean fsdp2?"),
        ("optimizer=AdamW", "did you mean adamw?"),
    ],
)
def test_a_word_that_people_have_for_a_choice_is_told_the_choice(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        parse_fact(text)


def test_what_resembles_no_choice_gets_no_guess() -> None:
    with pytest.raises(ValueError, match="is one of") as error:
        parse_fact("offload_mechanism=xyzzy")
    assert "mean" not in str(error.value)


def test_every_choice_that_a_hint_names_can_be_given() -> None:
    for text in ("megatron", "deepspeed", "fsdp", "save_on_cpu", "cpuoffloadpolicy", "offload"):
        hint = choice_hint(FACTS["offload_mechanism"], text)
        assert hint is not None
        for name, value in re.findall(r"([a-z_]+)=([a-z-]+)", hint):
            assert parse_fact(f"{name}={value}")[0] == name
        for value in re.findall(r"mean ([a-z_0-9]+)|or ([a-z_]+[0-9])", hint):
            assert parse_fact(f"offload_mechanism={''.join(value)}")
