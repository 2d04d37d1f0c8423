"""Facts of several files are those of one run, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.errors import UsageError
from offload_runtime.fact_files import JoinedFacts, read_fact_files
from tests.test_result_facts import APPLIED, benched, side

GPU = {"gpu": "NVIDIA H200", "gpu_bytes": 141 << 30, "link_gen": 5, "link_width": 16}
MODEL = {"inputs": ["int64[1, 64]"], "num_parameters": 5, "dtype": "bfloat16", "optimizer": "adamw"}
APPLY: dict[str, Any] = {
    **APPLIED,
    **MODEL,
    "model": "builtin:llama-tiny",
    "mode": "inductor",
    "device": "cuda:0",
    "environment": GPU,
    "numa": "node 1: 12 threads on 4 CPUs, pinned pages on the node",
}
BENCH: dict[str, Any] = {
    **benched(side("balanced", 1.3, kind="policy", moved_bytes=12)),
    "model": {"spec": "builtin:llama-tiny", **MODEL},
    "mode": "inductor",
    "device": "cuda",
    "environment": GPU,
}


def joined(folder: Path, *contents: object) -> JoinedFacts:
    paths = [folder / f"{number}.json" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    return read_fact_files(paths)


@pytest.mark.parametrize("order", [(BENCH, APPLY), (APPLY, BENCH)], ids=["bench first", "apply first"])
def test_of_bench_and_apply_of_one_run_bench_gives_the_times_and_apply_the_rest(
    tmp_path: Path, order: tuple[object, ...]
) -> None:
    facts = joined(tmp_path, *order, {"pipeline_parallel": 1}).facts
    assert (facts["slowdown"], facts["warm_steps_only"]) == (1.3, True)
    assert facts["offload_step_ms"] == pytest.approx(910)
    assert (facts["stall_ms"], facts["numa_local"], facts["pcie_link_width"]) == (300.0, True, 16)
    assert facts["pipeline_parallel"] == 1


def other(result: dict[str, Any], **changed: object) -> dict[str, Any]:
    return {**result, **changed}


@pytest.mark.parametrize(
    ("one", "two", "named"),
    [
        ({"num_gpus": 8}, {"num_gpus": 4}, "num_gpus is 8 in "),
        (BENCH, {"slowdown": 3.0}, "slowdown is 1.3 in "),
        (BENCH, other(APPLY, planned_bytes=13), "planned_bytes is 12 in "),
        (
            BENCH,
            other(APPLY, model="builtin:vit-tiny"),
            "model is builtin:llama-tiny in one and builtin:vit-tiny in",
        ),
        (BENCH, other(APPLY, inputs=["int64[2, 64]"]), "inputs is "),
        (BENCH, other(APPLY, mode="graph"), "mode is inductor in one and graph in"),
        (BENCH, other(APPLY, environment={**GPU, "gpu": "NVIDIA A100"}), "gpu is NVIDIA H200 in one"),
    ],
    ids=["fact", "slowdown", "plan", "model", "inputs", "mode", "gpu"],
)
def test_files_that_do_not_belong_together_are_refused_by_name(
    tmp_path: Path, one: object, two: object, named: str
) -> None:
    with pytest.raises(UsageError) as error:
        joined(tmp_path, one, two)
    assert {found.code for found in error.value.diagnostics} == {"ADV903"}
    assert named in error.value.diagnostics[0].message


def test_a_result_of_a_machine_is_said_to_be_taken_for_another_one(tmp_path: Path) -> None:
    found = joined(tmp_path, BENCH)
    (note,) = found.notes
    assert found.is_of_another
    assert note.code == "ADV912"
    assert "accelerator, gpu_name, pcie_generation, pcie_link_width" in note.message


def test_a_result_without_a_device_leaves_this_machine_to_be_asked(tmp_path: Path) -> None:
    assert joined(tmp_path, APPLIED) == JoinedFacts(joined(tmp_path, APPLIED).facts)
    assert joined(tmp_path, {"num_gpus": 8}).notes == ()
    assert read_fact_files([]) == JoinedFacts({})
