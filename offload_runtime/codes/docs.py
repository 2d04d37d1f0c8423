"""DOC1xx: the documentation of this repository."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "DOC100",
        "error",
        "no checkout of the repository",
        "The documentation is built from the repository: its policies, skills and result files. An installed package "
        "has no docs folder to build.",
        "Run the command in a checkout, or name one with --root.",
        message_example="no checkout of the repository here",
    ),
    CodeEntry(
        "DOC101",
        "error",
        "a page is stale",
        "The page is not what its sources say now: a schema, the code table, a command, a policy, a card, a fact, a "
        "profile or a result file has changed. The finding shows the first lines that differ.",
        "Run `offload docs build`, look at what changed, and commit it.",
        message_example="docs/reference/codes.md is stale",
    ),
    CodeEntry(
        "DOC102",
        "error",
        "a page is missing",
        "The page would be generated and is not there.",
        "Run `offload docs build`.",
        message_example="docs/reference/codes.md is missing",
    ),
    CodeEntry(
        "DOC103",
        "error",
        "a file in docs/reference that nobody generates",
        "Everything in docs/reference is generated. This file was left by something that no longer exists, or was put "
        "there by hand.",
        "Run `offload docs build`, which removes it; a page written by hand belongs into docs.",
        message_example="docs/reference/old-page.md is not generated",
    ),
    CodeEntry(
        "DOC104",
        "error",
        "a link leads nowhere",
        "A page points at a file or a heading of this repository that does not exist. Links to other sites are not "
        "looked at.",
        "Correct the link, or the heading it means.",
        message_example="tunning.md leads nowhere: there is no such file",
    ),
    CodeEntry(
        "DOC105",
        "error",
        "simulated figures are not those of the policies",
        "A policy, a hardware profile or a quoted plan has changed since docs/evidence/policy-effects.json or "
        "quoted-plans.json was made, or a picture is not the one that was drawn then.",
        "Run `offload docs build --refresh`, which simulates policies and quoted plans again; it takes minutes.",
        message_example="policy balanced has changed since it was simulated",
    ),
)
