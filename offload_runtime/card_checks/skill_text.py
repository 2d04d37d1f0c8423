"""SKILL.md: its frontmatter by the rules of Agent Skills, and what its text names: files and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from offload_runtime.card_checks.commands import CommandLookup, commands_in
from offload_runtime.document import MapNode, ScalarNode, read_text
from offload_runtime.errors import Span, UnreadableError
from offload_runtime.findings import Findings
from offload_runtime.skills_catalog import SKILL_FILE, Skill
from offload_runtime.strict_yaml import read_yaml

__all__ = ["check_skill_text"]

FRONTMATTER_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
MAX_DESCRIPTION_LENGTH = 1024
MAX_BODY_LINES = 500
_FRONTMATTER = re.compile(r"\A---\n(.*?)^---$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def check_skill_text(skill: Skill, lookup: CommandLookup, findings: Findings) -> int:
    """Check SKILL.md and the references beside it; returns how many commands they name."""
    label = skill.file_label(SKILL_FILE)
    try:
        text = read_text(skill.path(SKILL_FILE), label)
    except UnreadableError as error:
        findings.diagnostics += error.diagnostics
        return 0
    _check_frontmatter(skill, text, label, findings)
    num_commands = _check_mentions(skill, text, label, lookup, findings)
    for file in skill.files():
        if file.startswith("references/") and file.endswith(".md"):
            name = skill.file_label(file)
            num_commands += _check_mentions(skill, read_text(skill.path(file), name), name, lookup, findings)
    return num_commands


def _check_frontmatter(skill: Skill, text: str, label: str, findings: Findings) -> None:
    matched = _FRONTMATTER.match(text)
    if matched is None:
        hint = "begin with ---, name: and description:, and ---"
        findings.add(Span(label, 1, 1), "CRD401", "there is no frontmatter", hint)
        return
    try:
        document = read_yaml(matched.group(1), label, first_line=2)
    except UnreadableError as error:
        findings.diagnostics += error.diagnostics
        return
    findings.diagnostics += document.diagnostics
    root = document.root
    if not isinstance(root, MapNode):
        return
    for key in root.entries:
        if key not in FRONTMATTER_KEYS:
            hint = f"keys here: {', '.join(FRONTMATTER_KEYS)}"
            findings.add(root.key_span(key), "CRD401", f"unknown key {key!r}", hint)
    name, description = _text(root, "name"), _text(root, "description")
    if name != skill.name:
        message = f"the name is {name!r}, and the folder's {skill.name!r}"
        findings.add(root.key_span("name"), "CRD401", message, f"write name: {skill.name}")
    if not 1 <= len(description) <= MAX_DESCRIPTION_LENGTH:
        message = f"the description has {len(description)} characters"
        hint = f"write 1 to {MAX_DESCRIPTION_LENGTH}: what it does, and when to use it"
        findings.add(root.key_span("description"), "CRD401", message, hint)
    num_lines = text[matched.end() :].count("\n")
    if num_lines >= MAX_BODY_LINES:
        hint = "move what is rarely needed to a file in references/"
        findings.add(Span(label, 1, 1), "CRD401", f"the text has {num_lines} lines", hint)


def _check_mentions(skill: Skill, text: str, label: str, lookup: CommandLookup, findings: Findings) -> int:
    for target, line in _links(text):
        if not (skill.path(label.removeprefix(f"{skill.label}/")).parent / target).exists():
            hint = "correct the link: it is relative to this file"
            findings.add(Span(label, line, 1), "CRD402", f"there is no {target}", hint)
    mentions = commands_in(text)
    for mention in mentions:
        problem = lookup(mention.text, mention.is_whole)
        if problem is not None:
            hint = "`offload --help` lists the commands, `offload COMMAND --help` the options"
            findings.add(Span(label, mention.line, 1), "CRD403", f"`{mention.text}`: {problem}", hint)
    return len(mentions)


def _links(text: str) -> Iterator[tuple[str, int]]:
    for match in _LINK.finditer(text):
        target = match.group(1)
        if "://" not in target and not target.startswith("mailto:"):
            yield target, text.count("\n", 0, match.start()) + 1


def _text(node: MapNode, key: str) -> str:
    value = node.get(key)
    return value.value if isinstance(value, ScalarNode) and isinstance(value.value, str) else ""
