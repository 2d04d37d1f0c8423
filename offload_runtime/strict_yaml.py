"""Strict YAML: the common ground of YAML 1.1 and 1.2, with the place of every value.

Works on the parser's events, so nothing is ever constructed, expanded or resolved by rules of its own. Every
refusal is a finding with line, column and cure; reading goes on after it where it can.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from offload_runtime.document import (
    MAX_DEPTH,
    MAX_NODES,
    Document,
    InvalidNode,
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    child_path,
    read_text,
)
from offload_runtime.errors import Diagnostic, Span, UnreadableError
from offload_runtime.plain_scalars import Refusal, resolve_plain

MAX_FINDINGS = 100

_TOO_DEEP = f"the document is nested deeper than {MAX_DEPTH} levels"

_NOT_PLAIN_ASCII = re.compile(r"[^\x20-\x7e\n]")
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_BLOCK_HEADER = re.compile(r"[|>][-+1-9]{0,2}( *\n| *\Z| +#)")
_SPECIAL_START = re.compile(r"(?:^|[:,\[{-])\s*([*&!%@`|>])[^\s,]*$")


def read_yaml_file(path: Path, *, file: str | None = None) -> Document:
    """Read ``path`` strictly; ``file`` is the name that findings show.

    Raises UnreadableError when nothing can be made of it; other findings are in the document.
    """
    name = file if file is not None else str(path)
    return read_yaml(read_text(path, name), name)


def read_yaml(text: str, file: str | None, *, root_path: str = "", first_line: int = 1) -> Document:
    """Read the text of one document strictly.

    ``root_path`` and ``first_line`` place a fragment (a value given on the command line). Raises
    UnreadableError as :func:`read_yaml_file` does.
    """
    return _Reader(text, file, first_line).read(root_path)


def is_invisible(character: str) -> bool:
    """Tell whether ``character`` (not a line feed) can hide in text: a control, format, odd space, filler."""
    if character == " ":
        return False
    return unicodedata.category(character) in _INVISIBLE_CATEGORIES or _IGNORABLE.match(character) is not None


class _Stop(Exception):
    """Reading cannot go on; the reason is the last finding."""


class _Reader:
    def __init__(self, text: str, file: str | None, first_line: int) -> None:
        self.file = file
        self.first_line = first_line
        self.findings: list[Diagnostic] = []
        self.num_nodes = 0
        self.bad_offsets: list[int] = []
        self.text = text

    def read(self, root_path: str) -> Document:
        try:
            self.text = self._checked_characters(self.text)
            root = self._document(_events(self.text), root_path)
        except yaml.YAMLError as error:
            # A tab or an odd space also breaks the structure: then that is the cause to show, once.
            if not self.findings or not self.bad_offsets:
                self.findings.append(self._syntax_finding(error))
            raise UnreadableError(*self.findings) from None
        except _Stop:
            raise UnreadableError(*self.findings) from None
        return Document(root, self.file, tuple(self.findings))

    # Characters

    def _checked_characters(self, text: str) -> str:
        """Report characters that hide, and put a blank in their place so that columns stay."""
        pieces, end = [], 0
        for match in _NOT_PLAIN_ASCII.finditer(text):
            character = match.group()
            if not is_invisible(character):
                continue
            offset = match.start()
            self._report(self._span_at(text, offset), *_character_finding(character))
            self.bad_offsets.append(offset)
            pieces.append(text[end:offset])
            end = offset + 1
        return " ".join([*pieces, text[end:]])

    def _span_at(self, text: str, offset: int) -> Span:
        line_start = text.rfind("\n", 0, offset) + 1
        return Span(self.file, text.count("\n", 0, offset) + self.first_line, offset - line_start + 1)

    # Events

    def _document(self, events: Iterator[Event], root_path: str) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    hint = "keep one document in a file; split it at ---"
                    self._report(self._span(event), "YAML027", "a second document starts here", hint)
                    break
                if event.version is not None or event.tags:
                    hint = "remove the line that starts with %"
                    self._report(self._span(event), "YAML026", "directives are refused", hint)
                root = self._node(next(events), events, root_path, 1)
        if root is None:
            self._report(
                Span(self.file, self.first_line, 1),
                "YAML007",
                "the document is empty",
                "start with apiVersion: offload/v1",
            )
            raise _Stop
        return root

    def _node(self, event: Event, events: Iterator[Event], path: str, depth: int) -> Node:
        assert isinstance(event, NodeEvent)
        span = self._span(event)
        self._count(span, depth if isinstance(event, CollectionStartEvent) else 0)
        if isinstance(event, AliasEvent):
            hint = f'write the value out; quote it if a pattern was meant: "*{event.anchor}"'
            self._report(span, "YAML023", f"alias *{event.anchor} is refused", hint)
            return InvalidNode(span, path)
        refused = self._refuse_properties(event, span)
        if isinstance(event, ScalarEvent):
            return InvalidNode(span, path) if refused else self._scalar(event, span, path)
        if isinstance(event, SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(member := next(events), CollectionEndEvent):
                items.append(self._node(member, events, child_path(path, len(items)), depth + 1))
            return ListNode(tuple(items), span, path)
        assert isinstance(event, MappingStartEvent)
        return self._mapping(events, span, path, depth)

    def _mapping(self, events: Iterator[Event], span: Span, path: str, depth: int) -> Node:
        entries: dict[str, Node] = {}
        key_spans: dict[str, Span] = {}
        while not isinstance(event := next(events), CollectionEndEvent):
            key_span = self._span(event)
            key = self._key(event, events, path, depth)
            value = self._node(
                next(events), events, child_path(path, key if key is not None else "?"), depth + 1
            )
            if key is None:
                continue
            if key in entries:
                hint = f"it stands on line {key_spans[key].line} already; keep one of the two"
                self._report(
                    key_span, "YAML020", f"key {key!r} is written twice", hint, child_path(path, key)
                )
                continue
            entries[key], key_spans[key] = value, key_span
        return MapNode(entries, key_spans, span, path)

    def _key(self, event: Event, events: Iterator[Event], path: str, depth: int) -> str | None:
        """Return the text of a key, None after reporting one that is no text."""
        span = self._span(event)
        if isinstance(event, ScalarEvent) and event.value == "<<" and not event.style:
            self._count(span)
            self._report(span, "YAML024", "merge key << is refused", "write the keys out", path)
            return None
        if not isinstance(event, ScalarEvent):
            self._node(event, events, path, depth + 1)
            self._report(
                span, "YAML021", "a key that is not plain text is refused", "write keys as text", path
            )
            return None
        self._count(span)
        if self._refuse_properties(event, span):
            return None
        if not event.style and not isinstance(resolve_plain(event.value), str):
            what = (
                f"key {event.value!r} is not text to every reader" if event.value else "a key is missing here"
            )
            self._report(
                span, "YAML021", what, f'quote it: "{event.value}"' if event.value else "write one", path
            )
            return None
        return None if self._hides_something(event) else event.value

    def _scalar(self, event: ScalarEvent, span: Span, path: str) -> Node:
        if self._hides_something(event):
            return InvalidNode(span, path)
        if not event.style:
            value = resolve_plain(event.value)
            if isinstance(value, Refusal):
                self._report(span, value.code, value.message, value.hint, path)
                return InvalidNode(span, path)
            return ScalarNode(value, span, path)
        start, end = _extent(event)
        if event.style in ("|", ">") and not _BLOCK_HEADER.match(self.text[start:end]):
            hint = "put a blank before the #, or nothing after the | or >"
            self._report(span, "YAML010", "not YAML: a comment needs a blank before it", hint, path)
        if event.style == '"':
            if re.search(r"(?<!\\)(\\\\)*\\/", self.text[start:end]):
                self._report(
                    span, "YAML037", "escape \\/ is unknown to readers of YAML 1.1", "write / alone", path
                )
            for character in event.value:
                if character not in "\n\t" and is_invisible(character):
                    self._report(span, *_character_finding(character), path)
                    return InvalidNode(span, path)
        return ScalarNode(event.value, span, path)

    def _hides_something(self, event: Event) -> bool:
        """Tell whether a character that was reported lies inside ``event``."""
        start, end = _extent(event)
        return any(start <= offset < end for offset in self.bad_offsets)

    def _refuse_properties(self, event: Any, span: Span) -> bool:
        if event.anchor is not None:
            self._report(
                span, "YAML022", f"anchor &{event.anchor} is refused", "write the value out where it is used"
            )
        has_tag = event.tag is not None
        if has_tag:
            hint = "leave the tag out; quote the value if text is meant"
            self._report(span, "YAML025", f"tag {event.tag} is refused", hint)
        return has_tag

    # Findings

    def _count(self, span: Span, depth: int = 0) -> None:
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            self._report(
                span, "YAML006", f"the document holds more than {MAX_NODES} values", "split the file"
            )
            raise _Stop
        if depth > MAX_DEPTH:
            self._report(span, "YAML005", _TOO_DEEP, "flatten it")
            raise _Stop

    def _report(self, span: Span, code: str, message: str, hint: str | None, path: str = "") -> None:
        self.findings.append(Diagnostic.at(span, code, message, path=path, hint=hint))
        if len(self.findings) >= MAX_FINDINGS:
            raise _Stop

    def _span(self, event: Event) -> Span:
        return self._span_of(event.start_mark)

    def _span_of(self, mark: Any) -> Span:
        return Span(self.file, mark.line + self.first_line, mark.column + 1)

    def _syntax_finding(self, error: yaml.YAMLError) -> Diagnostic:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        context = getattr(error, "context", None)
        if mark is None:
            return Diagnostic.at(Span(self.file), "YAML010", f"not YAML: {problem}")
        if "nesting depth" in problem:
            return Diagnostic.at(self._span_of(mark), "YAML005", _TOO_DEEP, hint="flatten it")
        if "character escape code" in problem:
            code, message, hint = _NO_CHARACTER  # where the scalar starts, as PyYAML's own parser takes it
            return Diagnostic.at(
                self._span_of(getattr(error, "context_mark", mark)), code, message, hint=hint
            )
        lines = [*self.text.split("\n"), ""]
        message = f"not YAML: {problem}{f' ({context})' if context else ''}"
        return Diagnostic.at(
            self._span_of(mark), "YAML010", message, hint=_syntax_hint(lines[: mark.line + 1], mark.column)
        )


def _extent(event: Event) -> tuple[int, int]:
    """Return the offsets of the event's first character and of the one after its last."""
    start, end = event.start_mark, event.end_mark
    assert start is not None
    assert end is not None
    return start.index, end.index


