"""Values given on the command line: ``--set limits.budget=8GiB``.

::

    override = path "=" value
    path     = key ("." key | "[" index "]" | "[" rule name "]")*
    value    = YAML, as strict as in a file

A finding about an override names ``--set`` as its file, the override's number as its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offload_runtime.document import ListNode, MapNode, Node, ScalarNode, child_path, document_from_data
from offload_runtime.errors import Span, UnreadableError
from offload_runtime.findings import Findings
from offload_runtime.shape import did_you_mean
from offload_runtime.strict_yaml import read_yaml

OVERRIDE_FILE = "--set"
MAX_PATH_CHARACTERS = 500  # far more than a policy is deep, and its steps are taken one inside the other

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[[A-Za-z0-9_.-]+\])*\Z")
_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[([A-Za-z0-9_.-]+)\]")


@dataclass(frozen=True, slots=True)
class Override:
    """One value and the place it goes to; a step is a key, an index, or the name of a rule."""

    steps: tuple[str | int, ...]
    value: Node
    span: Span


def parse_overrides(given: Mapping[str, Any] | Sequence[str], findings: Findings) -> tuple[Override, ...]:
    """Read overrides given as ``path=value`` texts or as a mapping from path to value."""
    if isinstance(given, str):
        raise ValueError(f"overrides is a list such as [{given!r}], or a mapping, not one text")
    pairs: list[tuple[str, Any, bool]] = []
    if isinstance(given, Mapping):
        pairs = [(path, value, isinstance(value, str)) for path, value in given.items()]
    else:
        pairs = [
            (path, value if equals else None, True)
            for path, equals, value in (o.partition("=") for o in given)
        ]
    read = (
        _parse(path, value, text, number, findings)
        for number, (path, value, text) in enumerate(pairs, start=1)
    )
    return tuple(override for override in read if override is not None)


def apply_override(tree: MapNode, override: Override, findings: Findings) -> MapNode:
    """Return ``tree`` with the override's value in its place."""
    if override.steps[0] in ("extends", "apiVersion", "kind"):
        findings.add(
            override.span,
            "POL150",
            f"{override.steps[0]} cannot be set",
            "write a file that extends the policy",
        )
        return tree
    changed = _set(tree, override.steps, override, findings)
    return changed if isinstance(changed, MapNode) else tree


def _parse(path: str, value: Any, is_text: bool, number: int, findings: Findings) -> Override | None:
    span = Span(OVERRIDE_FILE, number, 1)
    if value is None or not _PATH.match(path) or len(path) > MAX_PATH_CHARACTERS:
        shown = path if value is None else f"{path}={value}"
        hint = "write PATH=VALUE, such as limits.budget=8GiB or activations.rules[heavy].action=save"
        findings.add(span, "POL150", f"{_cut(shown)!r} is not an override", hint)
        return None
    steps = tuple(key or (int(index) if index.isdecimal() else index) for key, index in _STEP.findall(path))
    dotted = _dotted(steps)
    if not is_text:
        document = document_from_data(value, file=OVERRIDE_FILE, root_path=dotted)
    else:
        column = len(path) + 2
        if not value.strip():
            place = Span(OVERRIDE_FILE, number, column)
            findings.add(place, "YAML034", "a value is missing here", "give a value", path=dotted)
            return None
        try:
            # Blanks in front of the value put its columns where they are in the override.
            document = read_yaml(
                " " * (column - 1) + value, OVERRIDE_FILE, root_path=dotted, first_line=number
            )
        except UnreadableError as error:
            end = column + len(value)
            findings.diagnostics += [
                replace(d, path=dotted, line=number, column=d.column if d.line == number else end)
                for d in error.diagnostics
            ]
            return None
    findings.diagnostics += document.diagnostics
    return Override(steps, document.root, span)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PATH_CHARACTERS else f"{text[:MAX_PATH_CHARACTERS]}..."


def _dotted(steps: Sequence[str | int]) -> str:
    """Return the dotted path, in which the steps after ``rules`` are members of a list."""
    path = ""
    for previous, step in zip(("", *steps), steps, strict=False):
        in_list = isinstance(step, int) or previous == "rules"
        path = f"{path}[{step}]" if in_list else child_path(path, step)
    return path


def _set(
    node: Node | None, steps: Sequence[str | int], override: Override, findings: Findings
) -> Node | None:
    """Return ``node`` with the override's value in it; None, and a finding, where it has no such place.

    A mapping that is missing is made, a list is not: it has no member to set.
    """
    if not steps:
        return override.value
    step, rest = steps[0], steps[1:]
    if isinstance(node, ListNode):
        return _set_in_list(node, step, rest, override, findings)
    before = override.steps[: len(override.steps) - len(steps)]
    is_missing_list = node is None and before[-1:] == ("rules",)
    if isinstance(step, int) or is_missing_list or not (node is None or isinstance(node, MapNode)):
        findings.add(override.span, "POL150", f"there is nothing at {step!r} to set", "check the path")
        return None
    base = node if isinstance(node, MapNode) else MapNode({}, {}, override.span, _dotted(before))
    value = _set(base.get(step), rest, override, findings)
    if value is None:
        return None
    spans = {**base.key_spans, step: override.span}
    return MapNode({**base.entries, step: value}, spans, base.span, base.path)


def _set_in_list(
    node: ListNode, step: str | int, rest: Sequence[str | int], override: Override, findings: Findings
) -> Node | None:
    names = [_name(item) for item in node.items]
    index = step if isinstance(step, int) else (names.index(step) if step in names else len(names))
    if index >= len(node.items):
        hint = did_you_mean(str(step), [name for name in names if name]) or "check the path"
        findings.add(override.span, "POL150", f"there is no member {step!r} to set", hint)
        return None
    changed = _set(node.items[index], rest, override, findings)
    if changed is None:
        return None
    return ListNode((*node.items[:index], changed, *node.items[index + 1 :]), node.span, node.path)


def _name(node: Node) -> str | None:
    name = node.get("name") if isinstance(node, MapNode) else None
    return name.value if isinstance(name, ScalarNode) and isinstance(name.value, str) else None
