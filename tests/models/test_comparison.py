"""Training with and without a policy: the numbers are compared, and what a policy does is found out."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offload_runtime.compiler import load_policy
from offload_runtime.errors import PolicyError, RefusedError, RunError
from offload_runtime.hardware import load_hardware
from offload_runtime.models import training
from offload_runtime.models.comparison import compare_training
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.result import ApplyResult
from offload_runtime.models.training import TrainingPlan, train
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.runtime.host_memory import HostMemory

Write = Callable[[str], str]
_names = itertools.count()

TWO_LAYERS = """
def build():
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), (torch.randn(64, 64),)
"""
TINY = ModelRequest("builtin:llama-tiny", batch=1, seq=64, layers=2)


def policy(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "tiny",
        "activations": {
            "default": "recompute",
            "layer_outputs": "save",
            "rules": [{"name": "heavy", "match": {"op": ["matmul", "attention"]}, "action": "offload"}],
        },
        **changes,
    }


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a module into the current directory and returns its specification."""
    monkeypatch.chdir(tmp_path)

    def write(source: str) -> str:
        name = f"compared_model_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(f"import itertools, torch\nfrom torch import nn\n{source}\n")
        return f"{name}:build"

    return write


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def progress_seen() -> list[tuple[str, int, int]]:
    """Return what the comparison of `graph_result` told about its progress."""
    return []


@pytest.fixture(scope="module")
def graph_result(progress_seen: list[tuple[str, int, int]]) -> ApplyResult:
    """Return one real comparison in mode graph; it takes three compilations."""
    return compare_training(TINY, policy(), steps=3, progress=lambda *step: progress_seen.append(step))


def assert_offloads_bitwise(result: ApplyResult, mode: str, num_layers: int | None = 2) -> None:
    assert not [finding for finding in result.diagnostics if finding.severity == "error"]
    assert result.bitwise_identical is True
    assert (result.bitwise_scope, result.bitwise_layers) == ("full", num_layers)
    assert result.losses.policy == result.losses.compared == result.losses.reference
    assert result.losses.policy[0] == pytest.approx(result.losses.baseline[0], rel=1e-5)
    assert result.losses.policy[-1] < result.losses.policy[0]
    assert result.moved_bytes == result.planned_bytes > 0
    assert result.host_bytes >= result.moved_bytes
    assert result.saved_bytes is not None
    assert result.saved_bytes > 0
    assert (result.engine, result.device, result.num_graphs, result.mode) == ("simulated", "cpu", 1, mode)
    assert result.baseline.step_ms is result.policy.step_ms is None
    assert sum(run.moved_bytes for run in result.layer_runs) == result.moved_bytes


def test_a_policy_that_offloads_moves_what_it_planned_and_changes_no_bit(graph_result: ApplyResult) -> None:
    assert_offloads_bitwise(graph_result, "graph")


def test_a_step_of_several_batches_takes_the_mean_of_their_losses_and_keeps_their_gradients(
    graph_result: ApplyResult,
) -> None:
    single = train(
        replace(TINY, optimizer="none"), TrainingPlan("policy", load_policy(policy()), "graph", 2), silent
    )
    request = replace(TINY, gradient_accumulation_steps=2)
    result = compare_training(request, policy(), steps=2)
    assert single is not None
    assert result.losses.policy[0] == pytest.approx(sum(single.losses) / 2, rel=1e-6)
    assert result.bitwise_identical is True
    assert result.moved_bytes == result.planned_bytes > 0
    trainable = sum(parameter.nbytes for parameter in TINY.resolve().module.parameters())
    for several, one in ((result.baseline, graph_result.baseline), (result.policy, graph_result.policy)):
        assert several.peak_device_bytes == (one.peak_device_bytes or 0) + trainable


def silent(done: int, total: int) -> None:
    pass


def test_under_inductor_too_no_bit_changes(written: Write) -> None:
    """Few kernels, each of which takes seconds to compile; whole decoders run under Inductor in test_families."""
    spec = written(
        "def build():\n"
        "    block = lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))\n"
        "    return nn.Sequential(block(), block()), (torch.randn(256, 16),)\n"
    )
    result = compare_training(ModelRequest(spec), policy(schedule={"keep_last": 0}), steps=2, mode="inductor")
    assert_offloads_bitwise(result, "inductor", num_layers=None)