def _events(text: str) -> Iterator[Event]:
    """Yield parser events; libyaml's parser where it is there (ten times faster), else PyYAML's own."""
    parser: Any = yaml.CSafeLoader(text) if yaml.__with_libyaml__ else yaml.SafeLoader(text)
    try:
        while not isinstance(event := parser.get_event(), StreamEndEvent):
            if not isinstance(event, DocumentEndEvent):
                yield event
    finally:
        parser.dispose()


_NO_CHARACTER = (
    "YAML012",
    "an escape that names no character",
    r"write the character itself; \ud800 to \udfff are halves of one, and \U0010ffff is the last",
)


def _character_finding(character: str) -> tuple[str, str, str]:
    if character == "\t":
        return "YAML011", "a tab is refused: readers disagree about its width", "use spaces"
    if unicodedata.category(character) == "Cs":
        return _NO_CHARACTER
    name = unicodedata.name(character, "unnamed")
    return "YAML012", f"invisible character U+{ord(character):04X} ({name.lower()})", "delete it"


def _syntax_hint(lines: Sequence[str], column: int) -> str:
    """Guess from the line of the error, and the one before, what is usually wrong there."""
    line = lines[-1]
    special = _SPECIAL_START.search(line[: column + 1])
    if special:
        return f"a value that starts with {special.group(1)} has to be quoted"
    if any(re.match(r"\s*[A-Za-z_]+:[^\s]", near) for near in lines[-2:]):
        return "put a space after the colon"
    if line[column : column + 1] == ":":
        return "quote a value that contains ': '"
    return "check indentation, brackets and quotes"
