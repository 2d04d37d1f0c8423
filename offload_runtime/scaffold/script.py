"""What a training script offers to an adapter, read from its text: a script is never run to find that out."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from offload_runtime.errors import Diagnostic, OffloadError, UnreadableError, UsageError

__all__ = ["FUNCTION_KINDS", "FunctionKind", "Script", "read_script"]

FunctionKind = Literal["model", "trainer", "loop"]
FUNCTION_KINDS: tuple[FunctionKind, ...] = get_args(FunctionKind)
"""What a function gives: the model that it returns, a transformers.Trainer, or a training loop that it runs."""

_STARTS_WORK = ("backward", "fit", "main", "train")


@dataclass(frozen=True, eq=False)
class Script:
    """A Python script: its path as it was given, and its top level."""

    file: str
    tree: ast.Module

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that its top level defines or imports, in order."""
        return tuple(dict.fromkeys(name for node in self.tree.body for name in _names(node)))

    def function(self, name: str) -> ast.FunctionDef | None:
        """Return the function ``name`` of the top level; None for a name that is bound otherwise, or not at all."""
        found = (node for node in self.tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        return next(found, None)

    def check_name(self, name: str) -> None:
        """Raise UsageError where the top level has no such name."""
        if name not in self.names:
            close = difflib.get_close_matches(name, self.names, n=1)
            listed = ", ".join(self.names) or "none at all"
            hint = f"did you mean {close[0]}?" if close else f"the names at its top level are {listed}"
            message = f"{self.file} has no {name} at its top level"
            raise UsageError(Diagnostic("CLI632", "error", message, self.file, hint=hint))

    def check_call(self, name: str) -> None:
        """Raise UsageError where ``name`` is no name of the top level, or a function that needs arguments."""
        self.check_name(name)
        function = self.function(name)
        if function is None:
            return
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        needed = [a.arg for a in positional[: len(positional) - len(arguments.defaults)]]
        needed += [
            a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None
        ]
        if needed:
            message = f"{name} needs {', '.join(needed)}, and an adapter calls it without arguments"
            hint = "give its parameters defaults, or name a function that calls it with what it needs"
            raise UsageError(Diagnostic("CLI633", "error", message, self.file, function.lineno, hint=hint))

    def kind_of(self, name: str) -> FunctionKind:
        """Say what ``name`` most likely gives, from what its body does."""
        function = self.function(name)
        if function is None:
            return "model"
        called = set(_called(function))
        returns = any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))
        if "backward" in called or not returns:
            return "loop"
        return "trainer" if any(word.endswith("Trainer") for word in called) else "model"

    def work_on_import(self) -> tuple[Diagnostic, ...]:
        """Warn of statements of the top level that look like training: an adapter imports the script."""
        return tuple(
            Diagnostic(
                "CLI634",
                "warning",
                "this runs when the script is imported, as an adapter does",
                self.file,
                node.lineno,
                hint='put it into a function, and call that under if __name__ == "__main__":',
            )
            for node in self.tree.body
            if isinstance(node, ast.For | ast.While)
            or (isinstance(node, ast.Expr) and any(word in _STARTS_WORK for word in _called(node)))
        )


def read_script(file: str) -> Script:
    """Read a script. Raises UnreadableError where it is not there, or no Python."""
    try:
        text = Path(file).read_text("utf-8")
        return Script(file, ast.parse(text, file))
    except SyntaxError as error:
        raise _unreadable(file, f"is no Python: {error.msg}", error.lineno) from error
    except UnicodeDecodeError as error:
        raise _unreadable(file, "is not UTF-8") from error
    except ValueError as error:
        raise _unreadable(file, f"is no Python: {error}") from error
    except OSError as error:
        raise _unreadable(file, f"cannot be read: {error.strerror}") from error


def _unreadable(file: str, reason: str, line: int | None = None) -> OffloadError:
    hint = "name a script of yours and a function in it, such as train.py:main"
    return UnreadableError(Diagnostic("CLI631", "error", f"{file} {reason}", file, line, hint=hint))


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _called(node: ast.AST) -> Iterator[str]:
    """Yield the last word of each function that is called: ``backward`` of ``loss.backward()``."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            if isinstance(part.func, ast.Attribute):
                yield part.func.attr
            elif isinstance(part.func, ast.Name):
                yield part.func.id
