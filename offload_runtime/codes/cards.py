"""CRDxxx: skill cards, by themselves (1xx). What their shape has in common with other files is POL1xx."""

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
)

CODES = _THE_CARD
