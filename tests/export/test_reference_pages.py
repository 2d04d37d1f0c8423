"""The reference pages of the skill beside what the exports know: texts of refusals and names of constraints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offload_runtime.export.target import Target
from offload_runtime.export.target_reading import load_target
from offload_runtime.skills_catalog import list_skills

SKILL = next(skill for skill in list_skills() if skill.name == "export-offload-policy")
PAGE = SKILL.path("references/megatron-bridge.md").read_text("utf-8")
MEGATRON = load_target("megatron-bridge")
# What a user sees without a text of the target: memory and time.
SYMPTOMS = ("out of memory", "more than 4 times slower")


def quoted(target: Target) -> Iterator[tuple[str | None, str]]:
    """Yield the target's own texts, each with the key or the constraint that it belongs to."""
    yield from ((f"`{setting.key}`", setting.error) for setting in target.settings if setting.error)
    yield from ((constraint.name, constraint.error) for constraint in target.constraints if constraint.error)
    for failure in target.failures:
        if failure.constraint is None and not failure.error.startswith(SYMPTOMS):
            yield None, failure.error


@pytest.mark.parametrize(("name", "text"), list(quoted(MEGATRON)), ids=lambda value: str(value)[:40])
def test_every_text_with_which_megatron_refuses_is_on_its_page_with_the_name_of_the_finding(
    name: str | None, text: str
) -> None:
    rows = [line for line in PAGE.splitlines() if f"`{text.rstrip()}`" in line and line.startswith("| `")]
    assert rows, text
    assert name is None or any(f"| {name} |" in row for row in rows)


def test_every_constraint_of_megatron_is_named_on_its_page() -> None:
    open_ones = {"graphs-have-to-be-known", "recompute-has-to-be-known"}
    assert [c.name for c in MEGATRON.constraints if c.name not in PAGE and c.name not in open_ones] == []


def test_a_key_of_newer_versions_is_marked_on_the_page() -> None:
    rows = {line.split("|")[1].strip(): line for line in PAGE.splitlines() if line.startswith("| `model.")}
    for setting in MEGATRON.settings:
        row = rows.get(f"`{setting.key}`")
        if row is not None and "." in setting.key and "refus" not in row:
            assert ("(newer)" in row) is (setting.since is not None), setting.key


def test_what_becomes_of_gradients_is_said_in_the_same_words_everywhere() -> None:
    words = "copied to the host with offloaded state, and left on the device too"
    row = MEGATRON.row("gradients.offload").otherwise
    assert words in str(row.reason)
    assert [words in m.name for m in MEGATRON.mechanisms if m.moves == "gradients"] == [True]
    assert words in PAGE
    assert words in SKILL.path("SKILL.md").read_text("utf-8")


def test_how_a_configuration_is_tried_is_said_alike() -> None:
    assert "a command that only checks the configuration is not known" in MEGATRON.trial
    assert "A command that only checks is not known; a run of 20 iterations shows it." in PAGE
    assert "own configuration check" not in SKILL.path("SKILL.md").read_text("utf-8")
