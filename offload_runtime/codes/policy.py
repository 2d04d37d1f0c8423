"""POL1xx: what a policy says, by its shape (100-), its meaning (120-), and against a model (180-)."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

_SHAPE = (
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
        "step_overhead: 0.05",
        "step_overhead: 5%",
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
        "requires: {fact: gpu_total_bytes, ge: large}",
        "requires: {fact: gpu_total_bytes, ge: 80GB}",
    ),
)

_MEANING = (
    CodeEntry(
        "POL120",
        "error",
        "an unknown op class",
        "op names a class of operators, or an overload such as aten.mm.default.",
        "`offload list op-classes` lists the classes.",
        "op: matmull",
        "op: matmul",
    ),
    CodeEntry(
        "POL121",
        "error",
        "an unknown overload",
        "An overload of aten or prims has to exist in a supported version of torch; the overload is part "
        "of the "
        "name. Operators of other libraries are NAMESPACE.OPERATOR.OVERLOAD, and are checked when a "
        "model is known.",
        "Correct the name; the finding lists the overloads of the operator.",
        "op: aten.mm",
        "op: aten.mm.default",
    ),
    CodeEntry(
        "POL122",
        "error",
        "two rules have one name",
        "Verdicts name rules; the names of a file have to differ.",
        "Rename one of them.",
        "rules:\n  - {name: a, match: {op: matmul}, action: save}\n"
        "  - {name: a, match: {op: norm}, action: save}",
        "rules:\n  - {name: a, match: {op: matmul}, action: save}\n"
        "  - {name: b, match: {op: norm}, action: save}",
    ),
    CodeEntry(
        "POL123",
        "error",
        "a reserved rule name",
        "Verdicts call what no rule decided default and layer_outputs.",
        "Choose another name.",
        "name: default",
        "name: everything-else",
    ),
    CodeEntry(
        "POL124",
        "error",
        "must with auto",
        "must fixes the fate of a tensor, auto leaves it open.",
        "Name the fate, or drop must.",
        "action: auto\nmust: true",
        "action: save\nmust: true",
    ),
    CodeEntry(
        "POL125",
        "error",
        "optional with a number of matches",
        "optional says that matching nothing is fine, expect.matches.min says that it is not.",
        "Keep one of the two.",
        "optional: true\nexpect: {matches: {min: 4}}",
        "expect: {matches: {min: 4}}",
    ),
    CodeEntry(
        "POL126",
        "error",
        "min is greater than max",
        "Nothing lies between the two bounds.",
        "Swap them.",
        "bytes: {min: 4MiB, max: 4KiB}",
        "bytes: {min: 4KiB, max: 4MiB}",
    ),
    CodeEntry(
        "POL127",
        "error",
        "an unreachable rule",
        "An earlier rule of the same file matches whatever this one could match, key by key; the first "
        "match wins.",
        "Move the rule up, or remove it.",
        "rules:\n  - {name: all, match: {op: matmul}, action: save}\n"
        "  - {name: large, match: {op: matmul, bytes: {min: 1MiB}}, action: offload}",
        "rules:\n  - {name: large, match: {op: matmul, bytes: {min: 1MiB}}, action: offload}\n"
        "  - {name: all, match: {op: matmul}, action: save}",
    ),
    CodeEntry(
        "POL128",
        "error",
        "a rule that can match nothing",
        "Two keys of the match exclude each other.",
        "Drop one of them.",
        "match: {op: aten.mm.default, not: {op: matmul}}",
        "match: {op: matmul, not: {op: aten.mm.default}}",
    ),
    CodeEntry(
        "POL129",
        "error",
        "a collective cannot be offloaded",
        "The buffers of collectives and of their waits belong to the communication library.",
        "Save them.",
        "match: {op: collective}\naction: offload",
        "match: {op: collective}\naction: save",
    ),
    CodeEntry(
        "POL130",
        "error",
        "a limit that largest_first cannot hold",
        "select: largest_first offloads the largest tensors until budget or host is spent; it predicts "
        "neither peak "
        "nor time.",
        "Write select: planned, or drop the limit.",
        "limits: {device_peak: 40GiB}\nschedule: {select: largest_first}",
        "limits: {device_peak: 40GiB}\nschedule: {select: planned}",
    ),
    CodeEntry(
        "POL131",
        "error",
        "a policy about nothing",
        "A policy says something about activations, optimizer_state, gradients or parameters, itself or "
        "by a base.",
        "Add one of these sections.",
        "limits: {budget: 5GB}",
        "limits: {budget: 5GB}\nactivations: {default: offload}",
    ),
    CodeEntry(
        "POL132",
        "error",
        "a section without its main key",
        "activations needs default, optimizer_state needs offload_fraction, gradients and parameters "
        "need offload, "
        "here or in a base.",
        "Add the key.",
        "activations: {layer_outputs: save}",
        "activations: {default: recompute, layer_outputs: save}",
    ),
    CodeEntry(
        "POL140",
        "error",
        "a base cannot be used",
        "extends names a policy that does not exist or cannot be read.",
        "Correct the name; paths are relative to the file.",
        "extends: [sac-defualt]",
        "extends: [sac-default]",
    ),
    CodeEntry(
        "POL141",
        "error",
        "policies that extend each other",
        "A policy cannot extend one that extends it; more than 16 levels of bases are refused too.",
        "Break the cycle.",
        "extends: [policy.yaml]               # in policy.yaml",
        "extends: [sac-default]",
    ),
    CodeEntry(
        "POL150",
        "error",
        "not an override",
        "--set takes PATH=VALUE. The path names keys with dots, rules by name or number in brackets; the "
        "value is "
        "checked like the file.",
        "Correct the path.",
        "--set limits.budget",
        "--set limits.budget=8GiB",
    ),
    CodeEntry(
        "POL160",
        "warning",
        "a long defer on a mixture of experts",
        "Mixtures of experts leave little compute to hide a transfer behind, and their all-to-all waits "
        "for every "
        "rank: a defer of 3 or more has cost 24 % of the speed, or ended in a timeout.",
        "Set schedule.defer to 1.",
        "extends: [moe]\nschedule: {defer: 8}",
        "extends: [moe]",
    ),
    CodeEntry(
        "POL161",
        "warning",
        "a budget that has no effect",
        "Nothing in the policy offloads activations, so the budget bounds nothing.",
        "Give a rule, default or layer_outputs the action offload, or drop the budget.",
        "limits: {budget: 5GB}\nactivations: {default: recompute}",
        "limits: {budget: 5GB}\nactivations: {default: offload}",
    ),
    CodeEntry(
        "POL170",
        "error",
        "the number of layers is not known",
        "After a graph break one compiled graph may hold a part of the model; then layers that are "
        "relative to their "
        "number (negative ids, percentages) cannot be resolved.",
        'Pass the whole model in options["model"], or name layers by number.',
        'layers: ":75%"',
        'layers: ":24"',
    ),
    CodeEntry(
        "POL171",
        "error",
        "a policy function gave no action",
        "A Python callable used as a policy returns save, recompute, offload, auto, or a Decision.",
        "Return one of these.",
        "load_policy(lambda activation: True)",
        'load_policy(lambda activation: "save")',
    ),
)

_AGAINST_A_MODEL = (
    CodeEntry(
        "POL180",
        "error",
        "a rule matches nothing",
        "No activation of this model fits the rule: a pattern with a typo, or a model of another kind. "
        "The finding "
        "lists what there was to match.",
        "Correct the rule, or write optional: true if it may match nothing.",
        'match: {module: "**.atention.**"}',
        'match: {module: "**.attention.**"}',
    ),
    CodeEntry(
        "POL181",
        "error",
        "a rule matches too little or too much",
        "The number of matches is outside expect.matches; matches are counted before the first match wins.",
        "Correct the rule, or its expect.",
    ),
    CodeEntry(
        "POL182",
        "error",
        "a rule matches in too few or too many layers",
        "The number of distinct layers with a match is outside expect.layers.",
        "Correct the rule, or its expect.",
    ),
    CodeEntry(
        "POL183",
        "warning",
        "a shadowed rule",
        "The rule matches, but earlier rules decide all that it matches.",
        "Move it up, or remove it.",
    ),
    CodeEntry(
        "POL190",
        "error",
        "a clause that this target cannot honour",
        "What is accepted is done: a front end or export target refuses the clauses it cannot honour, by "
        "name.",
        "Remove the clause, or choose another target.",
        "gradients: {offload: true}           # offload validate --for graph",
    ),
)

CODES = _SHAPE + _MEANING + _AGAINST_A_MODEL
