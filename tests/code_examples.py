"""Runs the examples of the code table: what each provokes, from files, commands, YAML or Python.

A few lines of YAML are tried in each place of a file where they could stand, because the table shows no more of a
file than what matters.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from offload_runtime.cli import run
from offload_runtime.errors import Diagnostic, OffloadError
from offload_runtime.policy_tests import run_policy_tests
from offload_runtime.validate import validate_file

_FILE = re.compile(r"# ([\w./-]+\.(?:yaml|py|json|md))\s*")
_HEAD = {"apiVersion": "offload/v1", "kind": "Policy", "name": "example", "activations": "{default: offload}"}
_TEST_HEAD = {"apiVersion": "offload/v1", "kind": "PolicyTest", "policy": "balanced"}
_CASE = "name: example\ngiven: {op: routing}\nexpect: {action: save}"
_FIGURES = {
    "device": {"memory": "{value: 80, unit: GB, source: datasheet}"},
    "link": {
        "d2h": "{value: 55, unit: GB/s, source: measured}",
        "h2d": "{value: 55, unit: GB/s, source: measured}",
    },
    "host": {},
    "prediction": {},
}
_CARD = Path(__file__).parent / "examples/positive/card-of-every-kind.yaml"
_CARD_LISTS = ("enable_when", "measured_results", "failure_modes", "claims")
_MODEL = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def build():
    return Model(), (torch.randn(4096, 8),)
"""


@dataclass(frozen=True)
class Example:
    """Files, and the command that reads them; a fragment has neither."""

    files: tuple[tuple[str, str], ...]
    command: tuple[str, ...]
    fragment: str


class ReachedTheModelError(Exception):
    """Ends a command where it begins to compile a built-in model: what it was given has been accepted by then."""


def read_example(text: str) -> Example:
    """Take an example apart: each file begins with a comment that is its name, a command with `offload`."""
    files: list[tuple[str, list[str]]] = []
    command: tuple[str, ...] = ()
    fragment: list[str] = []
    for line in text.splitlines():
        named = _FILE.fullmatch(line)
        if named:
            files.append((named.group(1), []))
        elif line.startswith("offload "):
            command = tuple(shlex.split(line, comments=True))[1:]
        else:
            (files[-1][1] if files else fragment).append(line)
    return Example(
        tuple((name, "\n".join(lines) + "\n") for name, lines in files), command, "\n".join(fragment)
    )


Findings = frozenset[tuple[str, str]]
"""Codes and their severities."""


def outcomes(text: str, folder: Path) -> Iterator[Callable[[], Findings]]:
    """Yield ways to run an example in ``folder``, each of which returns what it provokes.

    There is more than one way only for a fragment of YAML, always in the same order.
    """
    example = read_example(text)
    (folder / "my_model.py").write_text(
        _MODEL, "utf-8"
    )  # the model that examples name where they do not write one
    for name, content in example.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(_completed(name, content), "utf-8")
    if example.command:
        yield lambda: _run_command(example.command)
    elif example.files:
        yield lambda: _check(folder / example.files[-1][0])
    elif is_python(example.fragment):
        yield lambda: _run_python(example.fragment)
    else:
        for name, content in _places(example.fragment):
            yield lambda name=name, content=content: _check_text(folder / name, content)  # type: ignore[misc]


