"""A policy that is accepted must do something: cases 17 to 22."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import offload_runtime as off
from offload_runtime import policy as typed
from offload_runtime.errors import OffloadError, PolicyError, RefusedError
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.targets import TARGETS, check_target
from tests.cases.training import (
    Run,
    assert_exact,
    compiled,
    offload_everything,
    on_own_engine,
    policy_of,
    refusal_of,
    train,
)


class Deep(nn.Module):
    """Four layers; only the last has a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))
        self.gate = nn.Linear(16, 16)
        self.layers[3].append(nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.gate(x).sin()


def batches(num: int = 3) -> list[Tensor]:
    """Return one batch a step."""
    return [torch.randn(8, 16, generator=torch.Generator().manual_seed(i)) for i in range(num)]


def rule(name: str, **clause: Any) -> dict[str, Any]:
    """Return a rule that offloads unless told otherwise."""
    return {"name": name, "action": "offload", **clause}


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


Toggle = tuple[Mapping[str, Any], Mapping[str, Any]]
MATMULS = rule("heavy", match={"op": "matmul"})


def with_rule(**clause: Any) -> dict[str, Any]:
    """Return the activations that toggling one key of a rule leaves."""
    return {"activations": {"default": "save", "rules": [{**MATMULS, **clause}]}}


def matching(**keys: Any) -> dict[str, Any]:
    """Return the activations that toggling one key of a match leaves."""
    return with_rule(match={"op": "matmul", **keys})


PLAIN = with_rule()
EVERYTHING: dict[str, Any] = {"activations": {"default": "offload"}}

# One row for each field of the typed policy: two documents that differ in it alone. The plan differs, or the second
# is refused. A field without a row fails the test below.
TOGGLES: dict[str, Toggle] = {
    "Limits.budget": (PLAIN, {**PLAIN, "limits": {"budget": "0B"}}),
    "Limits.device_peak": (PLAIN, {**PLAIN, "limits": {"device_peak": "1GiB"}}),
    "Limits.host": (PLAIN, {**PLAIN, "limits": {"host": "0B"}}),
    "Limits.step_overhead": (PLAIN, {**PLAIN, "limits": {"step_overhead": "5%"}}),
    "Schedule.select": (PLAIN, {**PLAIN, "schedule": {"keep_last": 0, "select": "planned"}}),
    "Schedule.defer": (PLAIN, {**PLAIN, "schedule": {"keep_last": 0, "defer": 0}}),
    "Schedule.prefetch": (PLAIN, {**PLAIN, "schedule": {"keep_last": 0, "prefetch": 0}}),
    "Schedule.keep_last": (PLAIN, {**PLAIN, "schedule": {"keep_last": 3}}),
    "Activations.default": (EVERYTHING, {"activations": {"default": "save"}}),
    "Activations.layer_outputs": (
        {"activations": {"default": "recompute"}},
        {"activations": {"default": "recompute", "layer_outputs": "offload"}},
    ),
    "Activations.layers_of": (
        matching(layers=":2"),
        {"activations": {**matching(layers=":2")["activations"], "layers_of": ["gate", "layers.*"]}},
    ),
    "Activations.rules": (PLAIN, {"activations": {"default": "save", "rules": []}}),
    "Rule.name": (with_rule(name="a"), with_rule(name="b")),
    "Rule.match": (PLAIN, with_rule(match={"op": "activation"})),
    "Rule.action": (PLAIN, with_rule(action="recompute")),
    "Rule.must": (
        {**PLAIN, "limits": {"budget": "0B"}},
        {**with_rule(must=True), "limits": {"budget": "0B"}},
    ),
    "Rule.optional": (
        with_rule(match={"op": "convolution"}, optional=True),
        with_rule(match={"op": "convolution"}),
    ),
    "Rule.expect": (PLAIN, with_rule(expect={"matches": {"min": 100}})),
    "Rule.tier": (PLAIN, with_rule(tier="nvme")),
    "Match.op": (PLAIN, with_rule(match={"op": "activation"})),
    "Match.layers": (PLAIN, matching(layers="1:3")),
    "Match.module": (PLAIN, matching(module="layers.2.**")),
    "Match.inside": (PLAIN, matching(inside="0")),
    "Match.bytes": (PLAIN, matching(bytes={"max": "1B"})),
    "Match.layout": (
        {"activations": {"default": "save", "rules": [rule("r", match={"layout": "any"})]}},
        {"activations": {"default": "save", "rules": [rule("r", match={"layout": "contiguous"})]}},
    ),
    "Match.dtype": (PLAIN, matching(dtype="bfloat16")),
    "Match.negated": (PLAIN, matching(**{"not": {"layers": 2}})),
    "Expect.moved": (PLAIN, {**PLAIN, "expect": {"moved": {"min": "1GiB"}}}),
    "Policy.name": ({**PLAIN, "name": "a"}, {**PLAIN, "name": "b"}),
    "Policy.limits": (PLAIN, {**PLAIN, "limits": {"budget": "2KiB"}}),
    "Policy.schedule": (PLAIN, {**PLAIN, "schedule": {"keep_last": 4}}),
    "Policy.activations": (PLAIN, EVERYTHING),
    "Policy.extends": (PLAIN, {**PLAIN, "extends": ["max-savings"]}),
    "Policy.optimizer_state": (PLAIN, {**PLAIN, "optimizer_state": {"offload_fraction": 0.5}}),
    "Policy.gradients": (PLAIN, {**PLAIN, "gradients": {"offload": True}}),
    "Policy.parameters": (PLAIN, {**PLAIN, "parameters": {"offload": True}}),
    "Policy.requires": (PLAIN, {**PLAIN, "requires": {"all": [{"fact": "world_size", "ge": 2}]}}),
    "Policy.expect": (PLAIN, {**PLAIN, "expect": {"moved": {"max": "1B"}}}),
}
# What is no switch: words for people, and where a clause was written.
NO_SWITCHES = {"Policy.summary", "Policy.spans", "Rule.inherited"}
SECTIONS_REFUSED_WHOLE = (typed.OptimizerState, typed.Gradients, typed.Parameters)
SWITCHED = (
    typed.Policy,
    typed.Limits,
    typed.Schedule,
    typed.Activations,
    typed.Rule,
    typed.Match,
    typed.Expect,
)


def test_case_20_every_policy_field_has_a_row() -> None:
    names = {
        f"{section.__name__}.{field.name}"
        for section in SWITCHED
        for field in dataclasses.fields(section)
        if not field.name.endswith(("span", "key_spans"))
    }
    assert names - NO_SWITCHES == set(TOGGLES)


class Mixed(nn.Module):
    """Four layers, a dense and a strided saved value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (self.gate(x).sin().t() * 2).sin().cos()


def outcome(sections: Mapping[str, Any]) -> Any:
    """Return what a policy does to one step: its plans and findings, or the codes of the refusal."""
    document = {"apiVersion": "offload/v1", "kind": "Policy", "name": "case", "schedule": {"keep_last": 0}}
    try:
        policy = off.load_policy({**document, **sections})
        run = train(Mixed, policy, batches(1))
    except (OffloadError, torch._dynamo.exc.BackendCompilerFailed) as error:
        return [finding.code for finding in refusal_of(error).diagnostics]
    plans = [(graph.plan.verdicts, graph.plan.transfers) for graph in run.report.graphs]
    return run.report.policy, plans


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Keep what a document came to: many rows share their first one."""
    return {}


@pytest.mark.parametrize("field", TOGGLES)
def test_case_20_a_field_that_is_toggled_changes_the_plan_or_is_refused(
    field: str, seen: dict[str, Any]
) -> None:
    for document in TOGGLES[field]:
        if repr(document) not in seen:
            seen[repr(document)] = outcome(document)
    before, after = (seen[repr(document)] for document in TOGGLES[field])
    assert not isinstance(before, list), f"the first document is refused: {before}"
    assert before != after


@pytest.mark.parametrize("section", SECTIONS_REFUSED_WHOLE, ids=lambda section: section.__name__)
def test_case_20_the_fields_of_a_refused_section_are_refused_with_it(section: type) -> None:
    names = {"OptimizerState": "optimizer_state", "Gradients": "gradients", "Parameters": "parameters"}
    name = names[section.__name__]
    content = {"offload_fraction": 0.0} if section is typed.OptimizerState else {"offload": False}
    assert outcome({**PLAIN, name: content}) == ["POL190"]


ZEROS: dict[str, tuple[dict[str, Any], Callable[[Run], bool]]] = {
    "budget 0B offloads nothing": ({"limits": {"budget": "0B"}}, lambda run: not run.offloaded),
    "defer 0 waits at the last forward use": (
        {"schedule": {"defer": 0}},
        lambda run: all(t.release_after < 20 for t in run.report.graphs[0].plan.transfers[:1]),
    ),
    "prefetch 0 reloads at the first use": (
        {"schedule": {"prefetch": 0}},
        lambda run: all(t.reload_before == t.use_before for t in run.report.graphs[0].plan.transfers),
    ),
    "keep_last 0 keeps nothing": (
        {"schedule": {"keep_last": 0}},
        lambda run: 3 in {verdict.activation.layer for verdict in run.offloaded},
    ),
}


@pytest.mark.parametrize("name", ZEROS)
def test_case_20_zero_means_zero(name: str) -> None:
    sections, holds = ZEROS[name]
    assert holds(train(Deep, offload_everything(**sections), batches(1)))


def test_case_20_a_host_limit_of_zero_forbids_to_pin_anything() -> None:
    assert outcome({**PLAIN, "limits": {"host": "0B"}}) == ["RUN505"]


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
