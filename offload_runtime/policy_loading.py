"""From a source (path, shipped name, data) to one merged document: bases, overrides, and what was found.

Merging: mappings by key, lists replace; ``requires`` is one condition and replaces the base's. Rules: own,
then the last base's, back to the first's; a rule of the same name replaces the inherited one, at the child's
position.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload_runtime.document import (
    Document,
    InvalidNode,
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    document_from_data,
)
from offload_runtime.errors import Diagnostic, UnreadableError, sorted_diagnostics
from offload_runtime.findings import Findings
from offload_runtime.op_names import op_hint
from offload_runtime.overrides import OVERRIDE_FILE, apply_override, parse_overrides
from offload_runtime.policy import RESERVED_RULE_NAMES, Policy
from offload_runtime.policy_reading import glob_hint, read_policy_tree
from offload_runtime.shape import Hint, check_shape, load_schema
from offload_runtime.shipped import find_source, locate_policy
from offload_runtime.strict_yaml import read_yaml_file
from offload_runtime.units import size_hint

MAX_EXTENDS_DEPTH = 16
SECTIONS = ("activations", "optimizer_state", "gradients", "parameters")
NEEDED_KEYS = {
    "activations": "default",
    "optimizer_state": "offload_fraction",
    "gradients": "offload",
    "parameters": "offload",
}

# What belongs to one file and is not inherited.
_OWN_KEYS = ("apiVersion", "kind", "name", "summary", "extends")


@dataclass(frozen=True, slots=True)
class PolicyReading:
    """A policy as far as it could be read, and what was found; None where nothing could be.

    ``files`` are the files that were read, bases included, by their real paths.
    """

    policy: Policy | None
    diagnostics: tuple[Diagnostic, ...]
    files: tuple[str, ...] = ()


def percent_hint(value: object) -> str | None:
    """Suggest a percentage for a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "write a number and %, such as 5%"
    if value == 0:
        return "write 0%"
    return f"write {value * 100:g}% for the share {value:g}" if 0 < value < 1 else f"write {value:g}%"


