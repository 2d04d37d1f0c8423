"""The commands that `offload advise` suggests next: they exist, carry what was given, and lead on."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from offload_runtime.cli.command_lookup import command_problem
from tests.cli.conftest import Offload, facts


@pytest.mark.parametrize(
    "given",
    [
        facts("offload_enabled=true", "slowdown=3"),
        facts("out_of_memory=true", "framework=megatron-bridge", "pipeline_parallel=4", "optimizer=adam"),
        facts("fits=false", "resident_fits=true", "floor_fits=true", "traceable=true", "framework=pytorch"),
    ],
    ids=str,
)
def test_the_next_commands_exist(offload: Offload, given: list[str]) -> None:
    finished = offload("advise", "--format", "json", "--hardware", "h100-pcie5", *given)
    following = json.loads(finished.stdout)["next"]
    assert any(line.startswith("offload skills show") for line in following)
    assert {line: command_problem(line) for line in following} == dict.fromkeys(following)


def test_one_plan_is_suggested_and_it_carries_the_slowdown_that_is_allowed(offload: Offload) -> None:
    words = (
        "advise",
        "--model",
        "builtin:llama-tiny",
        "--layers",
        "1",
        "--hardware",
        "h100-pcie5",
    )
    given = facts("out_of_memory=true", "max_step_overhead=0.05", "gpu_total_bytes=16MiB")
    following = json.loads(offload(*words, *given, "--format", "json").stdout)["next"]
    plans = [line for line in following if line.startswith("offload plan fit")]
    assert plans == [
        "offload plan fit --model builtin:llama-tiny --layers 1 --hardware h100-pcie5 "
        "--set limits.device_peak=15MiB --set limits.step_overhead=5%"
    ]


def test_a_card_s_plan_keeps_to_the_slowdown_too(offload: Offload) -> None:
    given = facts(
        "fits=false", "resident_fits=true", "floor_fits=true", "traceable=true", "max_step_overhead=0.05"
    )
    finished = offload("advise", "--format", "json", "--hardware", "h100-pcie5", *given)
    plans = [line for line in json.loads(finished.stdout)["next"] if line.startswith("offload plan fit")]
    assert len(plans) == 1
    assert plans[0].endswith("--set limits.step_overhead=5%")


@pytest.mark.parametrize(
    ("given", "conclusion", "limit"),
    [
        (("out_of_memory=false",), "nothing", None),
        (("out_of_memory=true",), "activations", "below"),
        (("out_of_memory=true", "compiled=true"), "activations", "below"),
        (("out_of_memory=true", "gpu_total_bytes=16MiB"), "activations", "94 %"),
    ],
    ids=["fits", "overflows though predicted to fit", "overflows compiled", "does not fit"],
)
def test_conclusion_steps_and_next_command_agree(
    offload: Offload, given: tuple[str, ...], conclusion: str, limit: str | None
) -> None:
    words = ("advise", "--model", "builtin:llama-tiny", "--layers", "1", "--hardware", "h100-pcie5")
    answer = json.loads(offload(*words, *facts(*given), "--format", "json").stdout)
    data, plans = answer["data"], [line for line in answer["next"] if line.startswith("offload plan fit")]
    assert data["conclusion"] == conclusion
    assert data["compile_first"] is (given == ("out_of_memory=true",))
    assert [line for line in answer["next"] if "--peer=eager" in line] == []  # it is what ran out of memory
    if limit == "below":
        assert answer["next"][0] == plans[0]
    other_mode = f"offload advise {shlex.join(words[1:])} --mode inductor {shlex.join(facts(*given))}"
    assert (other_mode in answer["next"]) is (limit == "94 %")
    assert {line: command_problem(line) for line in answer["next"]} == dict.fromkeys(answer["next"])
    if limit is None:
        assert (data["order"], plans) == ([], [])
        return
    assert "0 B have to go" not in data["order"][0]["why"]
    assert "have to go" in data["order"][0]["why"]
    (asked,) = (word for word in plans[0].split() if word.startswith("limits.device_peak="))
    num_bytes = int(asked.removeprefix("limits.device_peak=").removesuffix("MiB")) << 20
    known = {name: fact["value"] for name, fact in data["facts"].items()}
    assert num_bytes < known["peak_bytes"]
    assert (data["device_peak_bytes"] == num_bytes) is (limit == "below")


def test_a_plan_that_is_suggested_counts_the_master_weights_that_were_given(offload: Offload) -> None:
    words = ("advise", "--model", "builtin:llama-tiny", "--layers", "1", "--hardware", "h100-pcie5")
    given = facts("out_of_memory=true", "compiled=true", "master_weights=true")
    lines = json.loads(offload(*words, *given, "--format", "json").stdout)["next"]
    plans = [line for line in lines if line.startswith("offload plan")]
    assert plans
    assert all("--master-weights" in line for line in plans)
    assert {line: command_problem(line) for line in lines} == dict.fromkeys(lines)
    plain = json.loads(offload(*words, *given[:4], "--format", "json").stdout)["next"]
    assert plain == [line.replace(" --master-weights", "") for line in lines]


def test_state_that_another_system_keeps_is_planned_without_and_not_added_up(offload: Offload) -> None:
    words = ("advise", "--model", "builtin:llama-tiny", "--layers", "1", "--hardware", "h100-pcie5")
    given = facts("out_of_memory=true", "compiled=true", "master_weights=true", "optimizer_offload=true")
    answer = json.loads(offload(*words, "--optimizer", "adamw", *given, "--format", "json").stdout)
    plans = [line for line in answer["next"] if line.startswith("offload plan")]
    assert plans
    assert all("--optimizer none" in line and "--master-weights" not in line for line in plans)
    lines = {line["label"]: line for section in answer["data"]["arithmetic"] for line in section["lines"]}
    assert re.fullmatch(
        r"[\d.]+ MiB parameters \+ [\d.]+ MiB gradients, less what is offloaded already of optimizer state",
        lines["resident"]["expression"],
    )


def test_no_plan_is_suggested_where_none_lowers_the_peak(offload: Offload) -> None:
    words = (
        "advise",
        "--model",
        "builtin:llama-tiny",
        "--layers",
        "1",
        "--seq",
        "16",
        "--hardware",
        "h100-pcie5",
    )
    answer = json.loads(offload(*words, *facts("out_of_memory=true"), "--format", "json").stdout)
    data = answer["data"]
    assert (data["conclusion"], data["order"], data["device_peak_bytes"]) == ("unknown", [], None)
    assert [line for line in answer["next"] if line.startswith("offload plan")] == []


@pytest.mark.parametrize("hardware", [(), ("--hardware", "h200-pcie5")])
def test_a_smaller_device_than_the_profile_s_is_one_option(
    offload: Offload, hardware: tuple[str, ...]
) -> None:
    words = (*hardware, "--device-memory", "80GB")
    printed = json.loads(offload("facts", *words, "--format", "json").stdout)
    known = printed["data"]["facts"]["gpu_total_bytes"]
    assert (known["value"], known["origin"]) == (80_000_000_000, "given")
    assert printed["next"] == [" ".join(("offload", "advise", *words))]
    following = json.loads(offload("advise", *words, "--format", "json").stdout)["next"]
    assert all("--device-memory 80GB" in line for line in following if "MODEL" in line.split())


def test_two_sizes_of_one_device_are_a_usage_error(offload: Offload) -> None:
    finished = offload("advise", "--device-memory", "80GB", *facts("gpu_total_bytes=80GiB"))
    assert finished.exit_code == 2
    assert "CLI614" in finished.stderr


def test_who_names_a_mechanism_alone_is_asked_for_the_slowdown_first(offload: Offload) -> None:
    words = ("advise", "--hardware", "h100-pcie5", *facts("offload_mechanism=zero_offload"))
    answer = json.loads(offload(*words, "--format", "json").stdout)
    assert next(iter(answer["data"]["missing"])) == "slowdown"
    assert "slowdown=3" in answer["data"]["summary"]
    assert "offload_mechanism" not in answer["data"]["missing"]
    assert answer["next"] == [
        "offload skills show diagnose-offload-overhead --file references/measuring.md",
        "offload advise --fact slowdown=SLOWDOWN --fact offload_mechanism=zero_offload "
        "--fact paired_baseline=true --fact warm_steps_only=true",
    ]
    short_of_memory = json.loads(offload(*words, *facts("out_of_memory=true"), "--format", "json").stdout)
    assert short_of_memory["next"][0].startswith("offload advise --model MODEL")


DONE = facts(
    *(
        "fits=false",
        "slowdown=3",
        "offload_mechanism=zero_offload",
        "paired_baseline=true",
        "warm_steps_only=true",
    ),
    *("exposed_copy_fraction=0.01", "cpu_step_fraction=0.5", "pageable_fraction=0", "gpu_utilization=0.9"),
    *("memory_headroom_fraction=0.1", "numa_local=true", "pcie_link_width=16", "pcie_generation=5"),
    *("host_cpu_fraction=0.5", "optimizer_offload=true", "offload_fraction=1"),
)


def test_where_every_check_is_done_the_first_fix_is_measured_again(offload: Offload) -> None:
    answer = json.loads(offload("advise", "--hardware", "h100-pcie5", *DONE, "--format", "json").stdout)
    fix = answer["data"]["findings"][0]["fixes"][0]
    assert answer["data"]["summary"].endswith(f"Apply the first fix, {fix}; then measure the pair again.")
    assert answer["next"][0].startswith(
        "offload advise --fact slowdown=SLOWDOWN --fact offload_mechanism=zero_offload"
    )
    assert "cpu_step_fraction" not in answer["next"][0]  # measured before the fix
    # What a fix may change is asked again, and the rest is carried over.
    assert "--fact offload_fraction=OFFLOAD_FRACTION" in answer["next"][0]
    assert "--fact optimizer_offload=true" in answer["next"][0]
    assert "--fact fits=false" in answer["next"][0]
    assert "--fact numa_local=true --fact pcie_generation=5 --fact pcie_link_width=16" in answer["next"][0]
    assert "offload skills show offload-optimizer-state" in answer["data"]["summary"]
    assert answer["next"][1] == "offload skills show offload-optimizer-state"
    assert not any("measuring.md" in line for line in answer["next"])
    open_one = json.loads(
        offload("advise", "--hardware", "h100-pcie5", *DONE[:-6], "--format", "json").stdout
    )
    assert any("measuring.md" in line for line in open_one["next"])


def test_no_command_that_follows_a_refusal_is_refused_again(offload: Offload) -> None:
    given = facts("framework=megatron-bridge", "pipeline_parallel=4", "layer_activation_offload=true")
    answer = json.loads(offload("advise", "--hardware", "h100-pcie5", *given, "--format", "json").stdout)
    assert answer["exit_code"] == 4
    assert "offload export POLICY --to megatron-bridge --fact pipeline_parallel=4" in answer["next"]
    assert not any("layer_activation_offload=true" in line for line in answer["next"])


def test_no_command_leads_to_a_policy_that_is_not_advised(offload: Offload) -> None:
    words = ("advise", "--model", "builtin:llama-tiny", "--layers", "1", "--hardware", "h100-pcie5")
    given = facts("out_of_memory=true", "gpu_total_bytes=16MiB", "framework=pytorch")
    following = json.loads(offload(*words, *given, "--format", "json").stdout)["next"]
    (explained,) = (line for line in following if line.startswith("offload explain"))
    assert explained.startswith("offload explain fit --model builtin:llama-tiny --layers 1 ")
    assert "--hardware h100-pcie5 --set limits.device_peak=15MiB" in explained
    assert not any("sac-default" in line for line in following)


def test_a_raised_limit_is_a_warning_and_no_refusal(offload: Offload) -> None:
    given = facts("resident_bytes=20GiB", "peak_bytes=100GiB", "floor_bytes=77GiB", "gpu_total_bytes=80GiB")
    finished = offload("advise", "--hardware", "h100-pcie5", *given, *facts("framework=pytorch"))
    assert finished.exit_code == 0
    assert "ADV913 warning: the floor of 77 GiB is over the 75.2 GiB" in finished.stderr
    assert "what would leave more room" in finished.stdout
    assert "tune-activation-offload    applies" in finished.stdout
    assert "not enough by itself" not in finished.stdout


@pytest.mark.parametrize(
    ("given", "following"),
    [
        (
            facts("slowdown=3", "offload_mechanism=zero_offload", "fits=true"),
            "offload advise --fact offload_mechanism=none --fact out_of_memory=OUT_OF_MEMORY",
        ),
        (
            facts("slowdown=3", "framework=fsdp2", "offload_mechanism=fsdp2", "fits=true"),
            "offload advise --fact offload_mechanism=none --fact out_of_memory=OUT_OF_MEMORY",
        ),
        (
            facts("slowdown=1.0", "offload_mechanism=fsdp2", "paired_baseline=true")
            + facts("warm_steps_only=true", "gpu_utilization=0.4", "memory_headroom_fraction=0.01"),
            "offload advise --fact slowdown=SLOWDOWN --fact offload_mechanism=fsdp2 --fact paired_baseline=true "
            "--fact warm_steps_only=true",
        ),
    ],
    ids=["it fits without", "another system's fits without", "full with and without"],
)
def test_after_a_fix_that_needs_no_diagnosis_it_is_measured_again(
    offload: Offload, given: list[str], following: str
) -> None:
    answer = json.loads(offload("advise", "--hardware", "h100-pcie5", *given, "--format", "json").stdout)
    assert answer["data"]["findings"]
    assert answer["next"] == [following]


def test_what_was_measured_is_kept_while_nothing_was_fixed(offload: Offload) -> None:
    given = facts("pageable_fraction=0.5", "offload_mechanism=fsdp2")
    answer = json.loads(offload("advise", *given, "--format", "json").stdout)
    assert answer["next"][-1] == (
        "offload advise --fact slowdown=SLOWDOWN --fact pageable_fraction=0.5 --fact offload_mechanism=fsdp2 "
        "--fact paired_baseline=true --fact warm_steps_only=true"
    )


def test_what_a_report_said_is_read_again_from_the_next_one(offload: Offload, tmp_path: Path) -> None:
    report = tmp_path / "facts.json"
    report.write_text('{"offload_mechanism": "offload_runtime", "mode": "graph", "num_graphs": 1}')
    answer = json.loads(
        offload("advise", "--from", str(report), *facts("slowdown=3"), "--format", "json").stdout
    )
    assert answer["next"][0] == f"offload advise --from {report} --fact slowdown=SLOWDOWN"


def test_a_profile_that_is_given_as_a_fact_is_read_like_the_option(offload: Offload) -> None:
    slow = facts("slowdown=3", "offload_mechanism=zero_offload", "pcie_generation=4")
    as_fact = offload("advise", *slow, *facts("hardware=h100-pcie5")).stdout
    as_option = offload("advise", "--hardware", "h100-pcie5", *slow).stdout
    assert "the link runs at a low generation" in as_fact
    assert as_fact == as_option
    assert offload("advise", *facts("hardware=h1000")).exit_code == 3
