"""The module that is exported for torchtitan tags a traced step as the policy says.

torchtitan is not installed with this project. Where it is, its own passes run; elsewhere a stand-in that calls the
policy function as they do (for forward nodes, `getitem` inheriting from its parent) and picks from what is saved.
"""

from __future__ import annotations

import dataclasses
import importlib
import operator
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.export.exporter import export_policy
from offload_runtime.export.rendering import render_export
from offload_runtime.export.target_reading import load_target
from tests.export.policies import policy

PACKAGE = "torchtitan.experiments.graph_trainer"
WIDTH = 64  # 64 x 64 float32 are 16 KiB
RULES = [{"name": "heavy", "match": {"op": "matmul", "module": "layers.*.w1"}, "action": "offload"}]


def step_of_three_layers() -> fx.GraphModule:
    """A forward of three layers, mm (w1), relu, mm (w2), annotated as torchtitan annotates; backward is one node."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.mm(torch.relu(torch.mm(x, w)), w)
        return torch.sum(x)

    gm = make_fx(run, tracing_mode="fake")(torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH))
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    for index, node in enumerate(nodes):
        names = ("w1", "act", "w2")
        is_loss = index >= 9
        node.meta["custom"] = {"module_fqn": "loss" if is_loss else f"layers.{index // 3}.{names[index % 3]}"}
    return gm


def stand_in() -> dict[str, types.ModuleType]:
    """torchtitan's four names, calling what they are given as version 0.3.0 does."""
    registry: dict[str, Callable[..., Any]] = {"sac_and_offload": lambda gm, *, config: gm}

    def register_memory_policy(key: str) -> Callable[[Any], Any]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            registry[key] = function
            return function

        return register

    def is_forward(node: fx.Node) -> bool:
        return node.op == "call_function" and not node.meta["custom"]["module_fqn"].startswith("loss")

    def tag_sac_policy(gm: fx.GraphModule, *, policy_fn: Callable[[fx.Node], CheckpointPolicy]) -> None:
        for node in filter(is_forward, gm.graph.nodes):
            inherits = node.target is operator.getitem
            node.meta["recompute"] = node.args[0].meta["recompute"] if inherits else policy_fn(node)

    def tag_all_offloadable_activations(gm: fx.GraphModule, *, cpu_budget_gb: float) -> None:
        left = cpu_budget_gb * 2**30 or float("inf")
        last = max(
            int(n.meta["custom"]["module_fqn"].split(".")[1]) for n in filter(is_forward, gm.graph.nodes)
        )
        for node in filter(is_forward, gm.graph.nodes):
            num_bytes = node.meta["val"].untyped_storage().nbytes()
            is_last = node.meta["custom"]["module_fqn"].startswith(f"layers.{last}.")
            if node.meta["recompute"] == CheckpointPolicy.MUST_SAVE and not is_last and num_bytes <= left:
                node.meta["recompute"] = CheckpointPolicy.MUST_CPU_OFFLOAD
                left -= num_bytes

    modules = {name: types.ModuleType(name) for name in ("torchtitan", "torchtitan.experiments", PACKAGE)}
    for part, members in {
        "memory_policy": {"tag_sac_policy": tag_sac_policy},
        "cpu_offload": {"tag_all_offloadable_activations": tag_all_offloadable_activations},
        "registry": {"register_memory_policy": register_memory_policy, "MEMORY_POLICY_REGISTRY": registry},
    }.items():
        modules[f"{PACKAGE}.{part}"] = types.ModuleType(part)
        vars(modules[f"{PACKAGE}.{part}"]).update(members)
    return modules


def has_torchtitan() -> bool:
    try:
        import torchtitan.experiments.graph_trainer.memory_policy  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.fixture(params=["stand-in", "torchtitan"])
def registry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The registry of memory policies, torchtitan's own where it is installed."""
    if request.param == "torchtitan":
        if not has_torchtitan():
            pytest.skip("torchtitan is not installed")
    else:
        for name, module in stand_in().items():
            monkeypatch.setitem(sys.modules, name, module)
    policies: dict[str, Any] = importlib.import_module(f"{PACKAGE}.registry").MEMORY_POLICY_REGISTRY
    before = dict(policies)
    yield policies
    policies.clear()
    policies.update(before)