def name_hint(value: object) -> str | None:
    """Suggest the name that is closest to a text."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(value)).strip("-._")[:64].strip("-._")
    return f"did you mean {slug}?" if slug else None


POLICY_HINTS: Mapping[str, Hint] = {
    "size": size_hint,
    "percent": percent_hint,
    "glob": glob_hint,
    "op": op_hint,
    "name": name_hint,
}


def read_policy(
    source: str | Path | Mapping[str, Any] | Document, overrides: Mapping[str, Any] | Sequence[str] = ()
) -> PolicyReading:
    """Read a policy from a path, a shipped name, data or a document; findings are returned, never raised."""
    loader = _Loader()
    tree = loader.load(source)
    if tree is None:
        return PolicyReading(None, sorted_diagnostics(loader.findings.diagnostics), tuple(loader.loaded))
    root = loader.overridden(tree.root, overrides)
    if loader.is_whole:
        _check_complete(root, loader.findings)
    policy = read_policy_tree(root, loader.findings, tree.own_rules)
    return PolicyReading(policy, sorted_diagnostics(loader.findings.diagnostics), tuple(loader.loaded))


@dataclass(frozen=True, slots=True)
class _Tree:
    """A document with its bases merged in, and the names of the rules that it wrote itself."""

    root: MapNode
    own_rules: frozenset[str]


class _Loader:
    def __init__(self) -> None:
        self.findings = Findings()
        self.loaded: dict[str, _Tree | None] = {}
        self.is_whole = True

    def load(self, source: str | Path | Mapping[str, Any] | Document) -> _Tree | None:
        if isinstance(source, Document):
            chain = (os.path.realpath(find_source(source.file)),) if source.file is not None else ()
            return self._merged(source, chain)
        try:
            if isinstance(source, Mapping):
                return self._merged(document_from_data(source), ())
            path, name = locate_policy(_reference(source))
            return self._load_file(path, name, ())
        except UnreadableError as error:
            self.findings.diagnostics += error.diagnostics
            return None

    def overridden(self, root: MapNode, overrides: Mapping[str, Any] | Sequence[str]) -> MapNode:
        """Apply the overrides, and check the shape of what they made."""
        parsed = parse_overrides(overrides, self.findings)
        for override in parsed:
            root = apply_override(root, override, self.findings)
        if not parsed:
            return root
        checked, failures = check_shape(root, load_schema("policy"), POLICY_HINTS)
        # Files were checked one by one; only what an override brought can be new.
        self.findings.diagnostics += [failure for failure in failures if failure.file == OVERRIDE_FILE]
        assert isinstance(checked, MapNode)
        return checked

    def _load_file(self, path: Path, name: str, chain: tuple[str, ...]) -> _Tree | None:
        identity = os.path.realpath(path)
        if identity not in self.loaded:
            self.loaded[identity] = self._merged(read_yaml_file(path, file=name), (*chain, identity))
        return self.loaded[identity]

    def _merged(self, document: Document, chain: tuple[str, ...]) -> _Tree | None:
        self.findings.diagnostics += document.diagnostics
        root, failures = check_shape(document.root, load_schema("policy"), POLICY_HINTS)
        self.findings.diagnostics += failures
        if not isinstance(root, MapNode):
            return None
        self._check_rule_names(root)
        # Values are checked file by file: a base's finding names the base, even where a child replaces it.
        read_policy_tree(root, self.findings)
        own_rules = frozenset(_rules_by_name(root))
        merged = MapNode({}, {}, root.span)
        for base in self._bases(root, document.file, chain):
            merged = _merge(merged, _inheritable(base.root))
        return _Tree(_merge(merged, root), own_rules)

    def _bases(self, root: MapNode, file: str | None, chain: tuple[str, ...]) -> list[_Tree]:
        extends = root.get("extends")
        items = extends.items if isinstance(extends, ListNode) else ()
        bases = [self._base(item, file, chain) for item in items if isinstance(item, ScalarNode)]
        self.is_whole &= None not in bases
        return [base for base in bases if base is not None]

    def _base(self, item: ScalarNode, file: str | None, chain: tuple[str, ...]) -> _Tree | None:
        reference = str(item.value)
        try:
            path, name = locate_policy(reference, beside=file)
        except UnreadableError as error:
            first = error.diagnostics[0]
            self.findings.add(item, "POL140", first.message, first.hint)
            return None
        if os.path.realpath(path) in chain:
            self.findings.add(item, "POL141", f"{reference!r} extends this policy in turn", "break the cycle")
            return None
        if len(chain) >= MAX_EXTENDS_DEPTH:
            self.findings.add(
                item, "POL141", f"bases are nested deeper than {MAX_EXTENDS_DEPTH}", "flatten them"
            )
            return None
        try:
            return self._load_file(path, name, chain)
        except UnreadableError as error:
            self.findings.add(
                item, "POL140", f"base {reference!r} cannot be read", "see the finding in that file"
            )
            self.findings.diagnostics += error.diagnostics
            return None

    def _check_rule_names(self, root: MapNode) -> None:
        seen: dict[str, ScalarNode] = {}
        for name, _ in _named_rules(root):
            if name.value in RESERVED_RULE_NAMES:
                hint = "choose another name: verdicts use this one"
                self.findings.add(name, "POL123", f"rule name {name.value!r} is reserved", hint)
            first = seen.setdefault(str(name.value), name)
            if first is not name:
                where = f" (line {first.span.line})" if first.span.line else ""
                message = f"two rules of this file are named {name.value!r}"
                self.findings.add(name, "POL122", message, f"rename one of them{where}")


def _reference(source: str | Path) -> str:
    """Return the text that names the source; a Path is never the name of a shipped policy."""
    text = os.fspath(source)
    return os.path.join(os.curdir, text) if isinstance(source, Path) and len(source.parts) == 1 else text


def _check_complete(root: MapNode, findings: Findings) -> None:
    """Report what has to stand somewhere, in the file or in a base."""
    for section, key in NEEDED_KEYS.items():
        node = root.get(section)
        if isinstance(node, MapNode) and key not in node.entries:
            findings.add(
                root.key_span(section),
                "POL132",
                f"{section} has no {key}, here or in a base",
                f"add {key}: ...",
                path=section,
            )
    # Without extends the schema has said so already.
    if "extends" in root.entries and not any(section in root.entries for section in SECTIONS):
        findings.add(
            root.key_span("extends"),
            "POL131",
            "neither this policy nor a base says anything about state",
            f"add one of {', '.join(SECTIONS)}; one that moves nothing is optimizer_state: {{offload_fraction: 0.0}}",
            path="extends",
        )


def _merge(base: MapNode, child: MapNode) -> MapNode:
    """Merge two documents; the child wins."""
    merged = _merge_mappings(base, child, {"requires", "activations"})
    ours, theirs = base.get("activations"), child.get("activations")
    if isinstance(ours, MapNode) and isinstance(theirs, MapNode):
        activations = _merge_mappings(ours, theirs, {"rules"})
        rules = _merge_rules(ours.get("rules"), theirs.get("rules"))
        if rules is not None:
            activations = MapNode(
                {**activations.entries, "rules": rules}, activations.key_spans, theirs.span, theirs.path
            )
        return MapNode(
            {**merged.entries, "activations": activations}, merged.key_spans, child.span, child.path
        )
    return merged


def _merge_mappings(base: MapNode, child: MapNode, replaced: set[str]) -> MapNode:
    entries = dict(base.entries)
    for key, value in child.entries.items():
        inherited = entries.get(key)
        if isinstance(inherited, MapNode) and isinstance(value, MapNode) and key not in replaced:
            entries[key] = _merge_mappings(inherited, value, set())
        else:
            entries[key] = value
    return MapNode(entries, {**base.key_spans, **child.key_spans}, child.span, child.path)


def _merge_rules(base: Node | None, child: Node | None) -> Node | None:
    if not isinstance(base, ListNode) or not isinstance(child, ListNode):
        return child if child is not None and not isinstance(child, InvalidNode) else base
    own = {str(name.value) for name, _ in _named(child)}
    inherited = [item for item in base.items if _rule_name(item) not in own]
    return ListNode((*child.items, *inherited), child.span, child.path)


def _inheritable(root: MapNode) -> MapNode:
    entries = {key: value for key, value in root.entries.items() if key not in _OWN_KEYS}
    return MapNode(entries, root.key_spans, root.span, root.path)


def _rules_by_name(root: MapNode) -> dict[str, Node]:
    return {str(name.value): node for name, node in _named_rules(root)}


def _named_rules(root: MapNode) -> list[tuple[ScalarNode, Node]]:
    activations = root.get("activations")
    rules = activations.get("rules") if isinstance(activations, MapNode) else None
    return _named(rules) if isinstance(rules, ListNode) else []


def _named(rules: ListNode) -> list[tuple[ScalarNode, Node]]:
    named = []
    for node in rules.items:
        name = node.get("name") if isinstance(node, MapNode) else None
        if isinstance(name, ScalarNode):
            named.append((name, node))
    return named


def _rule_name(node: Node) -> str | None:
    name = node.get("name") if isinstance(node, MapNode) else None
    return str(name.value) if isinstance(name, ScalarNode) else None
