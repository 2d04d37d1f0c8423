"""PTS2xx: policy tests."""

from __future__ import annotations

from offload_runtime.codes.entry import CodeEntry

CODES = (
    CodeEntry(
        "PTS201",
        "error",
        "the verdict is not the expected one",
        "The policy decides something else for this tensor, or by another rule.",
        "Correct the policy, or the case; the finding says what was decided, and by what.",
        "given: {op: aten.topk.default}\nexpect: {action: recompute}",
        "given: {op: aten.topk.default}\nexpect: {action: save, rule: routing}",
    ),
    CodeEntry(
        "PTS202",
        "error",
        "the case leaves the verdict open",
        "A rule looks at something that the case does not say, so the verdict would hold only by accident.",
        "Say it in given.",
        bad_example=(
            "given: {op: matmul}                  # a rule of balanced asks for bytes and layout\n"
            "expect: {action: offload}"
        ),
        good_example=("given: {op: matmul, bytes: 64MiB, layout: dense}\nexpect: {action: offload}"),
    ),
    CodeEntry(
        "PTS203",
        "error",
        "two cases have one name",
        "A report names cases; the names of a file have to differ.",
        "Rename one of them.",
        bad_example=(
            "cases:\n"
            "  - {name: kept, given: {op: routing}, expect: {action: save}}\n"
            "  - {name: kept, given: {op: aten.topk.default}, expect: {action: save}}"
        ),
        good_example=(
            "cases:\n"
            "  - {name: routing is kept, given: {op: routing}, expect: {action: save}}\n"
            "  - {name: top-k is kept, given: {op: aten.topk.default}, expect: {action: save}}"
        ),
    ),
    CodeEntry(
        "PTS204",
        "error",
        "the policy under test cannot be loaded",
        "The file named by policy cannot be read, or has findings of its own, shown beside this one.",
        "Correct the path, or the policy.",
        bad_example="policy: polcy.yaml",
        good_example="policy: balanced",
    ),
    CodeEntry(
        "PTS211",
        "error",
        "too few rules are covered",
        "Fewer rules decide a passing case than --fail-under asks for.",
        "Add a case for each rule that the finding names.",
        bad_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save}\n"
            "# cases.yaml\n"
            "policy: policy.yaml\n"
            "cases:\n"
            "  - {name: a norm is recomputed, given: {op: norm}, expect: {action: recompute}}\n"
            "offload test policy.yaml --fail-under 100"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save}\n"
            "# cases.yaml\n"
            "policy: policy.yaml\n"
            "cases:\n"
            "  - {name: a product is saved, given: {op: matmul}, expect: {action: save}}\n"
            "offload test policy.yaml --fail-under 100"
        ),
    ),
    CodeEntry(
        "PTS206",
        "error",
        "the expected rule does not exist",
        "expect.rule is the name of a rule of the policy, default, or layer_outputs.",
        "Correct the name.",
        bad_example=("given: {op: routing}\nexpect: {action: save, rule: rooting}"),
        good_example=("given: {op: routing}\nexpect: {action: save, rule: routing}"),
    ),
    CodeEntry(
        "PTS210",
        "error",
        "a policy has no test",
        "--require-tests asks for a cases.yaml beside every policy.",
        "Write a cases.yaml beside the policy.",
        bad_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save}\n"
            "offload test policy.yaml --require-tests"
        ),
        good_example=(
            "# policy.yaml\n"
            "activations:\n"
            "  default: recompute\n"
            "  rules:\n"
            "    - {name: products, match: {op: matmul}, action: save}\n"
            "# cases.yaml\n"
            "policy: policy.yaml\n"
            "cases:\n"
            "  - {name: a product is saved, given: {op: matmul}, expect: {action: save}}\n"
            "offload test policy.yaml --require-tests"
        ),
    ),
    CodeEntry(
        "PTS208",
        "error",
        "the given tensor cannot exist",
        "What the case says about the tensor contradicts itself: its layer is beyond the number of layers.",
        "Correct given; layers count from 0.",
        bad_example=("given: {op: routing, layer: 4, num_layers: 4}\nexpect: {action: save}"),
        good_example=("given: {op: routing, layer: 3, num_layers: 4}\nexpect: {action: save}"),
    ),
)
