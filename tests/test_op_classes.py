from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offload_runtime.document import document_from_data
from offload_runtime.findings import Findings
from offload_runtime.op_classes import OP_CLASSES, class_of_overload, overload_table
from offload_runtime.op_names import check_op, op_hint

ROOT = Path(__file__).parent.parent


def test_every_class_is_described_in_one_sentence() -> None:
    assert list(OP_CLASSES) == [
        "matmul", "attention", "convolution", "norm", "activation", "elementwise", "reduction", "embedding",
        "routing", "collective", "random", "loss", "copy", "view", "other",
    ]  # fmt: skip
    assert all(summary.endswith(".") for summary in OP_CLASSES.values())


def test_the_table_holds_known_classes_and_both_supported_versions_of_torch() -> None:
    table = overload_table()
    assert {op_class for op_class, _ in table.values()} <= set(OP_CLASSES)
    assert {version for _, versions in table.values() for version in versions} == {"2.11", "2.13"}
    assert len(table) > 3000


@pytest.mark.parametrize(
    ("name", "op_class"),
    [
        ("aten.mm.default", "matmul"),
        ("aten.addmm.default", "matmul"),
        ("aten._grouped_mm.default", "matmul"),
        ("aten._scaled_dot_product_flash_attention.default", "attention"),
        ("aten._scaled_dot_product_cudnn_attention.default", "attention"),
        ("aten.convolution.default", "convolution"),
        ("aten.native_layer_norm.default", "norm"),
        ("aten.gelu.default", "activation"),
        ("aten.mul.Tensor", "elementwise"),
        ("prims.mul.default", "elementwise"),
        ("aten.sum.dim_IntList", "reduction"),
        ("aten.embedding.default", "embedding"),
        ("aten.topk.default", "routing"),
        ("aten.sort.default", "routing"),
        ("aten.native_dropout.default", "random"),
        ("aten.nll_loss_forward.default", "loss"),
        ("aten.clone.default", "copy"),
        ("aten.view.default", "view"),
        ("aten.t.default", "view"),
        ("_c10d_functional.all_reduce.default", "collective"),
        ("deepep.dispatch.default", "collective"),
        ("hybridep.combine.default", "collective"),
        ("higher_order.flex_attention", "attention"),
        ("mylib.gemm.default", None),
        ("aten.no_such.default", None),
    ],
)
def test_an_overload_has_the_class_of_what_it_does(name: str, op_class: str | None) -> None:
    assert class_of_overload(name) == op_class


def test_the_table_is_what_the_installed_torch_gives() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "tools/generate_overloads.py", "--check"]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, ""), (
        "run tools/generate_overloads.py under each supported torch"
    )


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("matmull", "POL120", "did you mean matmul?"),
        ("xyz", "POL120", "op classes: matmul, attention"),
        ("aten.mm", "POL121", "overloads of aten.mm: aten.mm.default"),
        ("aten.mm.defualt", "POL121", "overloads of aten.mm: aten.mm.default"),
        ("aten.adddmm.default", "POL121", "did you mean aten.addmm.default?"),
        ("mylib.gemm", "POL121", "name the overload too, such as mylib.gemm.default"),
    ],
)
def test_an_operator_that_does_not_exist_is_told_the_closest_one(name: str, code: str, hint: str) -> None:
    findings = Findings()
    check_op(document_from_data(name).root, name, findings)
    (finding,) = findings.diagnostics
    assert finding.code == code
    assert (finding.hint or "").startswith(hint)


@pytest.mark.parametrize(
    "name", ["mylib.gemm.default", "higher_order.flex_attention", "aten.mm.dtype", "norm"]
)
def test_operators_of_other_libraries_are_taken_at_their_word(name: str) -> None:
    findings = Findings()
    check_op(document_from_data(name).root, name, findings)
    assert findings.diagnostics == []


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("aten::mm", "write aten.mm.default"),
        ("aten::mm.dtype", "write aten.mm.dtype"),
        ("torch.ops.aten.mm.default", "write aten.mm.default"),
        ("Matmul ", "did you mean matmul?"),
        (5, None),
    ],
)
def test_other_ways_to_write_an_operator_are_translated(value: object, hint: str | None) -> None:
    assert op_hint(value) == hint
