"""A document: the data of a file and, for every value in it, where it was written.

Reading has two steps: bytes become text here (size, encoding), text becomes nodes in
:mod:`offload_runtime.strict_yaml`. Findings are gathered, so that one run shows them all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offload_runtime.errors import NOWHERE, Diagnostic, Span, UnreadableError

MAX_DOCUMENT_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000

Scalar = str | int | float | bool
Data = Scalar | list["Data"] | dict[str, "Data"]


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A text, number or boolean."""

    value: Scalar
    span: Span = NOWHERE
    path: str = ""

    @property
    def data(self) -> Data:
        """Return the plain value."""
        return self.value


@dataclass(frozen=True, slots=True)
class ListNode:
    """A sequence of nodes."""

    items: tuple[Node, ...]
    span: Span = NOWHERE
    path: str = ""

    @property
    def data(self) -> Data:
        """Return the plain list."""
        return [item.data for item in self.items if not isinstance(item, InvalidNode)]


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping from text keys to nodes, in the order written."""

    entries: Mapping[str, Node]
    key_spans: Mapping[str, Span] = field(default_factory=dict)
    span: Span = NOWHERE
    path: str = ""

    @property
    def data(self) -> Data:
        """Return the plain dict."""
        return {key: node.data for key, node in self.entries.items() if not isinstance(node, InvalidNode)}

    def get(self, key: str) -> Node | None:
        """Return the value of ``key``, None when it is absent."""
        return self.entries.get(key)

    def key_span(self, key: str) -> Span:
        """Return where ``key`` itself stands."""
        return self.key_spans.get(key, self.span)


@dataclass(frozen=True, slots=True)
class InvalidNode:
    """A value that was refused while reading: reported once, and skipped by every later check."""

    span: Span = NOWHERE
    path: str = ""

    @property
    def data(self) -> Data:
        """Refuse: an invalid node has no data."""
        raise ValueError(f"{self.path or 'the document'} was refused while reading; it has no data")


Node = ScalarNode | ListNode | MapNode | InvalidNode


@dataclass(frozen=True, slots=True)
class Document:
    """One document read: its root, and what was found. ``file`` is None for data given as a dict."""

    root: Node
    file: str | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def data(self) -> Data:
        """Return the plain data, without places."""
        return self.root.data


def child_path(path: str, key: str | int) -> str:
    """Return the dotted path of a member: ``rules[0]``, ``match.op``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def walk(node: Node) -> Iterator[Node]:
    """Yield ``node`` and everything below it, in document order."""
    yield node
    members: Sequence[Node] = ()
    if isinstance(node, ListNode):
        members = node.items
    elif isinstance(node, MapNode):
        members = tuple(node.entries.values())
    for member in members:
        yield from walk(member)


def document_from_data(data: object, *, file: str | None = None, root_path: str = "") -> Document:
    """Build a document from plain Python data: dicts with text keys, lists, tuples, text, numbers, booleans.

    Anything else becomes a finding. The bounds on depth and nodes hold as for a file. ``root_path`` is where the
    data stands in a larger document.
    """
    builder = _DataBuilder(file)
    root = builder.node(data, root_path, 0)
    return Document(root, file, tuple(builder.diagnostics))


class _DataBuilder:
    def __init__(self, file: str | None) -> None:
        self.span = Span(file)
        self.num_nodes = 0
        self.diagnostics: list[Diagnostic] = []

    def node(self, data: object, path: str, depth: int) -> Node:
        self.num_nodes += 1
        if depth > MAX_DEPTH or self.num_nodes > MAX_NODES:
            code, bound = (
                ("YAML005", f"{MAX_DEPTH} levels")
                if depth > MAX_DEPTH
                else ("YAML006", f"{MAX_NODES} values")
            )
            raise UnreadableError(Diagnostic.at(self.span, code, f"the data exceeds {bound}", path=path))
        if isinstance(data, str) and _has_surrogate(data):
            return self._refuse(path, "YAML012", f"{data!r} holds a lone surrogate", "write whole characters")
        if isinstance(data, bool | int | str) or (isinstance(data, float) and abs(data) < float("inf")):
            return ScalarNode(data, self.span, path)
        if isinstance(data, Mapping):
            return self._mapping(data, path, depth)
        if isinstance(data, list | tuple):
            items = tuple(self.node(item, child_path(path, i), depth + 1) for i, item in enumerate(data))
            return ListNode(items, self.span, path)
        if isinstance(data, float):
            return self._refuse(
                path, "YAML035", f"{data} is not a number that a file can hold", "write a finite number"
            )
        if data is None:
            return self._refuse(path, "YAML034", "None is no value", "leave the key out")
        kind = type(data).__name__
        return self._refuse(
            path, "YAML036", f"a {kind} cannot stand in a document", "use text, numbers, lists, dicts"
        )

    def _mapping(self, data: Mapping[object, object], path: str, depth: int) -> Node:
        entries: dict[str, Node] = {}
        for key, value in data.items():
            if isinstance(key, str) and not _has_surrogate(key):
                entries[key] = self.node(value, child_path(path, key), depth + 1)
            else:
                self._refuse(path, "YAML021", f"key {key!r} is not text", "write keys as text")
        return MapNode(entries, {}, self.span, path)

    def _refuse(self, path: str, code: str, message: str, hint: str) -> InvalidNode:
        self.diagnostics.append(Diagnostic.at(self.span, code, message, path=path, hint=hint))
        return InvalidNode(self.span, path)


def _has_surrogate(text: str) -> bool:
    """Tell whether ``text`` cannot be written as UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def read_text(path: Path, file: str) -> str:
    """Return the text of ``path`` with line ends as ``\\n`` and without a leading byte order mark.

    ``file`` is the name that findings show. Raises UnreadableError for what cannot be opened, is over 1 MiB
    or is not UTF-8, and for a named pipe without a writer, at which reading would never end.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as stream:
            os.set_blocking(stream.fileno(), True)
            raw = stream.read(MAX_DOCUMENT_BYTES + 1)
            if not raw and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                hint = "start what writes to it first, or name a file"
                raise _unreadable(file, "YAML001", "is a pipe that nobody writes to", hint)
    except IsADirectoryError:
        raise _unreadable(file, "YAML001", "is a directory", "name a file in it") from None
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise _unreadable(
            file, "YAML001", f"cannot be read: {reason}", "check the path and its permissions"
        ) from None
    except ValueError as error:
        raise _unreadable(file, "YAML001", f"is no path: {error}", "check the path") from None
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise _unreadable(
            file, "YAML004", "is larger than 1 MiB", "a policy is a few KiB; is this the right file?"
        )
    return decode_text(raw, file)


def _open_at_once(path: str, flags: int) -> int:
    """Open ``path`` without waiting for somebody who writes to it, where it is a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def decode_text(raw: bytes, file: str) -> str:
    """Decode UTF-8 strictly; raises UnreadableError that points at the first byte that is not."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        hint = "save the file as UTF-8 without further encoding"
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = "the file looks like UTF-16; save it as UTF-8"
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise UnreadableError(
            Diagnostic.at(Span(file, line, column), "YAML003", message, hint=hint)
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _unreadable(file: str, code: str, message: str, hint: str) -> UnreadableError:
    return UnreadableError(Diagnostic.at(Span(file), code, f"{file} {message}", hint=hint))
