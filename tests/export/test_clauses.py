from __future__ import annotations

from offload_runtime.export.clauses import given_clauses, policy_fields
from offload_runtime.policy import Activations, Policy
from tests.export.policies import EVERY_CLAUSE, policy

# What names a document or a rule, and says nothing about the run.
NAMES = {
    "apiVersion",
    "kind",
    "name",
    "summary",
    "extends",
    "activations.rules[].name",
    "activations.rules[].summary",
}
# The rule's tier is read by no one: host is the only one there is.
SILENT = {"activations.rules[].tier"}


def test_a_policy_that_says_everything_gives_every_field() -> None:
    given = {clause.path for clause in given_clauses(policy(**EVERY_CLAUSE).policy)}
    assert given == set(policy_fields()) - NAMES - SILENT


def test_defaults_that_nobody_wrote_are_not_given() -> None:
    typed = Policy("p", activations=Activations("save"))
    assert [clause.path for clause in given_clauses(typed)] == ["activations.default"]


def test_a_default_that_was_written_is_given() -> None:
    typed = policy(activations={"default": "save"}, schedule={"prefetch": 1}).policy
    assert "schedule.prefetch" in {clause.path for clause in given_clauses(typed)}


def test_a_clause_of_a_rule_is_called_by_the_name_of_the_rule() -> None:
    rules = [{"name": "heavy", "match": {"op": "matmul"}, "action": "offload"}]
    clauses = given_clauses(policy(activations={"default": "save", "rules": rules}).policy)
    assert [clause.name for clause in clauses] == [
        "activations.default",
        "match.op of rule heavy",
        "action of rule heavy",
    ]
