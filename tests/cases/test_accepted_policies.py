"""A policy that is accepted must do something: cases 17 to 22; case 20, field by field, has a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import offload_runtime as off
from offload_runtime.errors import OffloadError, PolicyError, RefusedError
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.targets import TARGETS, check_target
from tests.cases.deep_model import Deep, batches, rule
from tests.cases.training import (
    assert_exact,
    compiled,
    offload_everything,
    on_own_engine,
    policy_of,
    refusal_of,
    train,
)


def error_of(policy: Any) -> OffloadError:
    """Train one step under a policy that has to be refused, and return the refusal."""
    with pytest.raises((OffloadError, torch._dynamo.exc.BackendCompilerFailed)) as error:
        train(Deep, policy, batches(1))
    return refusal_of(error.value)


def test_case_17_a_selector_with_a_typo_says_what_was_there() -> None:
    refusal = error_of(policy_of(rule("typo", match={"module": "layer.*"})))
    assert isinstance(refusal, PolicyError)
    (finding,) = refusal.diagnostics
    assert finding.code == "POL180"
    assert "rule 'typo' matches nothing" in finding.message
    assert "layers.0" in finding.message
    assert finding.hint is not None


def test_case_17_a_rule_for_four_layers_that_matches_in_one_is_an_error() -> None:
    match = {"op": "aten.sigmoid.default"}
    refusal = error_of(policy_of(rule("gates", match=match, expect={"matches": {"min": 4}})))
    (finding,) = refusal.diagnostics
    assert finding.code == "POL181"
    assert "matches 1 tensors, expected at least 4" in finding.message
    refusal = error_of(policy_of(rule("gates", match=match, expect={"layers": {"min": 4}})))
    assert [(found.code, "layers 3" in (found.hint or "")) for found in refusal.diagnostics] == [
        ("POL182", True)
    ]


def test_case_18_after_step_1_planned_bytes_are_moved_bytes() -> None:
    with on_own_engine() as engine:
        torch.manual_seed(0)
        model = Deep()
        run = compiled(model, offload_everything())
        for step, batch in enumerate(batches(), start=1):
            run(batch).sum().backward()
            report = off.report(run)
            assert report.planned_bytes == report.moved_bytes == report.reloaded_bytes > 0
            assert engine.snapshot().d2h_bytes == step * report.planned_bytes


def test_case_18_a_strict_policy_that_moves_nothing_fails() -> None:
    must = rule("heavy", match={"op": "matmul"}, must=True)
    refusal = error_of(policy_of(must, limits={"budget": "0B"}))
    assert isinstance(refusal, RefusedError)
    assert {finding.code for finding in refusal.diagnostics} == {"PLN401"}
    assert "budget" in refusal.diagnostics[0].message


@pytest.mark.parametrize(
    ("bounds", "said"), [({"min": "1MiB"}, "at least 1MiB"), ({"max": "1B"}, "at most 1B")]
)
def test_case_18_a_policy_that_moves_other_than_it_expects_fails(bounds: dict[str, str], said: str) -> None:
    refusal = error_of(offload_everything(expect={"moved": bounds}))
    (finding,) = refusal.diagnostics
    assert (finding.code, finding.path) == ("MOD753", "expect.moved")
    assert said in finding.message


class Checkpointed(nn.Module):
    """A checkpoint inside the compiled region."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.reentrant = reentrant

    def block(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sin()).cos()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x.sin(), use_reentrant=self.reentrant)
        return out.tanh() * 2


def test_case_19_a_reentrant_checkpoint_round_the_region_is_an_error() -> None:
    with on_own_engine():
        run = compiled(Deep(), offload_everything())
        x = torch.randn(8, 16, requires_grad=True)
        loss = checkpoint(run, x, use_reentrant=True).sum()
        with pytest.raises(RefusedError, match="checkpoint around the compiled region") as error:
            loss.backward()
    (finding,) = error.value.diagnostics
    assert finding.code == "RUN522"
    assert "inside the region" in (finding.hint or "")


def test_case_19_a_checkpoint_round_the_region_that_is_not_reentrant_is_warned_about() -> None:
    gradients = []
    with on_own_engine():
        for variant in ("policy", "reference"):
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = Deep()
            run = compiled(model, offload_everything(), variant=variant)
            checkpoint(run, batches()[0], use_reentrant=False).sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
            found = [finding.code for finding in off.report(run).diagnostics]
            assert found == (["RUN523"] if variant == "policy" else [])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("reentrant", [True, False])
