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
        "given: {op: matmul}                  # a rule asks for bytes",
        "given: {op: matmul, bytes: 64MiB}",
    ),
    CodeEntry(
        "PTS203",
        "error",
        "two cases have one name",
        "A report names cases; the names of a file have to differ.",
        "Rename one of them.",
    ),
    CodeEntry(
        "PTS204",
        "error",
        "the policy under test cannot be loaded",
        "The file named by policy cannot be read, or has findings of its own, shown beside this one.",
        "Correct the path, or the policy.",
        "policy: polcy.yaml",
        "policy: policy.yaml",
    ),
    CodeEntry(
        "PTS211",
        "error",
        "too few rules are covered",
        "Fewer rules decide a passing case than --fail-under asks for.",
        "Add a case for each rule that the finding names.",
        "offload test policies/mine --coverage --fail-under 100",
    ),
    CodeEntry(
        "PTS206",
        "error",
        "the expected rule does not exist",
        "expect.rule is the name of a rule of the policy, default, or layer_outputs.",
        "Correct the name.",
        "expect: {action: save, rule: rooting}",
        "expect: {action: save, rule: routing}",
    ),
    CodeEntry(
        "PTS210",
        "error",
        "a policy has no test",
        "--require-tests asks for a cases.yaml beside every policy.",
        "Write a cases.yaml beside the policy.",
        "offload test policies/mine --require-tests",
    ),
    CodeEntry(
        "PTS208",
        "error",
        "the given tensor cannot exist",
        "What the case says about the tensor contradicts itself: its layer is beyond the number of layers.",
        "Correct given; layers count from 0.",
        "given: {op: matmul, layer: 4, num_layers: 4}",
        "given: {op: matmul, layer: 3, num_layers: 4}",
    ),
)
