"""The list of generated pages: where each stands, from which template, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from offload_runtime.card_checks.decision_table import DECISION_TABLE, with_decision_table
from offload_runtime.codes import FAMILIES, CodeEntry
from offload_runtime.docgen.command_reference import read_commands
from offload_runtime.docgen.effects import picture_file
from offload_runtime.docgen.evidence_reference import read_evidence
from offload_runtime.docgen.rendering import render
from offload_runtime.docgen.result_pictures import result_picture
from offload_runtime.docgen.schema_examples import collect_examples
from offload_runtime.docgen.schema_reference import read_schema
from offload_runtime.docgen.skill_reference import read_skills
from offload_runtime.docgen.sources import Sources
from offload_runtime.facts import SOURCES
from offload_runtime.models.catalog import list_models
from offload_runtime.op_classes import OP_CLASSES
from offload_runtime.policy_text import policy_data
from offload_runtime.units import format_size_short

__all__ = ["GENERATED", "Page", "list_pages", "render_pages"]

GENERATED = "<!-- Written by `offload docs build`; changes here are lost. -->"
REFERENCE = "docs/reference"

# Hand-written pages, with what llms.txt and the index say of them.
GUIDES: Mapping[str, tuple[str, str]] = {
    "docs/getting-started.md": (
        "Getting started",
        "from an installation to a policy that is applied and compared",
    ),
    "docs/how-it-works.md": (
        "How it works",
        "what happens between a policy and a training step, with a picture",
    ),
    "docs/tuning.md": ("Tuning", "which value of a policy to change, by what the report shows"),
    "docs/recipes.md": (
        "Recipes",
        "training loops that run: plain PyTorch, Hugging Face's Trainer, accumulation",
    ),
    "docs/limits.md": ("Limits", "what is refused, what is not done yet, and what was never measured"),
    "docs/published-results.md": ("Published results", "an article's figures, counted without a GPU"),
    "docs/decisions.md": ("Decisions", "why things are built as they are"),
}

SCHEMAS: Mapping[str, str] = {
    "policy": "every key of a policy: type, default, meaning, example",
    "policy-test": "every key of a policy test (`cases.yaml`)",
    "hardware": "every key of a hardware profile",
    "card": "every key of a skill card",
    "evals": "every key of a skill's evals",
    "result": "every key of a result file of `offload bench`",
    "target": "every key of what is known about an export target",
}


@dataclass(frozen=True)
class Page:
    """One generated page: its path from the root, title, one line on it, template, and the values it shows."""

    path: str
    title: str
    summary: str
    template: str
    values: Callable[[Sources], Mapping[str, Any]]


def list_pages(sources: Sources) -> tuple[Page, ...]:
    """Return the pages of the reference, without the index and llms.txt."""
    return (*_schema_pages(sources), *_PAGES)


def render_pages(sources: Sources) -> dict[str, str]:
    """Return every generated page, the index and llms.txt included: path from the root -> text."""
    pages = list_pages(sources)
    guides = [
        {"path": path, "title": title, "summary": summary}
        for path, (title, summary) in GUIDES.items()
        if (sources.root / path).is_file()
    ]
    shared = {"generated": GENERATED}
    texts = {
        page.path: render(page.template, {**shared, "page": page, **page.values(sources)}) for page in pages
    }
    listed = {**shared, "pages": pages, "guides": guides}
    texts[f"{REFERENCE}/README.md"] = render("index.md.j2", listed)
    skills = [skill for skill in read_skills(sources.cards) if skill.folder]
    texts["llms.txt"] = render("llms.txt.j2", {**listed, "skills": skills, "policies": _summaries(sources)})
    texts |= dict(_decision_tables(sources))
    return texts


def _decision_tables(sources: Sources) -> Iterator[tuple[str, str]]:
    """Yield each SKILL.md that holds a decision table, with the table that the cards give."""
    cards = [card for file, card in sources.cards.items() if file.startswith("skills/")]
    for path in sorted((sources.root / "skills").glob("*/SKILL.md")):
        text = path.read_text("utf-8")
        if DECISION_TABLE in text:
            name = path.parent.name
            yield f"skills/{name}/SKILL.md", with_decision_table(text, cards, name)


def _schema_pages(sources: Sources) -> Iterator[Page]:
    for name in sorted(sources.schemas, key=lambda name: (name not in SCHEMAS, [*SCHEMAS, name].index(name))):
        schema = sources.schemas[name]
        yield Page(
            f"{REFERENCE}/schemas/{name}.md",
            schema["title"],
            SCHEMAS.get(name, f"every key of {schema['title']}"),
            "schema.md.j2",
            lambda sources, name=name: _schema(sources, name),  # type: ignore[misc]
        )


def _schema(sources: Sources, name: str) -> Mapping[str, Any]:
    schema = sources.schemas[name]
    kind = schema["properties"].get("kind", {}).get("const")
    documents = [one for one in (*sources.examples, *sources.evidence.values()) if _is_of(one, kind, schema)]
    return {
        "schema": read_schema(name, schema),
        "examples": collect_examples(schema, documents),
        "kind": kind,
    }


def _is_of(document: Any, kind: str | None, schema: Mapping[str, Any]) -> bool:
    if not isinstance(document, Mapping):
        return False
    if kind is not None:
        return document.get("kind") == kind
    return "kind" not in document and set(document) <= set(schema["properties"])


def _commands(sources: Sources) -> Mapping[str, Any]:
    return {"commands": read_commands(sources.program)}


def _codes(sources: Sources) -> Mapping[str, Any]:
    families = []
    for prefix, subject in FAMILIES.items():
        entries = [entry for entry in sources.codes.values() if entry.code.rstrip("0123456789") == prefix]
        shown = [{"entry": entry, "examples": tuple(_code_examples(entry))} for entry in entries]
        families.append({"prefix": prefix, "subject": subject, "entries": shown})
    return {"families": families, "num_codes": len(sources.codes)}


def _code_examples(entry: CodeEntry) -> Iterator[tuple[str, str, str]]:
    """Yield title, language and text of each example of a code."""
    for title, example in (("Bad", entry.bad_example), ("Good", entry.good_example)):
        if example:
            yield f"{title}:", _language(entry.code, example), example.strip("\n")
    message = entry.message_example
    if message:
        yield "As it is printed:", "text", message.strip("\n")


def _language(code: str, example: str) -> str:
    """Return what an example is written in; files with a command below them are plain text."""
    commands = [line.startswith("offload ") for line in example.splitlines() if line and line[0] not in "# "]
    if all(commands):
        return "sh"
    if any(commands):
        return "text"
    if code.startswith(("YAML", "POL", "PTS", "HWP", "CRD")):
        return "yaml"
    return "python" if "(" in example or "=" in example else "text"


def _policies(sources: Sources) -> Mapping[str, Any]:
    raw = {name: yaml.safe_load(text) for name, text in sources.policy_texts.items()}
    said = {
        rule["name"]: rule.get("summary", "")
        for document in raw.values()
        for rule in document.get("activations", {}).get("rules", ())
    }
    shown = []
    for name, policy in sources.policies.items():
        data = policy_data(policy.policy)
        own = {rule["name"] for rule in raw[name].get("activations", {}).get("rules", ())}
        shown.append(
            {
                "name": name,
                "summary": policy.policy.summary,
                "text": sources.policy_texts[name].strip(),
                "data": data,
                "rules": [
                    {**rule, "summary": said.get(rule["name"], ""), "own": rule["name"] in own}
                    for rule in data.get("activations", {}).get("rules", ())
                ],
                "extends": policy.policy.extends,
                "picture": _beside(picture_file(name)),
            }
        )
    effects = sources.effects
    return {
        "policies": shown,
        "effects": effects,
        "frontier": _beside(picture_file("frontier")),
        "size": format_size_short,
    }


def _beside(path: str) -> str:
    """Return a path from the root as a link from a page of the reference."""
    return path.removeprefix(f"{REFERENCE}/")


def _summaries(sources: Sources) -> Mapping[str, str]:
    return {name: policy.policy.summary for name, policy in sources.policies.items()}


def _skills(sources: Sources) -> Mapping[str, Any]:
    return {"skills": read_skills(sources.cards)}


def _facts(sources: Sources) -> Mapping[str, Any]:
    return {"groups": [(source, [f for f in sources.facts if f.source == source]) for source in SOURCES]}


def _hardware(sources: Sources) -> Mapping[str, Any]:
    return {"profiles": sources.profiles}


def _models(sources: Sources) -> Mapping[str, Any]:
    return {"models": list_models(), "op_classes": OP_CLASSES}


def _results(sources: Sources) -> Mapping[str, Any]:
    shown = []
    for file, data in sources.evidence.items():
        picture = result_picture(file, data)
        shown.append((read_evidence(file, data), None if picture is None else _beside(picture)))
    return {"results": shown}


def _page(name: str, title: str, summary: str, values: Callable[[Sources], Mapping[str, Any]]) -> Page:
    return Page(f"{REFERENCE}/{name}.md", title, summary, f"{name}.md.j2", values)


_PAGES = (
    _page("commands", "Commands", "every command, option and exit code", _commands),
    _page("codes", "Diagnostic codes", "what each finding means, and its cure", _codes),
    _page("policies", "Shipped policies", "text, rules and simulated effect of each", _policies),
    _page("skills", "Skills", "when to use which, what was measured, how it fails", _skills),
    _page("facts", "Facts", "what conditions in policies and cards may name", _facts),
    _page("hardware-profiles", "Hardware profiles", "every figure with its source", _hardware),
    _page("models", "Built-in models and op classes", "the names that commands and rules take", _models),
    _page("results", "Results", "every result file of this repository as a table", _results),
)
