"""CRDxxx: skill cards, by themselves (1xx), against evidence (2xx), code and tests (3xx); texts and evals (4xx, 5xx).

What their shape has in common with other files is POL1xx.
"""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

_THE_CARD = (
    CodeEntry(
        "CRD101",
        "error",
        "an example that does not decide its condition",
        "Beside a condition stand facts that satisfy it (holds) and facts that do not (fails); both are evaluated, so "
        "that a condition that says something else than was meant is found.",
        "Correct the facts, or the condition.",
        "when: {fact: pipeline_parallel, le: 1}\nholds: {pipeline_parallel: 2}\nfails: {pipeline_parallel: 4}",
        "when: {fact: pipeline_parallel, le: 1}\nholds: {pipeline_parallel: 1}\nfails: {pipeline_parallel: 4}",
    ),
    CodeEntry(
        "CRD102",
        "error",
        "nothing backs the count or the spread of a number",
        "A number of ours says how many measurements stand behind it and how far they lie apart, and both are derived "
        "from the result file like the number itself.",
        "Point to them in the result file.",
        "num_samples: 4\nevidence: {file: docs/evidence/a.json, value: /ratio}",
        "num_samples: 4\nevidence: {file: docs/evidence/a.json, value: /ratio, num_samples: {count: /ratio_by_round}}",
    ),
    CodeEntry(
        "CRD103",
        "error",
        "a measured claim that does not state its number",
        "The number is derived from a result file; it only holds up the claim where the claim's text says it.",
        "Write the number into the text, with the digits that value has.",
        "text: The step is hardly slower.\nvalue: 1.009",
        "text: The step takes 1.009 of the time.\nvalue: 1.009",
    ),
    CodeEntry(
        "CRD104",
        "error",
        "there is no such diagnostic code",
        "A failure mode names the code under which the command line reports it.",
        "`offload codes` lists the codes; leave the key out for a failure without one.",
        "code: RUN999",
        "code: RUN503",
    ),
    CodeEntry(
        "CRD105",
        "error",
        "a card under another name than its folder",
        "A skill is found by its folder and named by its card, so that the two have to agree.",
        "Write the folder's name, or rename the folder.",
    ),
)
_EVIDENCE = (
    CodeEntry(
        "CRD201",
        "error",
        "no such result file",
        "A number of ours follows from a result file in docs/evidence; this one is not there, or no JSON.",
        "Correct the name, or measure again and store the result.",
        "evidence: {file: docs/evidence/no-such-run.json, value: /ratio}",
    ),
    CodeEntry(
        "CRD202",
        "error",
        "the result file does not give the number",
        "The pointer leads nowhere in the result file, or to something that is no number.",
        "Correct the pointer.",
        "evidence: {file: docs/evidence/run.json, value: /ratios}",
        "evidence: {file: docs/evidence/run.json, value: /ratio}",
    ),
    CodeEntry(
        "CRD203",
        "error",
        "a stale number",
        "The result file gives another number than the card states, at the digits that the card gives.",
        "Write the number of the file, or find out why the file changed.",
    ),
)
_CODE = (
    CodeEntry(
        "CRD301",
        "error",
        "a symbol that is gone",
        "The code that makes a claim true is not where the card says: it was renamed, moved or removed.",
        "Name what does it now, or take the claim back.",
        "symbol: offload_runtime/units.py::parse_sizes",
        "symbol: offload_runtime/units.py::parse_size",
    ),
    CodeEntry(
        "CRD302",
        "error",
        "a test that is gone",
        "The test that holds a claim or provokes an error is not where the card says.",
        "Name the test that does it now, or write one.",
    ),
    CodeEntry(
        "CRD303",
        "error",
        "an error text that no message has",
        "Who searches for the text that a program printed has to find it on the card, so the card gives it exactly; "
        "... stands for each part that varies.",
        "Write the message as the program prints it now.",
    ),
    CodeEntry(
        "CRD304",
        "error",
        "a test of something else",
        "The test that a failure mode names has to be about its error: it names the code, or a part of the text.",
        "Name the test that provokes the error.",
    ),
    CodeEntry(
        "CRD305",
        "error",
        "a named test fails",
        "A claim or a failure mode rests on this test, and it does not pass.",
        "Run the test and see; until it passes, the card says something that is not so.",
        "offload skills check --run-tests",
    ),
)
_TEXT = (
    CodeEntry(
        "CRD401",
        "error",
        "SKILL.md breaks a rule of Agent Skills",
        "Agents find a skill by name and description in the frontmatter of its SKILL.md, and read its text whole.",
        "Do what the finding says.",
    ),
    CodeEntry(
        "CRD402",
        "error",
        "a link that leads nowhere",
        "SKILL.md and its references link to files of the same skill.",
        "Correct the link; it is relative to the file that it stands in.",
    ),
    CodeEntry(
        "CRD403",
        "error",
        "a command that does not exist",
        "A card or text names a command or an option that the command line does not have.",
        "Write the command as `offload COMMAND --help` shows it.",
        "offload plan fit --modell MODEL",
        "offload plan fit --model MODEL",
    ),
    CodeEntry(
        "CRD404",
        "error",
        "a decision table that the cards do not give",
        "The table between the marks in a SKILL.md is written from the conditions of the cards beside it, so that what "
        "an agent reads is what is evaluated.",
        "Run `offload docs build`; change a condition on its card, never in the table.",
    ),
)
_EVALS = (
    CodeEntry(
        "CRD501",
        "error",
        "evals that say too little",
        "A skill has at least three prompts that should trigger it and three near misses, under names of their own; a "
        "prompt that names the skill says nothing about its description.",
        "Do what the finding says.",
    ),
    CodeEntry(
        "CRD502",
        "error",
        "the right answer fails",
        "The stored right answer has to pass every assertion; here the assertions ask for something else.",
        "Correct the answer, or the assertion.",
    ),
    CodeEntry(
        "CRD503",
        "error",
        "the wrong answer passes",
        "Assertions that a wrong answer passes tell nothing about an answer.",
        "Add the assertion that tells the two stored answers apart.",
    ),
    CodeEntry(
        "CRD504",
        "note",
        "an eval that was not graded",
        "What the wrong answer should fail trains a model, which is done on request only.",
        "Grade it with --run-tests.",
        "offload skills check",
        "offload skills check --run-tests",
    ),
)
_USE = (
    CodeEntry(
        "CRD601",
        "error",
        "there is no such skill",
        "The name is that of a shipped skill or of the package's own card; anything else is the path of a folder.",
        "`offload skills list` lists the names.",
        "offload skills show tune-offload",
        "offload skills show tune-activation-offload",
    ),
    CodeEntry(
        "CRD602",
        "error",
        "a file that is in the way",
        "Where a skill is to be installed stands a file of the same name with other contents: perhaps somebody's work.",
        "Look at it; --force replaces it.",
        "offload skills install --to .agents/skills",
        "offload skills install --to .agents/skills --force",
    ),
    CodeEntry(
        "CRD603",
        "error",
        "there is no checkout to run tests in",
        "The tests that cards name are those of the project's repository, and this package is installed without it.",
        "Run the command in a checkout, with the package installed from there.",
        "offload skills check --run-tests",
        "offload skills check",
    ),
    CodeEntry(
        "CRD604",
        "error",
        "a skill cannot be written",
        "The folder that was named, or one above it, is a file or may not be written to.",
        "Name a folder that may be written to.",
    ),
)

CODES = _THE_CARD + _EVIDENCE + _CODE + _TEXT + _EVALS + _USE