def is_python(fragment: str) -> bool:
    """Tell Python from YAML: it calls something."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that are YAML's
            tree = ast.parse(fragment)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))


def _completed(name: str, content: str) -> str:
    """Add what every file of its kind begins with, where a file of an example leaves it out."""
    if name.endswith("cases.yaml"):
        return _with_head(content, _TEST_HEAD)
    if name.endswith("policy.yaml"):
        return _with_head(content, _HEAD)
    return content


def _with_head(content: str, head: dict[str, str]) -> str:
    missing = [
        f"{key}: {value}" for key, value in head.items() if not re.search(rf"^\"?{key}\"?:", content, re.M)
    ]
    return "\n".join([*missing, content.rstrip("\n")]) + "\n"


def _places(fragment: str) -> Iterator[tuple[str, str]]:
    """Yield the files in which a fragment could stand, by name and text."""
    yield "policy.yaml", fragment + "\n"
    yield "policy.yaml", _with_head(fragment, _HEAD)
    for section in ("limits", "schedule", "activations"):
        head = _HEAD if section != "activations" else {k: v for k, v in _HEAD.items() if k != section}
        yield "policy.yaml", _with_head(f"{section}:\n{textwrap.indent(fragment, '  ')}", head)
    activations = "activations:\n  default: recompute\n"
    yield "policy.yaml", _with_head(activations + textwrap.indent(fragment, "  "), _HEAD)
    rule = {"name": "example", "match": "{op: matmul}", "action": "save"}
    yield "policy.yaml", _with_head(f"{activations}  rules:\n{_item(_with_head(fragment, rule), 4)}", _HEAD)
    match = f"match:\n{textwrap.indent(fragment, '  ')}"
    yield "policy.yaml", _with_head(f"{activations}  rules:\n{_item(_with_head(match, rule), 4)}", _HEAD)
    yield "cases.yaml", _with_head(fragment, _TEST_HEAD)
    yield (
        "cases.yaml",
        _with_head(f"cases:\n{_item(_with_head(fragment, {'name': 'example'}), 2)}", _TEST_HEAD),
    )
    yield "cases.yaml", _with_head(f"{fragment}\ncases:\n{_item(_CASE, 2)}", _TEST_HEAD)
    for section in _FIGURES:
        yield "hardware.yaml", _hardware(section, fragment)
    for title in _CARD_LISTS:
        card = _CARD.read_text("utf-8")
        item = _item(_with_head(fragment, {"text": "An example."} if title == "enable_when" else {}), 2)
        yield "card.yaml", card.replace(f"\n{title}:\n", f"\n{title}:\n{item}\n")


def _hardware(section: str, fragment: str) -> str:
    lines = ["apiVersion: offload/v1", "kind: HardwareProfile", "name: example", "summary: An example."]
    for title, figures in _FIGURES.items():
        body = _with_head(fragment if title == section else "", figures).strip("\n")
        lines += [f"{title}:", textwrap.indent(body, "  ")] if body else []
    return "\n".join(lines) + "\n"


def _item(text: str, indent: int) -> str:
    return textwrap.indent(textwrap.indent(text, "  ").replace("  ", "- ", 1), " " * indent)


def _check_text(path: Path, content: str) -> Findings:
    path.write_text(content, "utf-8")
    return _check(path)


def _check(path: Path) -> Findings:
    verdict = validate_file(str(path))
    if verdict.kind == "PolicyTest":
        return _findings(run_policy_tests(str(path)).all_diagnostics)
    return _findings(verdict.diagnostics)


def _findings(diagnostics: Iterable[Diagnostic]) -> Findings:
    return frozenset((finding.code, finding.severity) for finding in diagnostics)


def _run_command(args: tuple[str, ...]) -> Findings:
    printed = io.StringIO()
    builtin = any(arg.startswith(("builtin:", "hf:")) for arg in args)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        if builtin:
            compiling = stack.enter_context(mock.patch("torch.compile", side_effect=ReachedTheModelError))
        run([*args, "--format", "json"])
        if builtin and compiling.called:
            return frozenset()
    found = json.loads(printed.getvalue())["diagnostics"]
    return frozenset((finding["code"], finding["severity"]) for finding in found)


def _run_python(text: str) -> Findings:
    import torch
    from torch.utils.checkpoint import checkpoint

    from offload_runtime import load_policy

    block = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    compiled = torch.compile(block, backend="offload", options={"policy": "max-savings"})
    x = torch.randn(1024, 8, requires_grad=True)
    names = {"torch": torch, "checkpoint": checkpoint, "load_policy": load_policy, "x": x}
    names |= {"block": block, "model": block, "compiled_model": compiled}
    torch.compiler.reset()
    try:
        result: Any = eval(text, names)
        if isinstance(result, torch.nn.Module):
            result = result(x)
        if isinstance(result, torch.Tensor):
            result.sum().backward()
        return frozenset()
    except OffloadError as error:
        return _findings(error.diagnostics)
    except Exception as error:
        found = re.findall(r"\b[A-Z]{3,4}\d{3}\b", str(error))
        if not found:
            raise
        return frozenset((code, "error") for code in found)
    finally:
        torch.compiler.reset()


def message_templates(code: str, source: Path) -> Iterator[re.Pattern[str]]:
    """Yield what a message of ``code`` can look like: the texts of the packages that raise it, gaps left open."""
    raising = {
        path.parent
        for path in source.rglob("*.py")
        if path.parent.name != "codes" and f'"{code}"' in path.read_text("utf-8")
    }
    for folder in sorted(raising):
        for path in sorted(folder.glob("*.py")):
            yield from _patterns(path)


@cache
def _patterns(path: Path) -> tuple[re.Pattern[str], ...]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    texts = [node for node in nodes if isinstance(node, ast.JoinedStr) or id(node) not in inner]
    return tuple(pattern for node in texts if (pattern := _pattern(node)) is not None)


def _pattern(node: ast.AST) -> re.Pattern[str] | None:
    """Return the pattern of a text with gaps; None for a node that is none, or of less than two fixed words."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # A whole message, or a part of some length that is put together with others.
        anywhere = ".*" if len(node.value.split()) > 3 else ""
        return re.compile(anywhere + re.escape(node.value)) if node.value.strip() else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = [str(part.value) if isinstance(part, ast.Constant) else None for part in node.values]
    if len(" ".join(part for part in parts if part is not None).split()) < 2:
        return None
    return re.compile("".join(".*" if part is None else re.escape(part) for part in parts))
