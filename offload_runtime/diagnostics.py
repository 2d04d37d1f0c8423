"""The text form of a diagnostic: place, code, message, the source line with a caret, the hint."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from offload_runtime.document import MAX_DOCUMENT_BYTES
from offload_runtime.errors import Diagnostic, sorted_diagnostics
from offload_runtime.shipped import find_source, shown_source

MAX_SOURCE_COLUMNS = 160


def render_diagnostic(diagnostic: Diagnostic, sources: Mapping[str, str] | None = None) -> str:
    """Return the text form, without a final line feed::

        policy.yaml:12:11: POL104 5 is not a size with a unit
           12 |   budget: 5
              |           ^
           hint: write 5GiB

    ``sources`` maps a file name to its text for files that are not on disk. Control characters of the source
    line are shown as escapes, so that a file cannot write to the terminal.
    """
    lines = [_head(diagnostic)]
    source = _source_line(diagnostic, sources or {})
    if source is not None and diagnostic.line is not None:
        number = str(diagnostic.line).rjust(5)
        lines.append(f"{number} | {source[0]}".rstrip())
        if source[1] is not None:
            lines.append(f"{' ' * len(number)} | {' ' * source[1]}^")
    if diagnostic.hint:
        lines.append(f"      hint: {diagnostic.hint}")
    return "\n".join(_printable(line) for line in lines)


def render_diagnostics(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> str:
    """Return the text form of all, in the order of their places."""
    return "\n".join(render_diagnostic(diagnostic, sources) for diagnostic in sorted_diagnostics(diagnostics))


def _head(diagnostic: Diagnostic) -> str:
    parts = [shown_source(diagnostic.file)] if diagnostic.file else []
    if diagnostic.line is not None:
        parts += [str(part) for part in (diagnostic.line, diagnostic.column) if part is not None]
    place = f"{':'.join(part for part in parts if part)}: " if parts else ""
    severity = "" if diagnostic.severity == "error" else f"{diagnostic.severity}: "
    return f"{place}{diagnostic.code} {severity}{diagnostic.message}"


def _source_line(diagnostic: Diagnostic, sources: Mapping[str, str]) -> tuple[str, int | None] | None:
    """Return the line and the caret's offset in it, cut to a width that a terminal shows."""
    if diagnostic.file is None or diagnostic.line is None:
        return None
    text = sources[diagnostic.file] if diagnostic.file in sources else _file_text(diagnostic.file)
    lines = text.split("\n") if text is not None else []
    if not 1 <= diagnostic.line <= len(lines):
        return None
    line = lines[diagnostic.line - 1].rstrip("\r")
    caret = diagnostic.column - 1 if diagnostic.column is not None else None
    start = max(0, (caret or 0) - MAX_SOURCE_COLUMNS // 2) if len(line) > MAX_SOURCE_COLUMNS else 0
    shown = line[start : start + MAX_SOURCE_COLUMNS].replace("\t", " ")
    if caret is None:
        return shown, None
    return shown, sum(_width(character) for character in shown[: caret - start])


def _file_text(file: str) -> str | None:
    """Return the text of a file that a finding names; None when it has none to show."""
    path = find_source(file)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return stream.read(MAX_DOCUMENT_BYTES).decode("utf-8", "replace").removeprefix("\ufeff")
    except (OSError, ValueError):
        return None


def _width(character: str) -> int:
    if not _is_printable(character):
        return len(_escaped(character))
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _printable(line: str) -> str:
    return "".join(character if _is_printable(character) else _escaped(character) for character in line)


def _is_printable(character: str) -> bool:
    return character.isprintable()


def _escaped(character: str) -> str:
    number = ord(character)
    # Half of a character, as a byte of a file's name that is no UTF-8, is written as Python and the streams write it.
    return f"\\u{number:04x}" if 0xD800 <= number <= 0xDFFF else f"<U+{number:04X}>"