def test_progress_names_the_phase_after_each_step(
    graph_result: ApplyResult, progress_seen: list[tuple[str, int, int]]
) -> None:
    assert graph_result.steps == 3
    phases = ("baseline", "reference", "policy")
    assert progress_seen == [(phase, done, 3) for phase in phases for done in (1, 2, 3)]


@pytest.mark.parametrize("name", ["moe-tiny", "unet-tiny"])
def test_the_other_small_models_train_bitwise_too(name: str) -> None:
    layers = 2 if name == "moe-tiny" else None
    request = ModelRequest(f"builtin:{name}", batch=1, layers=layers)
    result = compare_training(request, policy(schedule={"keep_last": 0}), steps=2)
    assert result.bitwise_identical is True
    assert result.moved_bytes == result.planned_bytes > 0
    assert result.num_graphs == 1


def test_the_result_is_plain_data_with_the_keys_that_outside_checks_read(graph_result: ApplyResult) -> None:
    data = graph_result.to_data()
    assert {
        "bitwise_identical",
        "bitwise_scope",
        "inputs",
        "environment",
        "losses",
        "baseline",
        "policy",
        "planned_bytes",
        "moved_bytes",
        "host_bytes",
        "host_waste_bytes",
        "hidden_fraction",
        "stall_ms",
        "num_graphs",
        "device",
        "verdict",
    } <= data.keys()
    assert data["baseline"].keys() == data["policy"].keys() == {"fits", "peak_device_bytes", "step_ms"}
    assert data["losses"].keys() == {"baseline", "policy", "compared", "reference"}
    assert data["bitwise_scope"] in ("full", "reduced")
    assert data["inputs"] == ("int64[1, 64]", "int64[1, 64]")
    assert data["environment"]["torch"] == torch.__version__


def test_a_run_that_changes_a_value_is_caught_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_model = training._compiled

    def faulty(model: ModelUnderTest, plan: TrainingPlan, options: dict[str, Any]) -> Callable[..., Any]:
        compiled = compile_model(model, plan, options)
        if plan.variant == "policy":
            model.module.norm.weight.register_hook(lambda grad: grad * (1 + 1e-6))
        return compiled

    monkeypatch.setattr(training, "_compiled", faulty)
    result = compare_training(TINY, policy(), steps=2)
    assert result.bitwise_identical is False
    assert str(result.first_difference) == "gradient norm.weight at step 1"
    assert [d.code for d in result.diagnostics if d.severity == "error"] == ["MOD751"]
    assert result.exit_code == 1
    assert "the numbers differ, first in the gradient norm.weight at step 1" in result.verdict.lower()


def test_a_model_with_dropout_draws_the_same_numbers_in_every_run(written: Write) -> None:
    spec = written(
        "def build():\n"
        "    block = lambda: nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3), nn.GELU())\n"
        "    return nn.Sequential(*(block() for _ in range(3))), (torch.randn(16, 32),), torch.sum\n"
    )
    result = compare_training(ModelRequest(spec), policy(schedule={"keep_last": 0}), steps=3)
    assert result.bitwise_identical is True
    assert result.moved_bytes > 0


def test_nothing_of_a_model_is_left_when_its_training_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[weakref.ref[nn.Module]] = []
    resolve = ModelRequest.resolve

    def remembered(request: ModelRequest) -> ModelUnderTest:
        model = resolve(request)
        modules.append(weakref.ref(model.module))
        return model

    monkeypatch.setattr(ModelRequest, "resolve", remembered)
    plan = TrainingPlan("policy", load_policy(policy()), "graph", steps=2, numbers=True)
    assert train(TINY, plan, lambda done, total: None) is not None
    gc.collect()
    assert [module() for module in modules] == [None]


def test_global_state_is_as_it_was_after_a_comparison(written: Write) -> None:
    spec = written(TWO_LAYERS)
    before = torch.get_rng_state()
    compare_training(ModelRequest(spec), policy(schedule={"keep_last": 0}), steps=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


def test_bytes_below_what_the_policy_expects_are_a_finding(written: Write) -> None:
    spec = written(TWO_LAYERS)
    expecting = policy(schedule={"keep_last": 0}, expect={"moved": {"min": "1GiB"}})
    result = compare_training(ModelRequest(spec), expecting, steps=1)
    assert [d.code for d in result.diagnostics if d.is_error] == ["MOD753"]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("optimizer_state", {"offload_fraction": 0.5}),
        ("gradients", {"offload": True}),
        ("parameters", {"offload": True}),
    ],
)
def test_a_section_that_is_not_honoured_yet_is_refused_by_name(section: str, value: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=section):
        compare_training(TINY, policy(**{section: value}))


