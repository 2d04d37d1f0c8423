from __future__ import annotations

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.patterns import Glob, LayerRange, parse_glob, parse_layers
from offload_runtime.units import parse_percent


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("**", "", True),
        ("**", "layers.0.wq", True),
        ("*", "", False),
        ("*", "lm_head", True),
        ("*", "layers.0", False),
        ("layers.*.wq", "layers.0.wq", True),
        ("layers.*.wq", "layers.0.attention.wq", False),
        ("layers.**.wq", "layers.0.attention.wq", True),
        ("layers.**.wq", "layers.wq", True),
        ("**.attention.**", "attention", True),
        ("**.attention.**", "layers.0.attention", True),
        ("**.attention.**", "layers.0.attention.wq", True),
        ("**.attention.**", "layers.0.self_attention.wq", False),
        ("**.*_proj", "layers.0.q_proj", True),
        ("**.*_proj", "layers.0.proj", False),
        ("**.w*", "layers.0.w", True),
        ("**.w*q*", "layers.0.wxqx", True),
        ("wq", "layers.0.wq", False),
        ("layers", "layers.0", False),
        ("a.**.b.**.c", "a.x.b.b.y.c", True),
        ("a.**.b.**.c", "a.b.c.d", False),
        ("**.**", "", True),
    ],
)
def test_a_glob_is_anchored_and_stars_stand_for_segments(pattern: str, name: str, fits: bool) -> None:
    assert parse_glob(pattern).matches(name) is fits


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "matches nothing"),
        (".a", "empty segment"),
        ("a.", "empty segment"),
        ("a..b", "empty segment"),
        ("a/b", "separated by dots"),
        ("a?", "only '\\*'"),
        ("a[0]", "only '\\*'"),
        ("a b", "only '\\*'"),
        ("^a$", "only '\\*'"),
        ("a**", "whole segments"),
        ("**a.b", "whole segments"),
        ("a\n", "only '\\*'"),
    ],
)
def test_what_is_no_glob_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_glob(text)


SEGMENTS = st.sampled_from(["a", "b", "ab", "*", "**", "a*", "*b", "a*b"])
PATTERNS = st.lists(SEGMENTS, min_size=1, max_size=4).map(".".join)
NAMES = st.lists(st.sampled_from(["a", "b", "ab", "aab", "c"]), max_size=5).map(".".join)


def as_regex(pattern: str) -> re.Pattern[str]:
    """The same language by other means: every segment carries the dot in front of it."""
    pieces = []
    for segment in pattern.split("."):
        if segment == "**":
            pieces.append(r"(\.[^.]+)*")
        else:
            pieces.append(r"\." + ("[^.]+" if segment == "*" else segment.replace("*", "[^.]*")))
    return re.compile("".join(pieces))


@given(PATTERNS, NAMES)
def test_a_glob_matches_what_its_regular_expression_matches(pattern: str, name: str) -> None:
    expected = as_regex(pattern).fullmatch(f".{name}" if name else "") is not None
    assert Glob(pattern).matches(name) is expected


@given(PATTERNS, PATTERNS, NAMES)
def test_a_glob_that_covers_another_matches_whatever_that_matches(wide: str, narrow: str, name: str) -> None:
    if Glob(wide).covers(Glob(narrow)) and Glob(narrow).matches(name):
        assert Glob(wide).matches(name)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("**", "a.b"), ("a.*", "a.b"), ("**.b", "a.b"), ("a.**", "a.*.c"), ("a.*b", "a.xb"), ("**.x.**", "a.x")],
)
def test_covering_is_found_where_segments_show_it(wide: str, narrow: str) -> None:
    assert Glob(wide).covers(Glob(narrow))
    assert not Glob(narrow).covers(Glob(wide))


