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
        bad_example=(
            "text: The step takes 1.009 of the time.\n"
            "value: 1.009\n"
            "unit: ratio\n"
            "num_samples: 4\n"
            "evidence: {file: docs/evidence/a.json, value: /ratio}"
        ),
        good_example=(
            "text: The step takes 1.009 of the time.\n"
            "value: 1.009\n"
            "unit: ratio\n"
            "num_samples: 4\n"
            "evidence: {file: docs/evidence/a.json, value: /ratio, num_samples: {count: /ratio_by_round}}"
        ),
    ),
    CodeEntry(
        "CRD103",
        "error",
        "a measured claim that does not state its number",
        "The number is derived from a result file; it only holds up the claim where the claim's text says it.",
        "Write the number into the text, with the digits that value has.",
        bad_example=(
            "text: The step is hardly slower.\n"
            "status: measured\n"
            "value: 1.009\n"
            "unit: ratio\n"
            "num_samples: 1\n"
            "evidence: {file: docs/evidence/a.json, value: /ratio}"
        ),
        good_example=(
            "text: The step takes 1.009 of the time.\n"
            "status: measured\n"
            "value: 1.009\n"
            "unit: ratio\n"
            "num_samples: 1\n"
            "evidence: {file: docs/evidence/a.json, value: /ratio}"
        ),
    ),
    CodeEntry(
        "CRD104",
        "error",
        "there is no such diagnostic code",
        "A failure mode names the code under which the command line reports it.",
        "`offload codes` lists the codes; leave the key out for a failure without one.",
        bad_example=(
            "error: transfer ... is not known in this process\n"
            "cause: The graph was compiled elsewhere.\n"
            "confirm: Look for a second process.\n"
            "fix: Compile it again.\n"
            "code: RUN999\n"
            "source: The message of the runtime."
        ),
        good_example=(
            "error: transfer ... is not known in this process\n"
            "cause: The graph was compiled elsewhere.\n"
            "confirm: Look for a second process.\n"
            "fix: Compile it again.\n"
            "code: RUN501\n"
            "source: The message of the runtime."
        ),
    ),
    CodeEntry(
        "CRD105",
        "error",
        "a card under another name than its folder",
        "A skill is found by its folder and named by its card, so that the two have to agree.",
        "Write the folder's name, or rename the folder.",
        message_example="the card is called tune-offload, and its folder tune-activation-offload",
    ),
)
_EVIDENCE = (
    CodeEntry(
        "CRD201",
        "error",
        "no such result file",
        "A number of ours follows from a result file in docs/evidence; this one is not there, or no JSON.",
        "Correct the name, or measure again and store the result.",
        message_example="there is no file docs/evidence/no-such-run.json",
    ),
    CodeEntry(
        "CRD202",
        "error",
        "the result file does not give the number",
        "The pointer leads nowhere in the result file, or to something that is no number.",
        "Correct the pointer.",
        message_example="value: docs/evidence/run.json: /ratios leads nowhere, there is no 'ratios'",
    ),
    CodeEntry(
        "CRD203",
        "error",
        "a stale number",
        "The result file gives another number than the card states, at the digits that the card gives.",
        "Write the number of the file, or find out why the file changed.",
        message_example="value is 1.009 here, and 1.0131 by docs/evidence/run.json",
    ),
)
_CODE = (
    CodeEntry(
        "CRD301",
        "error",
        "a symbol that is gone",
        "The code that makes a claim true is not where the card says: it was renamed, moved or removed.",
        "Name what does it now, or take the claim back.",
        message_example="offload_runtime/units.py has no parse_sizes",
    ),
    CodeEntry(
        "CRD302",
        "error",
        "a test that is gone",
        "The test that holds a claim or provokes an error is not where the card says.",
        "Name the test that does it now, or write one.",
        message_example="tests/test_units.py has no test_sizes",
    ),
    CodeEntry(
        "CRD303",
        "error",
        "an error text that no message has",
        "Who searches for the text that a program printed has to find it on the card, so the card gives it exactly; "
        "... stands for each part that varies.",
        "Write the message as the program prints it now.",
        message_example="no message of the package contains 'too little pinned memory'",
    ),
    CodeEntry(
        "CRD304",
        "error",
        "a test of something else",
        "The test that a failure mode names has to be about its error: it names the code, or a part of the text.",
        "Name the test that provokes the error.",
        message_example="the test names neither RUN503 nor the error's text",
    ),
    CodeEntry(
        "CRD305",
        "error",
        "a named test fails",
        "A claim or a failure mode rests on this test, and it does not pass.",
        "Run the test and see; until it passes, the card says something that is not so.",
        message_example="tests/test_units.py::test_a_size_has_a_unit did not run: pytest finds no such case",
    ),
)
_TEXT = (
    CodeEntry(
        "CRD401",
        "error",
        "SKILL.md breaks a rule of Agent Skills",
        "Agents find a skill by name and description in the frontmatter of its SKILL.md, and read its text whole.",
        "Do what the finding says.",
        message_example="the description has 1300 characters",
    ),
    CodeEntry(
        "CRD402",
        "error",
        "a link that leads nowhere",
        "SKILL.md and its references link to files of the same skill.",
        "Correct the link; it is relative to the file that it stands in.",
        message_example="there is no references/knobs.md",
    ),
    CodeEntry(
        "CRD403",
        "error",
        "a command that does not exist",
        "A card or text names a command or an option that the command line does not have.",
        "Write the command as `offload COMMAND --help` shows it.",
        message_example="there is no option --modell; did you mean --model?",
    ),
    CodeEntry(
        "CRD404",
        "error",
        "a decision table that the cards do not give",
        "The table between the marks in a SKILL.md is written from the conditions of the cards beside it, so that what "
        "an agent reads is what is evaluated.",
        "Run `offload docs build`; change a condition on its card, never in the table.",
        message_example="the decision table is not what the cards say",
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
        message_example="2 prompts that should trigger the skill, fewer than 3",
    ),
    CodeEntry(
        "CRD502",
        "error",
        "the right answer fails",
        "The stored right answer has to pass every assertion; here the assertions ask for something else.",
        "Correct the answer, or the assertion.",
        message_example="the right answer of out-of-memory fails: the policy is not valid",
    ),
    CodeEntry(
        "CRD503",
        "error",
        "the wrong answer passes",
        "Assertions that a wrong answer passes tell nothing about an answer.",
        "Add the assertion that tells the two stored answers apart.",
        message_example="the wrong answer of out-of-memory passes every assertion",
    ),
    CodeEntry(
        "CRD504",
        "note",
        "an eval that was not graded",
        "What the wrong answer should fail trains a model, which is done on request only.",
        "Grade it with --run-tests.",
        message_example="whether the wrong answer of fit-8b fails hangs on 1 assertion that was not graded",
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
        bad_example=(
            "# skills/tune-activation-offload/SKILL.md\n"
            "somebody's own text\n"
            "offload skills install tune-activation-offload --to skills"
        ),
        good_example=(
            "# skills/tune-activation-offload/SKILL.md\n"
            "somebody's own text\n"
            "offload skills install tune-activation-offload --to skills --force"
        ),
    ),
    CodeEntry(
        "CRD603",
        "error",
        "there is no checkout to run tests in",
        "The tests that cards name are those of the project's repository, and this package is installed without it.",
        "Run the command in a checkout, with the package installed from there.",
        message_example="there is no checkout to run tests in",
    ),
    CodeEntry(
        "CRD604",
        "error",
        "a skill cannot be written",
        "The folder that was named, or one above it, is a file or may not be written to.",
        "Name a folder that may be written to.",
        message_example=".agents/skills cannot be written: Not a directory",
    ),
)

CODES = _THE_CARD + _EVIDENCE + _CODE + _TEXT + _EVALS + _USE
