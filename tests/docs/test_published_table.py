"""The page with the published results agrees with its file, the file with the article, and both with a small run."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "evidence"))

import published_page as page  # noqa: E402 - scripts beside their result, in no package
import published_rule as rule  # noqa: E402
import published_table as published  # noqa: E402
from published_peaks import forecast_with  # noqa: E402

from offload_runtime.hardware import load_hardware  # noqa: E402
from offload_runtime.models.resolve import ModelRequest  # noqa: E402
from offload_runtime.models.traced_model import trace_request  # noqa: E402

TEXT = (DOCS / "published-results.md").read_text()
FILE = json.loads((DOCS / "evidence" / "published-table.json").read_text())
RUNS: dict[tuple[str, int], dict[str, Any]] = {(run["model"], run["batch"]): run for run in FILE["runs"]}


@pytest.fixture(scope="module")
def small() -> dict[tuple[str, int], dict[str, Any]]:
    """Return runs of few layers: one that the policies act on, and the last, which they leave alone."""
    hardware = load_hardware(FILE["hardware"])
    runs = [
        ("llama3-8b", 1, 8192, 2),
        ("qwen3-14b", 2, 4096, 2),
        ("dsv3-16b", 1, 4096, 2),
        ("dsv3-16b", 1, 4096, 3),
    ]
    measured = {(run[0], run[3]): published.measure(published.Run(*run), hardware) for run in runs}
    # The file holds what a run wrote: compare like with like.
    return {key: json.loads(json.dumps(value)) for key, value in measured.items()}


def test_the_page_is_what_the_script_writes_from_the_file() -> None:
    assert page.render(TEXT, FILE) == TEXT


def test_every_part_that_can_be_written_is_on_the_page() -> None:
    parts = re.findall(r"<!-- generated: (\w+) -->", TEXT)
    assert sorted(parts) == sorted(page.PARTS)


def test_a_changed_count_changes_the_page() -> None:
    changed = json.loads(json.dumps(FILE))
    changed["runs"][0]["with_view_replay"]["num_offloaded"] += 1
    assert page.render(TEXT, changed) != TEXT


def test_the_file_quotes_the_article() -> None:
    assert FILE["published"] == json.loads(json.dumps(published.PUBLISHED))


@pytest.mark.parametrize(
    "run", FILE["runs"], ids=lambda run: f"{run['model']}, {run['batch']} x {run['seq']}"
)
def test_the_published_rule_gives_the_counts_of_the_article(run: dict[str, Any]) -> None:
    article, counted = FILE["published"][run["model"]], run["published_model"] or run["published_rule"]
    named = [key for key in ("num_marked", "num_moved") if key in article]
    assert {key: counted[key] for key in named} == {key: article[key] for key in named}


@pytest.mark.parametrize(
    ("model", "batch", "fits"),
    [
        ("qwen3-14b", 2, True),
        ("qwen3-14b", 4, False),
        ("dsv3-16b", 1, False),
        ("dsv3-16b", 4, True),
    ],
)
def test_one_number_of_tokens_fits_the_gigabytes_of_the_article(model: str, batch: int, fits: bool) -> None:
    run = RUNS[model, batch]
    counted = run["published_model"] or run["published_rule"]
    assert (round(counted["mib_over_1000"], 1) == FILE["published"][model]["moved_gb"]) == fits


@pytest.mark.parametrize(
    "run", FILE["runs"], ids=lambda run: f"{run['model']}, {run['batch']} x {run['seq']}"
)
def test_the_filters_lead_from_our_count_to_the_published_one(run: dict[str, Any]) -> None:
    steps = run["published_rule"]["from_ours"]
    left = [step["num_left"] for step in steps]
    gone = [sum(step["changed"].values()) for step in steps]
    assert gone == [step["num_changed"] for step in steps]
    assert left[0] == run["with_view_replay"]["num_offloaded"]
    assert [before - change for before, change in zip(left, gone[1:-1], strict=False)] == left[1:-1]
    assert left[-2] + gone[-1] == left[-1] == run["published_rule"]["num_moved"]


@pytest.mark.parametrize("how", ["with_view_replay", "without_view_replay"])
@pytest.mark.parametrize(
    "run", FILE["runs"], ids=lambda run: f"{run['model']}, {run['batch']} x {run['seq']}"
)
def test_every_candidate_leaves_or_has_a_reason_to_stay(run: dict[str, Any], how: str) -> None:
    counted = run[how]
    assert counted["num_offloaded"] + sum(counted["kept"].values()) == counted["num_candidates"]
    assert counted["num_eligible"] + sum(counted["obstacles"].values()) == counted["num_candidates"]


def test_counts_do_not_depend_on_the_number_of_tokens_and_bytes_are_proportional_to_it() -> None:
    for model, (few, many) in {"qwen3-14b": (2, 4), "dsv3-16b": (1, 4)}.items():
        one, other = RUNS[model, few], RUNS[model, many]
        for part in ("with_view_replay", "without_view_replay", "published_rule"):
            assert one[part]["bytes"] * many == other[part]["bytes"] * few
            assert {k: v for k, v in one[part].items() if k.startswith("num_")} == {
                k: v for k, v in other[part].items() if k.startswith("num_")
            }


@pytest.mark.parametrize(("model", "batch", "num_layers"), [("llama3-8b", 1, 31), ("qwen3-14b", 2, 39)])
def test_a_run_of_two_layers_gives_what_the_file_has_for_each_layer(
    small: dict[tuple[str, int], dict[str, Any]], model: str, batch: int, num_layers: int
) -> None:
    measured, whole = small[model, 2], RUNS[model, batch]
    for part, key in COUNTS:
        assert measured[part][key] * num_layers == whole[part][key], (part, key)


def test_runs_of_two_and_three_layers_give_what_the_file_has_for_a_dense_first_layer_and_experts(
    small: dict[tuple[str, int], dict[str, Any]],
) -> None:
    dense, both, whole = small["dsv3-16b", 2], small["dsv3-16b", 3], RUNS["dsv3-16b", 1]
    for part, key in (*COUNTS, ("published_model", "num_marked"), ("published_model", "num_moved")):
        first, experts = dense[part][key], both[part][key] - dense[part][key]
        assert first + 25 * experts == whole[part][key], (part, key)


COUNTS = [
    ("with_view_replay", "num_offloaded"),
    ("with_view_replay", "bytes"),
    ("without_view_replay", "num_offloaded"),
    ("without_view_replay", "bytes"),
    ("published_rule", "num_marked"),
    ("published_rule", "num_moved"),
    ("published_rule", "bytes"),
]


def test_a_forecast_of_what_the_policy_offloads_is_the_forecast_of_its_plan() -> None:
    hardware = load_hardware(FILE["hardware"])
    traced = trace_request(ModelRequest("builtin:llama3-8b", layers=2), mode="graph")
    planned = published.plan(traced, published.POLICY, hardware)
    offloaded = [index for index, fate in enumerate(planned.selected.fates) if fate == "offload"]
    assert offloaded
    assert forecast_with(planned, offloaded, hardware) == planned.forecast


def test_flex_attention_has_two_results_that_are_marked_of_which_one_is_read() -> None:
    assert rule.attention_as_published(num_heads=4, qk_dim=48, v_dim=32) == rule.Outputs(
        num_marked=2, num_moved=1
    )


def test_a_trace_with_dead_code_holds_both_results_of_top_k() -> None:
    assert rule.topk_as_published() == 2
