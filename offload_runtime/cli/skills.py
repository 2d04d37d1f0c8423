"""`offload skills`: list, show, check and install the skill cards that come with the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click

from offload_runtime.card import CARD_FILE
from offload_runtime.card_checks import Checker, SkillVerdict
from offload_runtime.cli.options import format_option
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, Outcome
from offload_runtime.errors import Diagnostic, RefusedError, UsageError, sorted_diagnostics
from offload_runtime.reporting.skills import (
    card_data,
    render_installed,
    render_skills,
    render_verdict,
    verdict_data,
)
from offload_runtime.skills_catalog import SKILL_FILE, find_skill, list_skills, package_card, repository_root
from offload_runtime.skills_install import CLIENT_FOLDERS, install_skills


@click.group(name="skills", short_help="List, show, check or install the skill cards.")
def command() -> None:
    """List, show, check or install the skill cards: what an agent reads to decide whether and how to offload.

    \b
    Example:
      offload skills list
      offload skills show choose-offload
    """


@command.command("list")
@format_option()
def list_command() -> Outcome:
    """List the skills with what each is for.

    \b
    Example:
      offload skills list
    """
    from offload_runtime.card_reading import load_card

    listed = [(skill, load_card(skill.card)) for skill in (package_card(), *list_skills())]
    entries = [{"name": skill.name, "title": card.title, "summary": card.summary} for skill, card in listed]
    return Outcome(data={"skills": entries}, text=render_skills(entries))


@command.command("show")
@click.argument("name", metavar="NAME")
@click.argument("named", metavar="[FILE]", required=False)
@click.option(
    "--file", "file", metavar="FILE", help="Another file of the skill, such as card.yaml; FILE is the same."
)
@format_option()
def show_command(name: str, named: str | None, file: str | None) -> Outcome:
    """Show a skill: its SKILL.md, or another of its files. `cpu-offload` is the package's own card, as Markdown.

    With --format json also the card's data and the names of all files.

    \b
    Example:
      offload skills show choose-offload
      offload skills show choose-offload references/arithmetic.md
      offload skills show choose-offload --file card.yaml
    """
    from offload_runtime.card_reading import load_card
    from offload_runtime.reporting.card import render_card
    from offload_runtime.strict_yaml import read_yaml_file

    if file is not None and named not in (None, file):
        message = f"two files are named, {named} and {file}"
        raise UsageError(Diagnostic("CLI604", "error", message, hint="leave one of them out"))
    file = file or named
    skill = find_skill(name)
    files = skill.files()
    shown = file or (CARD_FILE if skill.is_package else SKILL_FILE)
    if shown not in files:
        hint = f"files of {skill.name}: {', '.join(files)}"
        raise UsageError(Diagnostic("CLI604", "error", f"{skill.name} has no file {shown!r}", hint=hint))
    document = read_yaml_file(skill.card, file=skill.file_label(CARD_FILE))
    if file is None and skill.is_package:
        text = render_card(load_card(skill.card))
    else:
        text = skill.path(shown).read_text("utf-8")
    return Outcome(
        data={
            "name": skill.name,
            "file": shown,
            "text": text,
            "card": card_data(document),
            "files": list(files),
        },
        text=text.rstrip("\n"),
        next=tuple(
            f"offload skills show {skill.name} --file {other}"
            for other in files
            if shown == SKILL_FILE and other.startswith("references/")
        ),
    )


@command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--run-tests",
    is_flag=True,
    help="Also run the tests that the cards name and the evals that train. Only in a checkout of the project.",
)
@format_option("sarif", "github")
def check_command(names: tuple[str, ...], run_tests: bool) -> Outcome:
    """Check skills, by default all: cards, texts and evals, against what they name.

    Conditions are evaluated on their examples, numbers derived again from their result files, symbols and tests
    looked up in the source, commands in the command line, and the stored answers of evals graded. Nothing that a card
    says is executed. NAME is a skill, or the path of a folder with one.

    \b
    Example:
      offload skills check
      offload skills check tune-activation-offload --run-tests
    """
    from offload_runtime.cli.command_lookup import command_problem
    from offload_runtime.cli.eval_graders import graders

    root = repository_root()
    if run_tests and root is None:
        hint = "run it in a checkout of the project, with the package installed from there"
        raise RefusedError(Diagnostic("CRD603", "error", "there is no checkout to run tests in", hint=hint))
    skills = [find_skill(name) for name in names] or [package_card(), *list_skills()]
    checker = Checker(root, command_problem, graders(train=run_tests))
    verdicts = checker.check(skills, run_tests=run_tests)
    return Outcome(
        data={"skills": [verdict_data(verdict) for verdict in verdicts]},
        text="\n".join(render_verdict(verdict) for verdict in verdicts),
        diagnostics=sorted_diagnostics(finding for verdict in verdicts for finding in verdict.diagnostics),
        exit_code=EXIT_OK if all(verdict.ok for verdict in verdicts) else EXIT_FINDINGS,
        next=_next(verdicts),
        diagnostics_are_output=True,
    )


@command.command("install")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--to", "folder", metavar="DIR", help="Folder to copy the skills into, each under its name.")
@click.option(
    "--client",
    type=click.Choice(sorted(CLIENT_FOLDERS)),
    help="Copy into the folder of this project in which that client looks for skills.",
)
@click.option("--force", is_flag=True, help="Replace files of other contents.")
@format_option()
def install_command(names: tuple[str, ...], folder: str | None, client: str | None, force: bool) -> Outcome:
    """Copy skills, by default all, to where an agent looks for them.

    Give either --to or --client. A second time nothing changes; after an update of the package, --force replaces
    the older files.

    \b
    Example:
      offload skills install --client claude
      offload skills install --to .agents/skills choose-offload
    """
    if (not folder) == (client is None):
        hint = "give --to DIR, or --client NAME"
        raise UsageError(Diagnostic("CLI603", "error", "give either --to or --client", hint=hint))
    target = Path(folder or CLIENT_FOLDERS[client or ""])
    skills = [find_skill(name) for name in names] or list_skills()
    for skill in skills:
        if skill.is_package:
            hint = f"see it with offload skills show {skill.name}; without a NAME all skills are installed"
            message = f"{skill.name} is the card of the package itself, and no skill to install"
            raise UsageError(Diagnostic("CLI604", "error", message, hint=hint))
    installed = install_skills(skills, target, force=force)
    return Outcome(
        data={"folder": target.as_posix(), "skills": [dataclasses.asdict(skill) for skill in installed]},
        text=render_installed(installed),
    )


def _next(verdicts: Sequence[SkillVerdict]) -> tuple[str, ...]:
    errors = [finding for verdict in verdicts for finding in verdict.diagnostics if finding.is_error]
    return (f"offload codes {errors[0].code}",) if errors else ()
