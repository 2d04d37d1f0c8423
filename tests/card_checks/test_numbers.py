from __future__ import annotations

import pytest

from offload_runtime.card import Expression, Operation
from offload_runtime.card_checks.numbers import UnderivableError, derive, resolve_pointer, rounds_to

DATA = {"a": {"b/c": [4, 8, 6], "d~e": 3}, "zero": 0, "none": None, "yes": True, "words": ["x"], "empty": []}


@pytest.mark.parametrize(
    ("operation", "pointers", "value"),
    [
        ("pointer", ("/a/d~0e",), 3),
        ("pointer", ("/a/b~1c/1",), 8),
        ("ratio", ("/a/b~1c/0", "/a/b~1c/1"), 0.5),
        ("difference", ("/a/b~1c/1", "/a/d~0e"), 5),
        ("reduction", ("/a/b~1c/2", "/a/b~1c/1"), 0.25),
        ("median", ("/a/b~1c",), 6),
        ("min", ("/a/b~1c",), 4),
        ("max", ("/a/b~1c",), 8),
        ("count", ("/a/b~1c",), 3),
        ("count", ("/a",), 2),
        ("count", ("/empty",), 0),
    ],
)
def test_a_number_follows_from_the_values_at_its_pointers(
    operation: Operation, pointers: tuple[str, ...], value: float
) -> None:
    assert derive(Expression(operation, pointers), DATA) == pytest.approx(value)


@pytest.mark.parametrize(
    ("operation", "pointers", "message"),
    [
        ("pointer", ("/a/x",), "leads nowhere"),
        ("pointer", ("/a/b~1c/3",), "leads nowhere"),
        ("pointer", ("/a/b~1c/-1",), "leads nowhere"),
        ("pointer", ("/zero/x",), "leads nowhere"),
        ("pointer", ("/none",), "is no number"),
        ("pointer", ("/yes",), "is no number"),
        ("pointer", ("/a",), "is no number"),
        ("median", ("/zero",), "is no list"),
        ("min", ("/empty",), "is no list"),
        ("max", ("/words",), "is no number"),
        ("count", ("/zero",), "is no list"),
        ("ratio", ("/a/d~0e", "/zero"), "is 0"),
    ],
)
def test_what_gives_no_number_says_why(operation: Operation, pointers: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnderivableError, match=message):
        derive(Expression(operation, pointers), DATA)


def test_the_empty_pointer_is_the_whole_document() -> None:
    assert resolve_pointer(DATA, "") is DATA


@pytest.mark.parametrize(
    ("derived", "stated", "holds"),
    [
        (1.0088, 1.009, True),
        (1.0094, 1.009, True),
        (1.0096, 1.009, False),
        (1.0088, 1.0088, True),
        (12_884_901_888, 12_884_901_888, True),
        (12_884_901_889, 12_884_901_888, False),
        (12.4, 12, True),
        (12.6, 12, False),
        (12.04, 12.0, True),
        (12.4, 12.0, False),
        (0.000012, 1.2e-05, True),
        (0.000013, 1.2e-05, False),
        (-0.5, -0.5, True),
        (0.5, -0.5, False),
        (150.0, 1.5e2, True),
        (151.0, 1.5e2, False),
    ],
)
def test_a_number_holds_at_the_digits_that_it_is_written_with(
    derived: float, stated: float, holds: bool
) -> None:
    assert rounds_to(derived, stated) is holds
