"""Every field of a policy changes what happens or is refused: case 20."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import offload_runtime as off
from offload_runtime import policy as typed
from offload_runtime.errors import OffloadError
from tests.cases.deep_model import Deep, batches, rule
from tests.cases.training import Run, offload_everything, refusal_of, train

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
