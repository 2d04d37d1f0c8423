"""What other code raises and returns, as text: whatever it does while it says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import offload_runtime
from offload_runtime.errors import error_text, named_error, value_text

PACKAGE = Path(offload_runtime.__file__).parent


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise SystemExit(3)


class Wrong(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # a mistake of other code


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n   lines"), "ValueError: two lines"),
        (ValueError(), "ValueError"),
        (KeyError("mm_7"), "KeyError: 'mm_7'"),
        (ValueError("a \udcff byte"), "ValueError: a \\udcff byte"),
        (Mute(), "Mute: (a Mute that cannot be written: its text raised RuntimeError)"),
        (Wrong(), "Wrong: (a Wrong that cannot be written: its text raised TypeError)"),
    ],
    ids=["lines", "nothing", "key", "surrogate", "raises", "no text"],
)
def test_an_exception_is_one_line_that_can_be_written(error: Exception, text: str) -> None:
    assert named_error(error) == text
    assert text.endswith(error_text(error))
    text.encode("utf-8")


def test_a_value_whose_repr_ends_the_process_is_named_by_its_type() -> None:
    assert value_text(Mute()) == "(a Mute that cannot be written: its text raised SystemExit)"
    assert value_text("a\udcff") == "'a\\udcff'"


def test_an_interrupt_is_passed_on() -> None:
    class Interrupted(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        error_text(Interrupted())


def written_by_hand(tree: ast.Module) -> Iterator[int]:
    """Yield the lines on which a handler of any exception puts it into text by itself."""
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
        caught = {name.id for name in ast.walk(handler.type or ast.Tuple([])) if isinstance(name, ast.Name)}
        if not caught & {"Exception", "BaseException"}:
            continue
        for node in (each for statement in handler.body for each in ast.walk(statement)):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            written = node.value if isinstance(node, ast.FormattedValue) else None
            if is_call and node.func.id in ("str", "repr") and node.args:  # type: ignore[attr-defined]  # a call
                written = node.args[0]  # type: ignore[attr-defined]  # a call
            if isinstance(written, ast.Name) and written.id == handler.name:
                yield written.lineno


def test_no_handler_of_any_exception_writes_it_down_by_itself() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in written_by_hand(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()
    bad = "try:\n    pass\nexcept Exception as error:\n    print(f'{error}', str(error))\n"
    assert list(written_by_hand(ast.parse(bad))) == [4, 4]
