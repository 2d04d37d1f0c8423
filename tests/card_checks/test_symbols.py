from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.card_checks.symbols import Sources, split_reference

SOURCE = """\
import os
LIMIT = 3
RATE: float = 2.0
if LIMIT > 2:
    def chosen():
        pass
else:
    def other():
        pass
try:
    import torch
except ImportError:
    pass
class Size:
    unit = "B"
    @property
    def amount(self):
        return f"{self} has {LIMIT} parts"
    class Inner:
        def deep(self):
            pass
async def later():
    pass
def outer():
    def hidden():
        pass
    local = 1
"""


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "m.py").write_text(SOURCE)
    return Sources(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "LIMIT",
        "RATE",
        "chosen",
        "other",
        "Size",
        "Size.unit",
        "Size.amount",
        "Size.Inner.deep",
        "later",
        "outer",
    ],
)
def test_what_a_module_defines_is_there(sources: Sources, name: str) -> None:
    assert sources.problem(f"m.py::{name}") is None


@pytest.mark.parametrize("name", ["os", "hidden", "outer.hidden", "local", "amount", "Size.deep", "LIMIT.x"])
def test_what_a_module_only_imports_or_hides_is_not(sources: Sources, name: str) -> None:
    assert sources.problem(f"m.py::{name}") == f"m.py has no {name}"


def test_a_file_that_is_missing_is_named(sources: Sources) -> None:
    assert sources.problem("n.py::LIMIT") == "there is no file n.py"


def test_the_text_of_a_function_has_its_decorators(sources: Sources) -> None:
    assert sources.text("m.py::Size.amount").split("\n")[0].strip() == "@property"
    assert sources.text("m.py::LIMIT") == ""
    assert sources.text("n.py::x") == ""


def test_the_fixed_parts_of_a_formatted_text_are_constants(sources: Sources) -> None:
    literals = sources.literals("m.py").split("\n")
    assert {" has ", " parts", "B"} <= set(literals)
    assert sources.literals("n.py") == ""


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("tests/test_a.py::test_b", ("tests/test_a.py", "test_b")),
        ("tests/test_a.py::test_b[one::two]", ("tests/test_a.py", "test_b")),
        ("tests/test_a.py::TestC::test_b", ("tests/test_a.py", "TestC.test_b")),
        ("offload_runtime/units.py::Size.amount", ("offload_runtime/units.py", "Size.amount")),
    ],
)
def test_a_reference_has_a_file_and_a_dotted_name(reference: str, expected: tuple[str, str]) -> None:
    assert split_reference(reference) == expected
