from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.plain_scalars import Refusal, resolve_plain


@pytest.mark.parametrize(
    ("text", "code", "cure"),
    [
        ("yes", "YAML030", "write true"),
        ("Off", "YAML030", "write false"),
        ("y", "YAML030", "write true"),
        ("TRUE", "YAML030", "write true"),
        ("010", "YAML031", "write 10 (or 8, if octal was meant)"),
        ("-010", "YAML031", "write -10"),
        ("08", "YAML031", "write 8"),
        ("0x1F", "YAML031", "write 31"),
        ("0o17", "YAML031", "write 15"),
        ("0b101", "YAML031", "write 5"),
        ("1_000", "YAML031", "write 1000"),
        ("+1", "YAML031", "write 1"),
        (".5", "YAML031", "write 0.5"),
        ("1.", "YAML031", "write 1"),
        ("12e03", "YAML031", "write 12000"),
        ("1_", "YAML031", "write 1"),
        ("-0", "YAML031", "write 0"),
        ("1:30", "YAML032", 'quote it: "1:30"'),
        ("-1:30", "YAML032", "quote it"),
        ("190:20:30.15", "YAML032", "quote it"),
        ("0:64", "YAML032", "quote it"),
        ("2001-01-01", "YAML033", "quote it"),
        ("2001-1-1", "YAML033", "quote it"),
        ("2001-12-14 21:59:43.10 -5", "YAML033", "quote it"),
        ("", "YAML034", "give a value"),
        ("~", "YAML034", "give a value"),
        ("NULL", "YAML034", "give a value"),
        (".inf", "YAML035", "unlimited"),
        ("-.INF", "YAML035", "unlimited"),
        (".NaN", "YAML035", "unlimited"),
        ("nan", "YAML035", "unlimited"),
        ("Infinity", "YAML035", "unlimited"),
        ("1e999", "YAML035", "smaller"),
        ("=", "YAML036", "quote it"),
        ("<<", "YAML036", "quote it"),
    ],
)
def test_a_scalar_that_readers_disagree_about_is_refused_with_its_cure(
    text: str, code: str, cure: str
) -> None:
    refusal = resolve_plain(text)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert cure in refusal.hint


@pytest.mark.parametrize(
    "text", ["yEs", "oN", "nil", "none", "1.2.3", "1-1", "a:b", "1:a", "0xZZ", "1e", "e5", "-", "."]
)
def test_text_stays_text(text: str) -> None:
    assert resolve_plain(text) == text


@given(st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_json_writes_them(number: float) -> None:
    text = json.dumps(number)
    read = resolve_plain(text)
    if not isinstance(read, Refusal):
        assert read == number
        assert type(read) is type(number)
    else:
        assert "e-0" in text or "e+0" in text, "only an exponent with a leading zero is refused"


PLAIN = st.text(st.sampled_from("0123456789+-._:eExoObBaAfFyYnNsStTrRuUlLiI~=<> "), max_size=8).map(str.strip)


@given(PLAIN)
def test_what_a_yaml_1_1_reader_takes_for_no_text_is_never_accepted_as_text(text: str) -> None:
    read = resolve_plain(text)
    if isinstance(read, str):
        try:
            theirs = yaml.safe_load(text)
        except yaml.YAMLError:
            return
        except ValueError:  # an impossible date, which PyYAML trips over
            pytest.fail(f"{text!r} is a date to PyYAML")
        assert isinstance(theirs, str | dict | list)


YAML_1_2_CORE = (
    r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)"
)


@given(st.from_regex(YAML_1_2_CORE, fullmatch=True))
def test_what_a_yaml_1_2_reader_takes_for_a_number_is_never_accepted_as_text(text: str) -> None:
    assert not isinstance(resolve_plain(text), str)