def test_case_19_a_checkpoint_inside_is_composed_and_each_fate_is_shown(reentrant: bool) -> None:
    policy = policy_of(
        rule("products", match={"op": "matmul"}),
        {"name": "sines", "match": {"op": "aten.sin.default"}, "action": "save"},
        default="auto",
    )
    run = assert_exact(lambda: Checkpointed(reentrant), policy, batches(), same_as=["reference"])
    fates = {(v.activation.op, v.fate) for v in run.report.tensors if v.fate != "skip"}
    assert ("aten.addmm.default", "offload") in fates
    assert ("aten.sin.default", "save") in fates
    assert all(verdict.reason for verdict in run.report.tensors)


REFUSED_CLAUSES = {
    "optimizer_state": "optimizer_state: {offload_fraction: 0.5}",
    "gradients": "gradients: {offload: true}",
    "parameters": "parameters: {offload: true}",
}


@pytest.mark.parametrize("clause", REFUSED_CLAUSES)
@pytest.mark.parametrize("target", ["graph", "inductor"])
def test_case_21_a_clause_that_a_front_end_cannot_honour_is_refused_with_its_line(
    clause: str, target: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    head = "apiVersion: offload/v1\nkind: Policy\nname: case\nactivations: {default: offload}\n"
    file.write_text(head + REFUSED_CLAUSES[clause] + "\n")
    policy = off.load_policy(file)
    at_validation = check_target(policy.policy, target)
    found = {(finding.path, finding.line) for finding in at_validation}
    assert (clause, 5) in found
    assert all(finding.hint and finding.file for finding in at_validation)
    run = torch.compile(Deep(), backend=offload_backend, options={"policy": policy, "mode": target})
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(batches()[0])
    at_compilation = refusal_of(error.value).diagnostics
    assert {finding.path for finding in at_validation} <= {finding.path for finding in at_compilation}
    assert {finding.line for finding in at_compilation} == {5}


UNKNOWN_HARDWARE = {
    "schedule.select": "schedule: {select: planned}",
    "schedule.defer": "schedule: {defer: auto}",
    "schedule.prefetch": "schedule: {prefetch: auto}",
}


@pytest.mark.parametrize("clause", UNKNOWN_HARDWARE)
@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_case_21_planning_by_time_is_refused_where_the_hardware_is_unknown(
    clause: str, mode: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    head = "apiVersion: offload/v1\nkind: Policy\nname: case\nactivations: {default: offload}\n"
    file.write_text(head + UNKNOWN_HARDWARE[clause] + "\n")
    torch._dynamo.reset()
    run = torch.compile(Deep(), backend=offload_backend, options={"policy": file, "mode": mode})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(batches()[0])
    (finding,) = refusal_of(error.value).diagnostics
    assert (finding.code, finding.path, finding.line) == ("RUN524", clause, 5)
    assert finding.hint is not None
    assert "--hardware" in finding.hint


def test_case_21_every_front_end_has_a_table_of_what_it_refuses() -> None:
    assert {"graph", "inductor"} <= set(TARGETS)


def test_case_22_of_two_rules_for_one_tensor_the_first_decides_and_the_shadow_is_named() -> None:
    first = rule("first", match={"op": "matmul", "module": "layers.**"})
    second = {"name": "second", "match": {"module": "layers.*.0"}, "action": "save"}
    shadows, fates = [], []
    for rules in ((first, second), (second, first)):
        run = train(Deep, policy_of(*rules), batches(1))
        verdicts = [v for v in run.report.tensors if v.activation.layer is not None]
        verdicts = [verdict for verdict in verdicts if verdict.activation.op_class == "matmul"]
        fates.append({(verdict.fate, verdict.rule) for verdict in verdicts})
        shadows += [finding for finding in run.report.diagnostics if finding.code == "POL183"]
    assert fates == [{("offload", "first")}, {("save", "second")}]
    assert ["'second'" in shadows[0].message, "shadowed by 'first'" in shadows[0].message] == [True, True]
    assert "shadowed by 'second'" in shadows[1].message
