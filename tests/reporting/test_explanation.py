import re

import pytest

from offload_runtime.record import LayerRow, Report
from offload_runtime.reporting.explanation import Grouping, explanation_data, render_explanation
from tests.reporting.records import KIB, graph_report, report, verdict

LAYERS = (LayerRow(0, "model.layers.0"), LayerRow(1, "model.layers.1"))


@pytest.fixture
def small() -> Report:
    return report(
        graph_report(
            verdict("mm", "offload", "heavy", 0, 8 * KIB, "largest first"),
            verdict("mm_1", "save", "heavy", 1, 16 * KIB, "in the last layer"),
            verdict("embedding", "recompute", None, None, 2 * KIB),
            layers=LAYERS,
        )
    )


def test_the_summary_comes_first(small: Report) -> None:
    first = render_explanation(small, "builtin:llama-tiny").splitlines()[0]
    assert first == (
        "small on builtin:llama-tiny, mode graph: 1 of 3 activations offloaded, 8 KiB each step, 1 graph"
    )


@pytest.mark.parametrize(
    ("by", "row"),
    [
        ("rule", "heavy | offload | 1 | 8 KiB"),
        ("layer", "0 | offload | 1 | 8 KiB | heavy"),
        (
            "tensor",
            "mm | aten.mm.default | matmul | layers.0.mlp | 0 | 8 KiB | offload | heavy | largest first",
        ),
    ],
)
def test_each_grouping_shows_its_rows(small: Report, by: Grouping, row: str) -> None:
    lines = [
        " | ".join(re.split(" {2,}", line.strip()))
        for line in render_explanation(small, "m", by=by).splitlines()
    ]
    assert row in lines


def test_the_layer_table_shows_what_the_ids_stand_for(small: Report) -> None:
    assert "0  model.layers.0" in render_explanation(small, "m")


def test_a_limit_shows_the_largest_tensors_and_counts_the_rest(small: Report) -> None:
    text = render_explanation(small, "m", by="tensor", limit=1)
    assert "mm_1" in text
    assert "embedding" not in text
    assert "... and 2 more" in text


def test_several_graphs_are_told_apart() -> None:
    two = report(graph_report(verdict("a")), graph_report(verdict("b"), graph=1))
    text = render_explanation(two, "m", by="tensor")
    assert "2 graphs" in text
    assert [line.split()[0] for line in text.splitlines() if " aten.mm.default " in line] == ["0", "1"]


def test_the_data_holds_every_tensor_with_its_keys(small: Report) -> None:
    data = explanation_data(small)
    first = data["tensors"][0]
    assert {
        key: first[key] for key in ("name", "op", "op_class", "module", "layer", "num_bytes", "fate", "rule")
    } == {
        "name": "mm",
        "op": "aten.mm.default",
        "op_class": "matmul",
        "module": "layers.0.mlp",
        "layer": 0,
        "num_bytes": 8 * KIB,
        "fate": "offload",
        "rule": "heavy",
    }
    assert first["reason"] == "largest first"
    assert len(data["tensors"]) == 3
    assert data["fates"]["recompute"] == {"num_tensors": 1, "num_bytes": 2 * KIB}
    assert data["layers"][1] == {"graph": 0, "layer": 1, "module": "model.layers.1"}


def test_what_is_no_activation_is_not_counted_as_one() -> None:
    one = report(graph_report(verdict("mm", "offload", "r"), verdict("weight", "skip", reason="parameter")))
    assert "1 of 1 activations offloaded" in render_explanation(one, "m")
