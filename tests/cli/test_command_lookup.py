from __future__ import annotations

import pytest

from offload_runtime.cli.command_lookup import command_problem


@pytest.mark.parametrize(
    "line",
    [
        "offload",
        "offload --version",
        "offload validate POLICY...",
        "offload validate policies/balanced/policy.yaml --for inductor --format sarif",
        "offload explain POLICY --model MODEL --by layer --limit N",
        "offload apply balanced --model builtin:llama-tiny --steps 20 --set limits.budget=4MiB",
        "offload list WHAT",
        "offload skills check NAME --run-tests",
        "offload skills install --client claude",
        "offload plan --help",
    ],
)
def test_a_line_that_could_be_run_has_no_problem(line: str) -> None:
    assert command_problem(line) is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("offload explian POLICY --model M", "there is no command 'explian'; did you mean explain?"),
        ("offload explain POLICY --modell M", "there is no option --modell; did you mean --model?"),
        ("offload explain POLICY", "--model is missing"),
        ("offload explain --model M", "POLICY is missing"),
        ("offload explain POLICY MORE --model M", "there is one word too many: 'MORE'"),
        ("offload explain POLICY --model", "Option '--model' requires an argument"),
        ("offload validate p.yaml --for abacus", "--for is one of"),
        ("offload list colours", "is one of facts, hardware"),
        ("offload skills chek", "there is no 'chek'; did you mean check?"),
        ("offload skills check --run-test", "there is no option --run-test; did you mean --run-tests?"),
        ("offload explain 'POLICY", "it cannot be split into words"),
    ],
)
def test_what_does_not_exist_is_said(line: str, problem: str) -> None:
    found = command_problem(line)
    assert found is not None
    assert problem in found


@pytest.mark.parametrize("line", ["offload explain", "offload apply [POLICY] [--steps N]", "offload skills"])
def test_a_mention_may_leave_out_what_a_command_requires(line: str) -> None:
    assert command_problem(line, is_whole=False) is None
    assert (command_problem(line) is None) is (line == "offload skills")


def test_a_mention_of_what_does_not_exist_is_still_a_problem() -> None:
    assert command_problem("offload explain --modell", is_whole=False) is not None
    assert command_problem("offload explian", is_whole=False) is not None
