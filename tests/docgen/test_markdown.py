"""Anchors, links and code blocks of Markdown, as GitHub has them."""

import pytest

from offload_runtime.docgen.markdown import alternatives, anchors, cell, code, code_fences, links, slug, table


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Getting started", "getting-started"),
        ("`activations.rules[]`", "activationsrules"),
        ("YAML: reading a file", "yaml-reading-a-file"),
        ("What is, and what is not", "what-is-and-what-is-not"),
        ("See [tuning](tuning.md) first", "see-tuning-first"),
        ("optimizer_state", "optimizer_state"),
        ("× baseline", "-baseline"),
    ],
)
def test_a_heading_has_the_anchor_that_github_gives_it(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_headings_that_come_again_are_numbered_and_those_in_code_are_none() -> None:
    text = '# One\n\n## One\n\n```sh\n# a comment\n```\n\n<a id="mine"></a>\n\n## `Two`\n'
    assert anchors(text) == {"one", "one-1", "mine", "two"}


def test_links_are_found_with_their_lines_and_those_in_code_are_none() -> None:
    text = '[a](a.md)\n`[b](b.md)`\n```text\n[c](c.md)\n```\n![d](d.svg) and [e `x`](e.md#f "title")\n'
    assert [(link.target, link.line) for link in links(text)] == [("a.md", 1), ("d.svg", 6), ("e.md#f", 6)]


def test_code_blocks_have_a_language_and_their_text() -> None:
    text = "```python\nprint()\n```\n\n~~~\nplain\n~~~\n"
    assert list(code_fences(text)) == [("python", "print()\n"), ("", "plain\n")]


def test_cells_and_spans_cannot_break_a_table() -> None:
    assert cell("one | two\nthree") == "one \\| two three"
    assert code("a `b` c") == "``a `b` c``"
    assert code("`b`") == "`` `b` ``"


def test_a_row_has_a_cell_for_each_column() -> None:
    assert table(["a", "b"], [["1", "2"]], numbers_from=1) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
    with pytest.raises(ValueError, match="2 columns, but a row of 1 cells"):
        table(["a", "b"], [["1"]])


@pytest.mark.parametrize(
    ("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_choices_are_joined_by_or(words: list[str], text: str) -> None:
    assert alternatives(words) == text