def test_a_hostile_pattern_takes_no_time() -> None:
    pattern, name = ".".join(["**", "a"] * 120), ".".join(["a"] * 100 + ["b"])
    started = time.perf_counter()
    assert not Glob(pattern).matches(name)
    assert not Glob("*a" * 120).matches("a" * 400 + "b")
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("text", "num_layers", "layers"),
    [
        (":", 4, [0, 1, 2, 3]),
        (":2", 4, [0, 1]),
        ("2:", 4, [2, 3]),
        ("-2:", 4, [2, 3]),
        (":-1", 4, [0, 1, 2]),
        ("::2", 4, [0, 2]),
        ("1::2", 4, [1, 3]),
        ("3", 4, [3]),
        ("-1", 4, [3]),
        ("5", 4, []),
        ("-5", 4, []),
        (":75%", 32, list(range(24))),
        (":75%", 3, [0, 1]),
        ("25%:75%", 8, [2, 3, 4, 5]),
        ("12.5%:", 8, [1, 2, 3, 4, 5, 6, 7]),
        (":100%", 4, [0, 1, 2, 3]),
        (":1%", 4, []),
        ("2:100", 4, [2, 3]),
        ("outside", 4, [None]),
    ],
)
def test_layers_are_a_python_slice_over_layer_ids(
    text: str, num_layers: int, layers: list[int | None]
) -> None:
    parsed = parse_layers(text)
    assert [layer for layer in (*range(num_layers), None) if parsed.contains(layer, num_layers)] == layers


@given(st.integers(-9, 9) | st.none(), st.integers(-9, 9) | st.none(), st.integers(1, 3), st.integers(0, 9))
def test_a_slice_means_what_it_means_to_python(
    start: int | None, stop: int | None, step: int, num_layers: int
) -> None:
    layers = LayerRange(start, stop, step)
    found = [layer for layer in range(num_layers) if layers.contains(layer, num_layers)]
    assert found == list(range(num_layers))[start:stop:step]


@given(st.integers(0, 9) | st.none(), st.integers(0, 9) | st.none(), st.integers(1, 3), st.integers(0, 12))
def test_an_absolute_slice_needs_no_number_of_layers(
    start: int | None, stop: int | None, step: int, layer: int
) -> None:
    layers = LayerRange(start, stop, step)
    assert not layers.needs_num_layers
    assert layers.contains(layer, None) == layers.contains(layer, 100)


@pytest.mark.parametrize("text", ["-1", "-2:", ":-1", ":75%", "25%:"])
def test_a_relative_range_refuses_to_guess_the_number_of_layers(text: str) -> None:
    layers = parse_layers(text)
    assert layers.needs_num_layers
    assert not layers.contains(None, None)
    with pytest.raises(ValueError, match="not known here"):
        layers.contains(0, None)


BOUNDS = st.sampled_from(["", "0", "1", "3", "6", "-1", "-3", "0%", "25%", "50%", "100%"])


@given(BOUNDS, BOUNDS, BOUNDS, BOUNDS, st.integers(1, 12))
def test_a_range_that_covers_another_contains_all_its_layers(
    a: str, b: str, c: str, d: str, num_layers: int
) -> None:
    try:
        wide, narrow = parse_layers(f"{a}:{b}"), parse_layers(f"{c}:{d}")
    except ValueError:
        return
    if wide.covers(narrow):
        layers = [layer for layer in range(num_layers) if narrow.contains(layer, num_layers)]
        assert all(wide.contains(layer, num_layers) for layer in layers)


def bound(text: str) -> int | Fraction | None:
    return parse_percent(text) if text.endswith("%") else int(text) if text else None


@given(BOUNDS, BOUNDS)
def test_a_range_that_contains_a_layer_of_some_model_is_never_refused(start: str, stop: str) -> None:
    layers = LayerRange(bound(start), bound(stop))
    if any(layers.contains(layer, n) for n in range(1, 40) for layer in range(n)):
        assert parse_layers(f"{start}:{stop}") == layers


@pytest.mark.parametrize("text", [":75%", "-1", "3", "2:8:2", "outside", "12.5%:", ":", "-4:-1"])
def test_a_range_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_layers(text)) == text
    assert parse_layers(str(parse_layers(text))) == parse_layers(text)


@pytest.mark.parametrize(
    "text", ["", "a", "1:2:3:4", "::0", ":175%", "1.5", "50%", "5:3", ":0", "1:2:-1", ":8\n", "+1"]
)
def test_what_is_no_range_of_layers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+; .+"):
        parse_layers(text)