def load_export(source: CompiledPolicy) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "exported"}
    exec(compile(render_export(export_policy(source, "torchtitan")), "exported.py", "exec"), names)
    return names


def tags(registry: dict[str, Any], source: CompiledPolicy, budget_gb: float = 0) -> dict[str, str]:
    """The tag of each annotated module after the exported policy ran."""
    load_export(source)
    gm = step_of_three_layers()
    config = types.SimpleNamespace(compile=types.SimpleNamespace(cpu_offload_budget_gb=budget_gb))
    registry["sac_and_offload"](gm, config=config)
    return {
        node.meta["custom"]["module_fqn"]: node.meta["recompute"].name
        for node in gm.graph.nodes
        if "recompute" in node.meta
    }


def test_the_policy_takes_the_place_of_the_name_that_the_command_line_knows(registry: dict[str, Any]) -> None:
    before = registry["sac_and_offload"]
    names = load_export(policy(activations={"default": "recompute", "rules": RULES}))
    assert registry["sac_and_offload"] is names["offload_runtime_policy"] is not before


def test_rules_decide_by_module_and_the_last_layer_stays(registry: dict[str, Any]) -> None:
    source = policy(activations={"default": "save", "rules": RULES})
    found = tags(registry, source)
    assert [found[f"layers.{i}.w1"] for i in range(3)] == [
        "MUST_CPU_OFFLOAD",
        "MUST_CPU_OFFLOAD",
        "MUST_SAVE",
    ]
    assert {found[f"layers.{i}.{name}"] for i in range(3) for name in ("act", "w2")} == {"MUST_SAVE"}
    assert "loss" not in found


def test_what_the_policy_recomputes_is_left_to_be_recomputed(registry: dict[str, Any]) -> None:
    source = policy(activations={"default": "recompute", "layer_outputs": "save", "rules": RULES})
    found = tags(registry, source)
    assert found["layers.0.act"] == "PREFER_RECOMPUTE"
    assert found["layers.0.w2"] == "MUST_SAVE"
    assert found["layers.0.w1"] == "MUST_CPU_OFFLOAD"


def test_the_budget_bounds_what_is_offloaded_and_the_rest_is_saved(registry: dict[str, Any]) -> None:
    source = policy(activations={"default": "recompute", "rules": RULES})
    found = tags(registry, source, budget_gb=WIDTH * WIDTH * 4 / 2**30)
    assert sorted(found[f"layers.{i}.w1"] for i in range(3)) == ["MUST_CPU_OFFLOAD", "MUST_SAVE", "MUST_SAVE"]


def test_the_exported_policy_is_the_policy(registry: dict[str, Any]) -> None:
    source = load_policy("balanced")
    assert load_export(source)["POLICY"].hash == source.hash


def test_arguments_that_later_versions_add_do_no_harm(registry: dict[str, Any]) -> None:
    load_export(policy(activations={"default": "save"}))
    config = types.SimpleNamespace(compile=types.SimpleNamespace(cpu_offload_budget_gb=0))
    gm = step_of_three_layers()
    assert registry["sac_and_offload"](gm, config=config, trace=None, model_parts=[]) is gm


def test_the_settings_known_of_it_are_those_of_its_own_configuration() -> None:
    configs = pytest.importorskip("torchtitan.experiments.graph_trainer.configs")
    fields = {field.name: field for field in dataclasses.fields(configs.GraphTrainerCompileConfig)}
    for setting in load_target("torchtitan").settings:
        field = fields[setting.key.removeprefix("compile.")]
        assert field.default == setting.default, setting.key
        if setting.choices:
            assert set(setting.choices) <= set(re.findall(r"'(\w+)'", str(field.type)))


def test_its_own_parser_takes_the_flags() -> None:
    configs = pytest.importorskip("torchtitan.experiments.graph_trainer.configs")
    tyro = pytest.importorskip("tyro")
    export = export_policy(load_policy("balanced"), "torchtitan")
    flags = shlex.split(render_export(export, "flags").replace(" \\\n", " ").replace("--compile.", "--"))
    parsed = tyro.cli(configs.GraphTrainerCompileConfig, args=flags)
    assert parsed.memory_policy == "sac_and_offload"
    assert parsed.cpu_offload_budget_gb == 10e9 / 2**30
    assert (parsed.cpu_offload_defer_n_layers, parsed.cpu_offload_prefetch_n_layers) == (8, 1)
