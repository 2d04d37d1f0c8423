"""Symbols and tests that a card names, looked up in the syntax tree of their file: nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Sources", "split_reference"]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True)
class Sources:
    """The Python files below ``root``, each parsed once."""

    root: Path
    _parsed: dict[str, tuple[ast.Module, list[str]] | None] = field(default_factory=dict)
    _literals: dict[str, str] = field(default_factory=dict)

    def problem(self, reference: str) -> str | None:
        """Say why ``path::name`` or ``path::Class.member`` is not there; None where it is."""
        file, name = split_reference(reference)
        parsed = self._file(file)
        if parsed is None:
            return f"there is no file {file}"
        return None if _find(parsed[0], name.split(".")) is not None else f"{file} has no {name}"

    def text(self, reference: str) -> str:
        """Return the source of a function, its decorators included; empty where it is not there."""
        file, name = split_reference(reference)
        parsed = self._file(file)
        node = _find(parsed[0], name.split(".")) if parsed is not None else None
        if parsed is None or not isinstance(node, Definition):
            return ""
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return "\n".join(parsed[1][first - 1 : node.end_lineno])

    def literals(self, pattern: str) -> str:
        """Return every text constant of the files that fit ``pattern``, a line each.

        The fixed parts of a formatted text are constants too, and texts that are written side by side are one.
        """
        if pattern not in self._literals:
            files = sorted(path.relative_to(self.root).as_posix() for path in self.root.glob(pattern))
            trees = (parsed[0] for parsed in map(self._file, files) if parsed is not None)
            self._literals[pattern] = "\n".join(text for tree in trees for text in _texts(tree))
        return self._literals[pattern]

    def _file(self, file: str) -> tuple[ast.Module, list[str]] | None:
        if file not in self._parsed:
            path = self.root / file
            text = path.read_text("utf-8") if path.is_file() else None
            self._parsed[file] = None if text is None else (ast.parse(text), text.split("\n"))
        return self._parsed[file]


def split_reference(reference: str) -> tuple[str, str]:
    """Return file and dotted name of ``path::name``, ``path::Class::test`` or ``path::test[id]``."""
    file, _, name = reference.partition("::")
    return file, name.partition("[")[0].replace("::", ".")


def _find(parent: ast.Module | Definition, names: list[str]) -> ast.AST | None:
    """Return the definition or assignment called ``names``, the outermost first; the last one of a name counts."""
    found: ast.AST | None = None
    for node in _statements(parent):
        if names[0] in _bound(node):
            found = node
    if found is None or len(names) == 1:
        return found
    return _find(found, names[1:]) if isinstance(found, ast.ClassDef) else None


def _statements(parent: ast.Module | Definition) -> list[ast.stmt]:
    """Return the statements of a body; those under a condition (a version of torch, say) belong to it."""
    statements: list[ast.stmt] = []
    for node in parent.body:
        statements.append(node)
        if isinstance(node, ast.If | ast.Try):
            nested = ast.Module([*node.body, *node.orelse], [])
            statements += _statements(nested)
    return statements


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()
