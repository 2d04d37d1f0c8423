from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.card_checks.grading import Grader, policies_in

POLICY = """\
apiVersion: offload/v1
kind: Policy
name: mine
activations:
  default: recompute
"""
ANSWER = f"""\
First compare with a paired baseline, then pin the memory, then look at NUMA.

```yaml
{POLICY}```

```yaml
image: python
```

Then `offload explain policy.yaml --model MODEL`.
"""


def lookup(line: str, is_whole: bool) -> str | None:
    return None if line.split()[1] in ("explain", "plan") else "there is no such command"


def failures(answer: str, assertion: dict[str, Any], grader: Grader | None = None) -> tuple[str, ...]:
    return (grader or Grader(lookup)).grade(answer, [assertion]).failures


def test_the_policies_of_an_answer_are_its_yaml_blocks_of_that_kind() -> None:
    assert policies_in(ANSWER) == (POLICY,)
    assert policies_in("```yaml\n: [\n```\n") == ()


@pytest.mark.parametrize(
    "assertion",
    [
        {"kind": "policy_valid"},
        {"kind": "policy_valid", "for": "inductor"},
        {"kind": "contains", "any_of": ["PAIRED   baseline"]},
        {"kind": "contains", "any_of": ["nothing like it", "numa"]},
        {"kind": "absent", "any_of": ["batch size"]},
        {"kind": "order", "texts": ["paired baseline", "pin", "NUMA"]},
        {"kind": "command_exists"},
        {"kind": "command_exists", "command": "offload explain"},
    ],
)
def test_what_a_good_answer_has(assertion: dict[str, Any]) -> None:
    assert failures(ANSWER, assertion) == ()


@pytest.mark.parametrize(
    ("answer", "assertion", "failure"),
    [
        ("no policy", {"kind": "policy_valid"}, "there is no policy"),
        (ANSWER.replace("recompute", "forget"), {"kind": "policy_valid"}, "'forget' is not one of"),
        (
            ANSWER.replace("activations:", "gradients: {offload: true}\nactivations:"),
            {"kind": "policy_valid", "for": "inductor"},
            "inductor cannot honour gradients",
        ),
        ("```yaml\nkind: Policy\nname: [\n```\n", {"kind": "policy_valid"}, "YAML010"),
        (ANSWER, {"kind": "policy_valid", "for": "abacus"}, "target is one of"),
        (ANSWER, {"kind": "contains", "any_of": ["link width"]}, "there is none of 'link width'"),
        (ANSWER, {"kind": "absent", "any_of": ["link width", "NUMA"]}, "there is 'NUMA'"),
        (ANSWER, {"kind": "order", "texts": ["NUMA", "pin"]}, "'pin' comes before 'NUMA'"),
        (ANSWER, {"kind": "order", "texts": ["pin", "link width"]}, "there is no 'link width'"),
        ("nothing", {"kind": "command_exists"}, "there is no command"),
        ("`offload fly`", {"kind": "command_exists"}, "`offload fly`: there is no such command"),
        (ANSWER, {"kind": "command_exists", "command": "offload plan"}, "there is no `offload plan`"),
        ("`offload plans`", {"kind": "command_exists", "command": "offload plan"}, "`offload plans`"),
    ],
)
def test_what_a_bad_answer_fails(answer: str, assertion: dict[str, Any], failure: str) -> None:
    (found,) = failures(answer, assertion)
    assert found.startswith(f"{assertion['kind']}: ")
    assert failure in found


def test_a_kind_that_nobody_can_grade_here_is_counted_as_skipped() -> None:
    grades = Grader(lookup).grade(ANSWER, [{"kind": "apply_saves", "min_bytes": "1MiB"}])
    assert (grades.failures, grades.num_skipped) == ((), 1)


def test_graders_from_outside_get_every_policy_of_the_answer() -> None:
    seen = []

    def saves(policy: str, assertion: Any) -> str | None:
        seen.append((policy, assertion["min_bytes"]))
        return "it saves nothing"

    grader = Grader(lookup, {"apply_saves": saves})
    assertion = {"kind": "apply_saves", "min_bytes": "1MiB"}
    assert failures(ANSWER, assertion, grader) == ("apply_saves: it saves nothing",)
    assert seen == [(POLICY, "1MiB")]
    assert failures("none", assertion, grader) == ("apply_saves: there is no policy",)
