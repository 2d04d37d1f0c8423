"""The reference of this repository: every source has its place, and a change of one shows on its page."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.cli.program import program
from offload_runtime.docgen.effects import stale_effects
from offload_runtime.docgen.pages import GENERATED, render_pages
from offload_runtime.docgen.sources import EFFECTS_FILE, Sources, gather
from offload_runtime.hardware import HardwareProfile

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sources() -> Sources:
    return gather(ROOT, program)


@pytest.fixture(scope="module")
def pages(sources: Sources) -> dict[str, str]:
    return render_pages(sources)


def test_pages_say_that_they_are_generated(pages: Mapping[str, str]) -> None:
    reference = {page: text for page, text in pages.items() if page.startswith("docs/reference/")}
    assert len(reference) > 10
    assert [page for page, text in reference.items() if not text.startswith(GENERATED)] == []


def test_rendering_twice_gives_the_same(sources: Sources, pages: Mapping[str, str]) -> None:
    assert render_pages(sources) == pages


def test_every_code_stands_on_its_page(sources: Sources, pages: Mapping[str, str]) -> None:
    assert re.findall(r"^### (\w+)$", pages["docs/reference/codes.md"], re.MULTILINE) == sorted(
        sources.codes, key=lambda code: pages["docs/reference/codes.md"].index(f"### {code}\n")
    )
    assert len(re.findall(r"^### ", pages["docs/reference/codes.md"], re.MULTILINE)) == len(sources.codes)


def test_every_command_option_fact_policy_profile_and_result_stands_on_its_page(
    sources: Sources, pages: Mapping[str, str]
) -> None:
    places = {
        "commands": {f"## `offload {name}`" for name in program.list_commands(None)},  # type: ignore[arg-type]
        "facts": {f"| `{fact.name}` |" for fact in sources.facts},
        "policies": {f"## `{name}`" for name in sources.policies},
        "hardware-profiles": {
            figure.source.replace("|", "\\|") for p in sources.profiles for figure in p.figures
        },
        "results": {f"## {file.rpartition('/')[2]}" for file in sources.evidence},
        "skills": {f"## `{card.name}`" for card in sources.cards.values()},
    }
    missing = {
        page: sorted(text for text in texts if text not in pages[f"docs/reference/{page}.md"])
        for page, texts in places.items()
    }
    assert missing == {page: [] for page in places}


def test_every_key_of_a_policy_has_an_example(pages: Mapping[str, str]) -> None:
    page = pages["docs/reference/schemas/policy.md"]
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.count(" | ") == 4]
    without = [row.split(" | ")[0] for row in rows if row.endswith("|  |")]
    assert len(rows) > 50
    assert without == []


def test_llms_txt_has_the_form_that_it_is_known_by(pages: Mapping[str, str]) -> None:
    title, summary, *rest = [line for line in pages["llms.txt"].splitlines() if line]
    assert re.fullmatch(r"# \S.*", title)
    assert re.fullmatch(r"> \S.*", summary)
    listed = [line for line in rest if line.startswith("- ")]
    assert all(re.fullmatch(r"- \[[^\]]+\]\([^)]+\): \S.*", line) for line in listed)
    headings = [line for line in rest if line.startswith("#")]
    assert headings[-1] == "## Optional"
    assert all(line.startswith("## ") for line in headings)
    linked = re.findall(r"\]\(([^)]+)\)", "\n".join(listed))
    assert [path for path in linked if path not in pages and not (ROOT / path).is_file()] == []


def changed(pages: Mapping[str, str], others: Mapping[str, str]) -> set[str]:
    return {page.removeprefix("docs/reference/") for page in pages if pages[page] != others[page]}


def test_a_change_of_a_source_shows_on_its_page_and_on_no_other(
    sources: Sources, pages: Mapping[str, str]
) -> None:
    schema = copy.deepcopy(dict(sources.schemas["policy"]))
    schema["properties"]["limits"]["properties"]["budget"]["description"] += " Changed."
    assert changed(pages, render_pages(replace(sources, schemas={**sources.schemas, "policy": schema}))) == {
        "schemas/policy.md"
    }
    code = replace(sources.codes["POL104"], cure="Changed.")
    assert changed(pages, render_pages(replace(sources, codes={**sources.codes, "POL104": code}))) == {
        "codes.md"
    }
    facts = (replace(sources.facts[0], summary="Changed."), *sources.facts[1:])
    assert changed(pages, render_pages(replace(sources, facts=facts))) == {"facts.md"}


def test_a_change_of_one_number_of_a_result_file_shows(sources: Sources, pages: Mapping[str, str]) -> None:
    file = "docs/evidence/llama3-8b-inductor-h200.json"
    data = copy.deepcopy(dict(sources.evidence[file]))
    data["step_ms"]["policy"] += 0.1
    evidence = {**sources.evidence, file: data}
    assert changed(pages, render_pages(replace(sources, evidence=evidence))) == {"results.md"}


def test_the_simulated_effects_are_those_of_the_policies_as_they_are(sources: Sources) -> None:
    assert stale_effects(sources) == ()


def effects_with(sources: Sources, **changes: Any) -> Sources:
    return replace(
        sources, evidence={**sources.evidence, EFFECTS_FILE: {**(sources.effects or {}), **changes}}
    )


def test_a_change_of_a_policy_makes_its_effect_stale(sources: Sources) -> None:
    policies = {**sources.policies, "balanced": sources.policies["conservative"]}
    assert stale_effects(replace(sources, policies=policies)) == (
        "policy balanced has changed since it was simulated",
    )
    policies = {**sources.policies, "new": sources.policies["balanced"]}
    assert stale_effects(replace(sources, policies=policies)) == ("policy new has not been simulated yet",)
    policies = {name: policy for name, policy in sources.policies.items() if name != "moe"}
    assert stale_effects(replace(sources, policies=policies)) == (
        "policy moe was simulated and does not exist",
    )


def test_a_change_of_the_profile_or_of_a_picture_makes_effects_stale(sources: Sources) -> None:
    profiles = tuple(HardwareProfile(p.name, "changed", p.figures) for p in sources.profiles)
    assert stale_effects(replace(sources, profiles=profiles)) == (
        "hardware profile h200-pcie5 has changed since the policies were simulated",
    )
    pictures = {"docs/reference/policies/none.svg": "0", "README.md": "0"}
    assert stale_effects(effects_with(sources, pictures=pictures)) == (
        "picture docs/reference/policies/none.svg is missing",
        "picture README.md is not the one that was drawn",
    )
    evidence = {file: data for file, data in sources.evidence.items() if file != EFFECTS_FILE}
    assert stale_effects(replace(sources, evidence=evidence)) == ("the policies have not been simulated yet",)


def test_building_the_pages_loads_no_torch() -> None:
    script = (
        "import sys, json; from pathlib import Path; from offload_runtime.cli.program import program;"
        "from offload_runtime.docgen.pages import render_pages; from offload_runtime.docgen.sources import gather;"
        "render_pages(gather(Path(sys.argv[1]), program));"
        "print(json.dumps([name for name in ('torch', 'matplotlib', 'scipy', 'rich') if name in sys.modules]))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, str(ROOT)], capture_output=True, text=True, check=True
    )
    assert json.loads(finished.stdout) == []
