"""POL100 to POL115: what a file says, by its shape; these codes are those of policy tests, cards and profiles too."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "POL100",
        "error",
        "an unknown key",
        "The key does not exist here; a policy that is accepted means every word of it.",
        "Correct the key; the finding names the closest one, or all that can stand here.",
        "limts: {budget: 5GB}",
        "limits: {budget: 5GB}",
    ),
    CodeEntry(
        "POL101",
        "error",
        "a key is missing",
        "This mapping means nothing without the key.",
        "Add the key.",
        "rules:\n  - {name: heavy, match: {op: matmul}}",
        "rules:\n  - {name: heavy, match: {op: matmul}, action: offload}",
    ),
    CodeEntry(
        "POL102",
        "error",
        "a value of the wrong kind",
        "A text stands where a list is expected, or the like.",
        "Write what the finding says.",
        "extends: sac-default",
        "extends: [sac-default]",
    ),
    CodeEntry(
        "POL103",
        "error",
        "a word that is not one of the choices",
        "This key takes one of a few words.",
        "Choose one; the finding lists them.",
        "action: ofload",
        "action: offload",
    ),
    CodeEntry(
        "POL104",
        "error",
        "not a size",
        "A size is a number and a unit: GiB is 2**30 bytes, GB is 10**9. A bare number is refused, "
        "because nobody "
        "can tell later which was meant. 0B is none; without limit is the word unlimited.",
        "Add the unit.",
        "budget: 5",
        "budget: 5GiB",
    ),
    CodeEntry(
        "POL105",
        "error",
        "not a percentage",
        "A share is written with %.",
        "Write the number and %.",
        bad_example=("limits: {step_overhead: 0.05}\nschedule: {select: planned}"),
        good_example=("limits: {step_overhead: 5%}\nschedule: {select: planned}"),
    ),
    CodeEntry(
        "POL106",
        "error",
        "not a range of layers",
        "Layers are one id, a Python slice over ids (quoted; percentages are of the number of layers, "
        "rounded down), "
        "or outside. A slice that can select no layer is refused too.",
        "Correct the slice.",
        'layers: "5:3"',
        'layers: "3:5"',
    ),
    CodeEntry(
        "POL107",
        "error",
        "not a module pattern",
        "A pattern is anchored at both ends: * is one segment or a part of one, ** any number of "
        "segments. It is no "
        "regular expression.",
        "Write segments with dots between them.",
        'module: "layers/*/attention"',
        'module: "layers.*.attention"',
    ),
    CodeEntry(
        "POL108",
        "error",
        "a text in the wrong form",
        "Names are letters, digits and - _ . inside, at most 64 characters.",
        "Correct the text.",
        "name: my policy",
        "name: my-policy",
    ),
    CodeEntry(
        "POL109",
        "error",
        "a number out of range",
        "The number is smaller or larger than this key allows.",
        "Choose a number in the range that the finding names.",
        "defer: -1",
        "defer: 1",
    ),
    CodeEntry(
        "POL110",
        "error",
        "nothing, or too much",
        "An empty list, mapping or text says nothing where something is expected; a bound on length "
        "holds too.",
        "Give a member, or leave the key out.",
        "match: {}",
        "match: {op: matmul}",
    ),
    CodeEntry(
        "POL111",
        "error",
        "another kind of document",
        "apiVersion and kind say which format the file is in.",
        "Write apiVersion: offload/v1, and kind: Policy or PolicyTest.",
        "kind: Polcy",
        "kind: Policy",
    ),
    CodeEntry(
        "POL112",
        "error",
        "not a condition",
        "A condition is {all: [...]}, {any: [...]}, {not: ...}, or one fact with one operator.",
        "Write one of these.",
        "requires: {fact: pipeline_parallel}",
        "requires: {fact: pipeline_parallel, le: 1}",
    ),
    CodeEntry(
        "POL113",
        "error",
        "a member stands in the list twice",
        "Each member of this list can stand in it once.",
        "Remove one of the two.",
        "extends: [sac-default, sac-default]",
        "extends: [sac-default]",
    ),
    CodeEntry(
        "POL114",
        "error",
        "a fact that does not exist",
        "A condition names facts of one table, so that a misspelt one cannot pass as a fact that nobody knows.",
        "`offload list facts` lists them; the finding names the closest one.",
        "requires: {fact: pipeline_paralel, le: 1}",
        "requires: {fact: pipeline_parallel, le: 1}",
    ),
    CodeEntry(
        "POL115",
        "error",
        "a value that the fact never has",
        "The fact is a count, a size, a share, a word of a list, or yes or no: compared with something else, the "
        "condition could never hold, or never fail.",
        "Write a value of the fact's kind; `offload list facts` shows an example of each.",
        bad_example="requires: {fact: gpu_name, ge: 1}",
        good_example="requires: {fact: gpu_name, is: H200}",
    ),
)