def test_a_rule_that_matches_nothing_fails_with_what_was_there() -> None:
    changed = policy()
    changed["activations"]["rules"].append(
        {"name": "typo", "match": {"module": "**.atention.**"}, "action": "offload"}
    )
    with pytest.raises(PolicyError, match="typo"):
        compare_training(TINY, changed, steps=1)


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("raise KeyError('no such head')", RunError, "no such head"),
        ("return x @ x", RunError, "failed"),
    ],
)
def test_a_model_that_fails_is_named_with_its_own_error(
    written: Write, body: str, error: type[Exception], words: str
) -> None:
    spec = written(
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(4, 3))\n"
        f"    def forward(self):\n        x = self.w\n        {body}\n"
        "def build():\n    return M(), ()"
    )
    with pytest.raises((error, RefusedError)) as caught:
        compare_training(ModelRequest(spec), policy(), steps=1)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in ("MOD732", "MOD733")
    assert spec in diagnostic.message
    assert diagnostic.hint


def test_an_optimizer_that_cannot_use_the_gradients_is_named_and_another_one_trains(written: Write) -> None:
    spec = written(
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    model = nn.Sequential(nn.Embedding(16, 8, sparse=True), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))\n"
        "    return model, (torch.arange(6),)"
    )
    under = policy(schedule={"keep_last": 0})
    with pytest.raises(RunError) as caught:
        compare_training(ModelRequest(spec), under, steps=1)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "MOD733"
    assert "optimizer adamw" in diagnostic.message
    assert "--optimizer" in (diagnostic.hint or "")
    assert compare_training(ModelRequest(spec, optimizer="sgd"), under, steps=1).bitwise_identical


def test_a_model_of_which_no_graph_is_captured_is_refused(written: Write) -> None:
    spec = written(
        "class M(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(4))\n"
        "    @torch.compiler.disable\n    def forward(self):\n        return self.w.square().sum()\n"
        "def build():\n    return M(), ()"
    )
    with pytest.raises(RefusedError, match=r"MOD731|MOD732"):
        compare_training(ModelRequest(spec), policy(), steps=1)


def test_a_function_that_ignores_the_seed_is_refused(written: Write) -> None:
    spec = written(
        "count = itertools.count()\n"
        "def build():\n"
        "    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))\n"
        "    nn.init.constant_(net[0].bias, next(count))\n"
        "    return net, (torch.ones(64, 64),)"
    )
    with pytest.raises(RefusedError, match="MOD735"):
        compare_training(ModelRequest(spec), policy(schedule={"keep_last": 0}), steps=1)


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("mode", "eager")])
def test_a_bad_argument_is_the_caller_s_error(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        compare_training(TINY, policy(), **{name: value})


def test_a_step_that_outgrows_the_host_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its parameters are a few hundred KiB; what the step saves, and the workspace, are not.
    monkeypatch.setattr(
        "offload_runtime.models.construction.read_host_memory", lambda: HostMemory(8 << 20, 8 << 20)
    )
    monkeypatch.setattr("offload_runtime.models.comparison.train", lambda *_: pytest.fail("a step ran"))
    with pytest.raises(RefusedError, match=r"MOD703 a step of builtin:llama-tiny, run on the CPU, needs"):
        compare_training(
            ModelRequest("builtin:llama-tiny", layers=1), load_policy("fit"), steps=1, hardware="h200-pcie5"
        )


def test_every_run_of_a_comparison_plans_for_the_same_automatic_limit() -> None:
    policy = load_policy("fit")
    profile = load_hardware("h200-pcie5")
    result = compare_training(
        ModelRequest("builtin:llama-tiny", layers=1, batch=1, seq=32), policy, steps=1, hardware=profile
    )
    assert result.policy_hash == policy.hash
    assert result.bitwise_identical
    assert result.planned_bytes == 0, "a tiny model fits, so nothing leaves"
