"""POL1xx: what a policy says, by its shape (100-), its meaning (120-), and against a model (180-)."""

from __future__ import annotations

from offload_runtime.codes import policy_shape
from offload_runtime.codes.entry import CodeEntry

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
        "Add one of these sections; where nothing is to move, optimizer_state: {offload_fraction: 0.0}.",
        bad_example=("apiVersion: offload/v1\nkind: Policy\nname: mine\nlimits: {budget: 5GB}"),
        good_example=(
            "apiVersion: offload/v1\n"
            "kind: Policy\n"
            "name: mine\n"
            "limits: {budget: 5GB}\n"
            "activations: {default: offload}"
        ),
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
        bad_example="offload validate balanced --set limits.budget",
        good_example="offload validate balanced --set limits.budget=8GiB",
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
        message_example="rule 'late' names layers relative to their number, unknown in the graph of the model",
    ),
    CodeEntry(
        "POL171",
        "error",
        "a policy function gave no action",
        "A Python callable used as a policy returns save, recompute, offload, auto, or a Decision.",
        "Return one of these.",
        bad_example='torch.compile(model, backend="offload", options={"policy": lambda activation: True})',
        good_example='torch.compile(model, backend="offload", options={"policy": lambda activation: "save"})',
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
        bad_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            '    - {name: up, match: {module: "**.upp"}, action: save}\n'
            "offload explain policy.yaml --model my_model:build"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            '    - {name: up, match: {module: "**.up"}, action: save}\n'
            "offload explain policy.yaml --model my_model:build"
        ),
    ),
    CodeEntry(
        "POL181",
        "error",
        "a rule matches too little or too much",
        "The number of matches is outside expect.matches; matches are counted before the first match wins.",
        "Correct the rule, or its expect.",
        bad_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save, expect: {matches: {max: 2}}}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save, expect: {matches: {min: 2}}}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
    ),
    CodeEntry(
        "POL182",
        "error",
        "a rule matches in too few or too many layers",
        "The number of distinct layers with a match is outside expect.layers.",
        "Correct the rule, or its expect.",
        bad_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save, expect: {layers: {max: 1}}}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save, expect: {layers: {min: 4}}}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
    ),
    CodeEntry(
        "POL183",
        "warning",
        "a shadowed rule",
        "The rule matches, but earlier rules decide all that it matches.",
        "Move it up, or remove it.",
        bad_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save}\n"
            '    - {name: up, match: {module: "**.up"}, action: offload}\n'
            "offload explain policy.yaml --model my_model:build"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            '    - {name: up, match: {module: "**.up"}, action: offload}\n'
            "    - {name: products, match: {op: matmul}, action: save}\n"
            "offload explain policy.yaml --model my_model:build"
        ),
    ),
    CodeEntry(
        "POL190",
        "error",
        "a clause that this target cannot honour",
        "What is accepted is done: a front end or export target refuses the clauses it cannot honour, by "
        "name.",
        "Remove the clause, or choose another target.",
        bad_example=("# policy.yaml\ngradients: {offload: true}\noffload validate policy.yaml --for graph"),
        good_example=(
            "# policy.yaml\nactivations: {default: offload}\noffload validate policy.yaml --for graph"
        ),
    ),
)

CODES = policy_shape.CODES + _MEANING + _AGAINST_A_MODEL
