"""Whatever readers of YAML 1.1 and 1.2 read differently is refused, with its place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offload_runtime import strict_yaml
from offload_runtime.document import InvalidNode, MapNode, walk
from offload_runtime.errors import UnreadableError
from offload_runtime.strict_yaml import is_invisible, read_yaml, read_yaml_file

EXAMPLES = Path(__file__).parent / "examples"


def findings(text: str) -> list[str]:
    try:
        document = read_yaml(text, "f.yaml")
    except UnreadableError as error:
        return [f"{d.code} {d.line}:{d.column}" for d in error.diagnostics]
    return [f"{d.code} {d.line}:{d.column}" for d in document.diagnostics]


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1", {"a": 1}),
        ("a: -7", {"a": -7}),
        ("a: 1.5", {"a": 1.5}),
        ("a: 1e9", {"a": 1e9}),
        ("a: 2.5e-3", {"a": 0.0025}),
        ("a: true\nb: false", {"a": True, "b": False}),
        ("a: 12GiB", {"a": "12GiB"}),
        ("a: 5%", {"a": "5%"}),
        ("a: :75%", {"a": ":75%"}),
        ('a: "yes"\nb: \'010\'\nc: "null"', {"a": "yes", "b": "010", "c": "null"}),
        ('a: "1:30"', {"a": "1:30"}),
        ('"on": x', {"on": "x"}),
        ("a: [1, two, {b: 3}]", {"a": [1, "two", {"b": 3}]}),
        ("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
        ("a: >\n  one\n  two\n", {"a": "one two\n"}),
        ('a: "tab\\tand\\nline"', {"a": "tab\tand\nline"}),
        ("# note\n---\na: 1\n...\n", {"a": 1}),
        ("a: naïve", {"a": "naïve"}),
        ("a: 東京", {"a": "東京"}),
        (
            "a: nano\nb: info\nc: nothing\nd: yesterday",
            {"a": "nano", "b": "info", "c": "nothing", "d": "yesterday"},
        ),
        ("a: 2.13.0\nb: v1.0\nc: 1-2", {"a": "2.13.0", "b": "v1.0", "c": "1-2"}),
        ("a: {}\nb: []", {"a": {}, "b": []}),
        ("a: ''", {"a": ""}),
    ],
)
def test_common_ground_is_accepted(text: str, data: object) -> None:
    document = read_yaml(text, None)
    assert document.diagnostics == ()
    assert document.data == data


def test_every_finding_of_a_file_comes_at_once() -> None:
    text = "a: yes\nb: 010\nc: &x 1\nd: *x\ne: !t 2\nf:\na: 1\n<<: {}\n7: x\n"
    assert findings(text) == [
        "YAML030 1:4",
        "YAML031 2:4",
        "YAML022 3:4",
        "YAML023 4:4",
        "YAML025 5:4",
        "YAML034 6:3",
        "YAML020 7:1",
        "YAML024 8:1",
        "YAML021 9:1",
    ]


def test_a_refused_value_is_left_out_and_the_rest_is_read() -> None:
    document = read_yaml("a: yes\nb: 1\n", None)
    assert document.data == {"b": 1}
    assert isinstance(document.root, MapNode)
    assert isinstance(document.root.entries["a"], InvalidNode)


def test_every_node_knows_its_place_and_its_path() -> None:
    text = "rules:\n  - name: heavy\n    match: {op: [matmul, attention]}\n"
    nodes = list(walk(read_yaml(text, "f.yaml").root))
    assert [(node.path, node.span.line, node.span.column) for node in nodes] == [
        ("", 1, 1),
        ("rules", 2, 3),
        ("rules[0]", 2, 5),
        ("rules[0].name", 2, 11),
        ("rules[0].match", 3, 12),
        ("rules[0].match.op", 3, 17),
        ("rules[0].match.op[0]", 3, 18),
        ("rules[0].match.op[1]", 3, 26),
    ]


def test_columns_count_characters_and_not_bytes() -> None:
    assert findings("naïve: [é, yes]") == ["YAML030 1:12"]


def test_a_byte_order_mark_takes_no_column(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: yes\r\nb: no\r\n")
    document = read_yaml_file(path, file="bom.yaml")
    assert [(d.line, d.column) for d in document.diagnostics] == [(1, 4), (2, 4)]


@pytest.mark.parametrize(
    "character", [chr(n) for n in (0, 7, 9, 11, 12, 13, 27, 127, 133, 160, 173, 0x200B, 0x200E)]
)
def test_controls_and_invisible_characters_are_refused_wherever_they_stand(character: str) -> None:
    code = "YAML011" if character == "\t" else "YAML012"
    assert findings(f"a: b{character}c") == [f"{code} 1:5"]
    assert findings(f"a: b # {character}") == [f"{code} 1:8"]
    assert f"{code} 1:2" in findings(f"a{character}: b")


@pytest.mark.parametrize(
    "code_point",
    [
        847,
        1564,
        5760,
        6158,
        8192,
        8199,
        8205,
        8232,
        8233,
        8234,
        8238,
        8239,
        8287,
        8288,
        8294,
        8297,
        10240,
        12288,
        12644,
        65039,
        65279,
        65440,
        917536,
        917760,
        57344,
        65534,
        888,
    ],
)
def test_the_ways_to_hide_in_unicode_are_known(code_point: int) -> None:
    assert is_invisible(chr(code_point))


@pytest.mark.parametrize("character", "aß東é€→✓🙂")
def test_letters_and_signs_are_visible(character: str) -> None:
    assert not is_invisible(character)


def test_nesting_is_bounded_at_32_levels() -> None:
    assert findings("[" * 32 + "x" + "]" * 32) == []
    assert findings("[" * 33 + "x" + "]" * 33) == ["YAML005 1:33"]
    assert [finding.split()[0] for finding in findings("[" * 100_000)] == ["YAML005"]


def test_values_are_bounded_at_20000() -> None:
    assert findings("[" + "x," * 19_990 + "]") == []
    assert findings("[\n" + "x,\n" * 20_001 + "]") == ["YAML006 20001:1"]


def test_findings_are_bounded_too() -> None:
    assert len(findings("\t" * 5000)) == 100
    assert len(findings("[" + "yes, " * 5000 + "]")) == 100


def test_a_file_larger_than_one_mib_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("a: x" + " " * (1 << 20))
    with pytest.raises(UnreadableError) as caught:
        read_yaml_file(path, file="large.yaml")
    assert [d.code for d in caught.value.diagnostics] == ["YAML004"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_another_encoding_is_refused_at_its_first_byte(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes("a: é".encode(encoding))
    with pytest.raises(UnreadableError) as caught:
        read_yaml_file(path, file="f.yaml")
    place = {"utf-16": (1, 1), "utf-32": (1, 1), "latin-1": (1, 4)}[encoding]
    assert [(d.code, d.line, d.column) for d in caught.value.diagnostics] == [("YAML003", *place)]


def test_a_directory_or_missing_file_is_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.yaml", tmp_path / "a\0b"):
        with pytest.raises(UnreadableError) as caught:
            read_yaml_file(path, file="x")
        assert [d.code for d in caught.value.diagnostics] == ["YAML001"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: **.b", "a value that starts with * has to be quoted"),
        ("a: @b", "a value that starts with @ has to be quoted"),
        ("a: [x, %b]", "a value that starts with % has to be quoted"),
        ("a: b: c", "quote a value that contains ': '"),
        ("a:b\nc: d", "put a space after the colon"),
        ("a: [b", "check indentation, brackets and quotes"),
    ],
)
def test_a_syntax_error_says_what_is_usually_wrong(text: str, hint: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read_yaml(text, None)
    assert [(d.code, d.hint) for d in caught.value.diagnostics] == [("YAML010", hint)]


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Read with libyaml's parser, and with PyYAML's own as where libyaml is missing."""
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("this PyYAML was built without libyaml")
    monkeypatch.setattr(strict_yaml.yaml, "__with_libyaml__", request.param == "libyaml")
    return request.param


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_both_parsers_find_the_same(path: Path, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_bytes().decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n")
    here = findings(text)
    monkeypatch.setattr(strict_yaml.yaml, "__with_libyaml__", False)
    # Where the text is no YAML at all, the two may stop at different characters.
    assert [f for f in here if "YAML010" not in f] == [f for f in findings(text) if "YAML010" not in f]


TOKENS = st.sampled_from(
    [
        "a",
        "b",
        ": ",
        ":",
        "- ",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "'",
        '"',
        "yes",
        "1",
        "010",
        "&x",
        "*x",
        "!t",
        "|",
        "#",
        "---\n",
        "? ",
        "<<",
        "~",
        "1:30",
        "%",
        "\t",
        "\u200b",
        "é",
        "\\",
        "...\n",
        ">",
        "@",
        "0x1",
        "\r",
        "\ufeff",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS, max_size=25).map("".join))
@example("a: &x\n  - *x")
@example("? &x a\n: b")
def test_any_text_gives_a_document_or_findings_with_a_place_inside_it(text: str) -> None:
    try:
        found = read_yaml(text, "f.yaml").diagnostics
    except UnreadableError as error:
        found = error.diagnostics
        assert found
    lines = text.replace("\r\n", "\n").split("\n")
    for finding in found:
        assert finding.code.startswith("YAML")
        assert finding.line is not None
        assert finding.column is not None
        assert 1 <= finding.line <= len(lines) + 1
        assert finding.line > len(lines) or finding.column <= len(lines[finding.line - 1]) + 1


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS, max_size=25).map("".join))
def test_what_is_accepted_reads_the_same_with_a_plain_yaml_reader(text: str) -> None:
    try:
        document = read_yaml(text, None)
    except UnreadableError:
        return
    if document.diagnostics == ():
        assert document.data == yaml.safe_load(text)


def test_a_pipe_is_read_to_its_end_and_one_that_nobody_writes_to_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "policy.yaml"
    os.mkfifo(pipe)
    with pytest.raises(UnreadableError, match="is a pipe that nobody writes to"):
        read_yaml_file(pipe)
    with subprocess.Popen(["sh", "-c", 'sleep 0.2; echo "a: 1"'], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert read_yaml_file(Path(f"/dev/fd/{writer.stdout.fileno()}")).data == {"a": 1}
