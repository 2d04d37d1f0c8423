"""`offload facts`, `offload advise` and `offload list facts`, most by facts alone, without a model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Offload, facts

EIGHT_BILLION = (
    *("--hardware", "h100-pcie5", "--dtype", "bfloat16", "--optimizer", "adamw"),
    *("--fact", "num_parameters=8030261248"),
)


def test_full_fine_tuning_that_cannot_fit_is_refused_with_the_floor(offload: Offload) -> None:
    given = facts("trainable_fraction=1", "master_weights=true")
    finished = offload("advise", *EIGHT_BILLION, *given)
    assert finished.exit_code == 4
    assert "the floor is 120 GiB" in finished.stdout
    assert "16 B x 8,030,261,248 trained" in finished.stdout
    assert "ADV910 no policy on activations makes this fit" in finished.stderr
    assert "offload the optimizer's state, 89.7 GiB" in finished.stderr
    assert finished.stdout.index("1. optimizer state") < finished.stdout.index("4. activations")


def test_adapters_whose_activations_overflow_get_a_policy_for_these(offload: Offload) -> None:
    given = facts("trainable_fraction=0.002", "out_of_memory=true", "floor_bytes=40GiB", "peak_bytes=103GiB")
    finished = offload("advise", *EIGHT_BILLION, *given)
    assert finished.exit_code == 0
    assert finished.stdout.startswith("Offload and recompute activations: ")
    assert "1. activations" in finished.stdout
    assert "tune-activation-offload" in finished.stdout
    assert "next: offload advise --model MODEL --hardware h100-pcie5" in finished.stderr


def test_what_is_not_known_is_said_with_the_way_to_give_it(offload: Offload) -> None:
    finished = offload("advise", "--format", "json", "--hardware", "h100-pcie5", *facts("micro_batch=2"))
    data = json.loads(finished.stdout)["data"]
    assert data["conclusion"] == "unknown"
    assert data["missing"]["out_of_memory"] == "measure it, then --fact out_of_memory=true (or false)"
    assert data["missing"]["peak_bytes"].startswith("give --model and --hardware, or --fact peak_bytes=")
    cards = {card["name"]: card for card in data["cards"]}
    assert cards["tune-activation-offload"]["applies"] is None
    assert "out_of_memory" in cards["tune-activation-offload"]["missing"]


def test_a_slow_run_is_sent_to_the_diagnosis_and_not_to_more_offloading(offload: Offload) -> None:
    given = facts("offload_enabled=true", "slowdown=3", "fits=false", "out_of_memory=false")
    data = json.loads(offload("advise", "--format", "json", "--hardware", "h100-pcie5", *given).stdout)[
        "data"
    ]
    applies = {card["name"]: card["applies"] for card in data["cards"]}
    assert applies["diagnose-offload-overhead"] is True
    assert applies["choose-offload"] is False


def test_facts_that_were_printed_elsewhere_stand_in_for_this_machine(
    offload: Offload, tmp_path: Path
) -> None:
    printed = json.loads(offload("facts", "--format", "json", "--hardware", "gh200").stdout)
    assert printed["data"]["facts"]["link_h2d_gbps"]["value"] == pytest.approx(415)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(printed))
    again = json.loads(offload("facts", "--format", "json", "--from", str(path)).stdout)["data"]
    values = {name: fact["value"] for name, fact in again["facts"].items()}
    assert values == {name: fact["value"] for name, fact in printed["data"]["facts"].items()}
    assert "host_available_bytes" in again["unknown"]


def test_a_command_by_itself_knows_nothing_of_the_run_s_parallelism(offload: Offload) -> None:
    unknown = json.loads(offload("facts", "--format", "json").stdout)["data"]["unknown"]
    assert {"world_size", "pipeline_parallel", "data_parallel"} <= set(unknown)


@pytest.mark.parametrize("command", ["facts", "advise"])
@pytest.mark.parametrize(
    ("words", "exit_code", "code", "hint"),
    [
        (["--fact", "pipline_parallel=2"], 2, "CLI614", "did you mean pipeline_parallel"),
        (["--fact", "pipeline_parallel=x"], 2, "CLI614", ""),
        (["--fact", "offload_mechanism=megatron"], 2, "CLI614", "framework=megatron-bridge"),
        (["--hardware", "h1000"], 3, "HWP801", "h100"),
        (["--from", "none.json"], 3, "ADV901", "offload facts --format json"),
        (["--model", "builtin:lama-tiny"], 4, "MOD701", "llama-tiny"),
    ],
)
def test_a_mistake_is_named_with_its_cure(
    offload: Offload, command: str, words: list[str], exit_code: int, code: str, hint: str
) -> None:
    finished = offload(command, "--format", "json", *words)
    answer = json.loads(finished.stdout)
    assert (finished.exit_code, answer["exit_code"]) == (exit_code, exit_code)
    assert {diagnostic["code"] for diagnostic in answer["diagnostics"]} == {code}
    assert hint in str(answer["diagnostics"][0]["message"]) + str(answer["diagnostics"][0]["hint"])


def test_every_fact_is_listed_with_its_meaning(offload: Offload) -> None:
    listed = json.loads(offload("list", "facts", "--format", "json").stdout)["data"]["facts"]
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name["pipeline_parallel"]["source"] == "configuration"
    assert "fsdp2" in by_name["framework"]["choices"]
    text = offload("list", "facts").stdout
    assert all(name in text for name in by_name)


MEGATRON = facts("framework=megatron-bridge", "pipeline_parallel=2")


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (("optimizer_offload=true", "distributed_optimizer=false"), {"required (missing)", "allowed"}),
        (("optimizer_offload=true", "distributed_optimizer=true"), {"allowed"}),
        (
            ("optimizer_offload=true", "distributed_optimizer=true", "precision_aware_optimizer=false"),
            {"allowed", "mind"},
        ),
        (("layer_activation_offload=true",), {"required (missing)", "refused"}),
    ],
    ids=["required", "allowed", "mind", "refused"],
)
def test_what_goes_together_is_labelled_by_how_grave_it_is(
    offload: Offload, given: tuple[str, ...], labels: set[str]
) -> None:
    words = ("advise", "--hardware", "h100-pcie5", *MEGATRON, *facts("optimizer=adam", *given))
    data = json.loads(offload(*words, "--format", "json").stdout)["data"]
    (card,) = (card for card in data["cards"] if card["name"] == "export-offload-policy")
    assert {interaction["label"] for interaction in card["interactions"]} == labels
    text = offload(*words).stdout
    assert all(f"  {label}  " in text for label in labels)


def test_with_pipeline_stages_in_megatron_the_headline_names_what_it_has(offload: Offload) -> None:
    words = ("advise", "--hardware", "h100-pcie5", *MEGATRON)
    text = offload(*words).stdout
    headline = text.splitlines()[0]
    usable, _, refused = headline.partition(" Not ")
    assert headline.startswith("Megatron Bridge has for this run: optimizer offload")
    assert "fine-grained activation offload" in usable
    assert "layer-level activation offload" in refused
    assert "what the system that trains can offload" in text
    rows = json.loads(offload(*words, "--format", "json").stdout)["data"]["mechanisms"]
    by_name = {row["name"]: (row["state"], row["needs"]) for row in rows}
    assert by_name["layer-level activation offload"][0] == "cannot be used"
    assert by_name["layer-level activation offload"][1].startswith("one pipeline stage")
    assert "NVTE_CPU_OFFLOAD_V1=1" in by_name["fine-grained activation offload"][1]
    one = offload("advise", "--hardware", "h100-pcie5", *facts("framework=megatron-bridge")).stdout
    assert "; not " not in one.splitlines()[0]


def test_what_the_system_refuses_of_the_configuration_is_refused_as_an_export_would(offload: Offload) -> None:
    given = facts("framework=megatron-bridge", "layer_activation_offload=true", "fine_grained_offload=true")
    answer = json.loads(offload("advise", "--hardware", "h100-pcie5", *given, "--format", "json").stdout)
    assert answer["exit_code"] == 4
    (found,) = answer["diagnostics"]
    assert (found["code"], found["severity"]) == ("EXP902", "error")
    assert "[no-fine-grained-offload]" in found["message"]
    assert answer["data"]["summary"].startswith("Megatron Bridge refuses this configuration: ")
    one = offload("advise", "--hardware", "h100-pcie5", *given[:-2])
    assert (one.exit_code, "EXP902" in one.stderr) == (0, False)


def test_unknown_facts_that_settle_most_come_first_and_the_rest_is_counted(offload: Offload) -> None:
    words = ("advise", "--hardware", "h100-pcie5", *MEGATRON)
    short, full = offload(*words).stdout, offload(*words, "--all").stdout
    listed = json.loads(offload(*words, "--format", "json").stdout)["data"]["missing"]
    assert next(iter(listed)) == "out_of_memory"
    assert f"and {len(listed) - 6} more that settle less: --all" in short
    assert "--all" not in full
    assert all(name in full for name in listed)
    assert not {"exposed_copy_fraction", "pageable_fraction", "paired_baseline"} & set(listed)
    slow = ("advise", *facts("slowdown=3", "offload_mechanism=zero_offload"))
    assert "\n  resident_fits " not in offload(*slow).stdout
    assert "\n  resident_fits " in offload(*slow, "--all").stdout


def test_measurements_of_offloading_are_asked_for_where_something_is_offloaded(offload: Offload) -> None:
    words = ("advise", "--hardware", "h100-pcie5", *facts("offload_enabled=true"), "--format", "json")
    assert "exposed_copy_fraction" in json.loads(offload(*words).stdout)["data"]["missing"]


def test_no_command_of_this_back_end_is_suggested_for_another_system(offload: Offload) -> None:
    words = ("advise", "--hardware", "h100-pcie5", *MEGATRON, "--format", "json")
    following = json.loads(offload(*words).stdout)["next"]
    assert [line for line in following if line.split()[1] in ("explain", "apply", "bench", "plan")] == []
    assert "offload export POLICY --to megatron-bridge --fact pipeline_parallel=2" in following


def test_a_slow_foreign_run_is_sent_to_a_measurement_in_its_own_loop(offload: Offload) -> None:
    given = facts("framework=deepspeed", "offload_enabled=true", "slowdown=3", "gpu_total_bytes=80GiB")
    finished = offload("advise", "--hardware", "h100-pcie5", *given)
    following = [line for line in finished.stderr.splitlines() if line.startswith("next: ")]
    assert finished.stdout.startswith("Diagnose why a step takes 3 times as long")
    assert following[:2] == [
        "next: offload skills show diagnose-offload-overhead",
        "next: offload skills show diagnose-offload-overhead --file references/measuring.md",
    ]
    assert not any("offload bench" in line for line in following)
    # Neither a plan nor an export: that would offload more.
    assert following[2:] == ["next: offload skills show offload-optimizer-state"]
    data = json.loads(offload("advise", "--format", "json", "--hardware", "h100-pcie5", *given).stdout)[
        "data"
    ]
    assert list(data["missing"])[:2] == ["paired_baseline", "warm_steps_only"]
    assert {"out_of_memory", "traceable"}.isdisjoint(data["missing"])


def test_what_was_found_stands_in_a_table_and_in_the_data(offload: Offload) -> None:
    given = facts("slowdown=3", "cpu_step_fraction=0.5", "offload_mechanism=zero_offload")
    text = offload("advise", "--hardware", "h100-pcie5", *given).stdout
    assert "what was found" in text
    assert "1. zero_optimization.offload_optimizer.ratio below 1" in text
    data = json.loads(offload("advise", "--format", "json", "--hardware", "h100-pcie5", *given).stdout)[
        "data"
    ]
    (found,) = data["findings"]
    assert found["because"] == "cpu_step_fraction 0.5"
    assert found["fixes"][0].startswith("zero_optimization.offload_optimizer.ratio")


def test_a_result_of_bench_stands_in_for_its_facts(offload: Offload) -> None:
    evidence = Path(__file__).parents[2] / "docs" / "evidence"
    result = evidence / "frontier-qwen3-30b-a3b-floor-h200.json"
    finished = offload("advise", "--from", str(result))
    assert finished.exit_code == 0
    assert finished.stdout.startswith("This is the normal price of offloading")
    assert "ADV912" in finished.stderr
    assert "is taken for another one than this" in finished.stderr


def test_of_a_bench_with_several_sides_that_offload_one_is_asked_about(offload: Offload) -> None:
    result = Path(__file__).parents[2] / "docs" / "evidence" / "frontier-llama3-8b-h200.json"
    refused = offload("advise", "--from", str(result))
    assert refused.exit_code == 3
    assert "--side: planned:43GiB, planned:40GiB" in refused.stderr
    answered = offload("advise", "--from", str(result), "--side", "planned:43GiB", "--format", "json")
    assert answered.exit_code == 0
    sides = {side["name"]: side["summary"]["ratio"] for side in json.loads(result.read_text())["sides"]}
    assert json.loads(answered.stdout)["data"]["facts"]["slowdown"]["value"] == sides["planned:43GiB"]
    unused = offload("advise", "--side", "planned:43GiB")
    assert unused.exit_code == 2
    assert "--side names one side of a bench" in unused.stderr


def test_files_of_facts_are_joined_and_asked_about_again_together(offload: Offload, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"framework": "deepspeed"}')
    (tmp_path / "two.json").write_text('{"zero_stage": 3}')
    (tmp_path / "three.json").write_text('{"zero_stage": 2}')
    words = [word for name in ("one", "two", "three") for word in ("--from", str(tmp_path / f"{name}.json"))]
    finished = offload("advise", "--format", "json", "--hardware", "h100-pcie5", *words[:4])
    answer = json.loads(finished.stdout)
    values = {name: fact["value"] for name, fact in answer["data"]["facts"].items()}
    assert (values["framework"], values["zero_stage"]) == ("deepspeed", 3)
    assert any(shlex.join(words[:4]) in line for line in answer["next"])
    refused = offload("advise", *words)
    assert refused.exit_code == 2
    assert "zero_stage is 3 in" in refused.stderr
