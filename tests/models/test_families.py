"""Model families that nobody here wrote: the policy changes what moves, and no bit of what is computed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import offload_runtime as off
from offload_runtime.models.explanation import explain_policy
from offload_runtime.models.numbers import first_step_difference
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.training import Training, TrainingPlan, train
from tests.models.configurations import CONFIGURATIONS

pytest.importorskip("transformers")
pytest.importorskip("diffusers")

LAYERS = {
    "gpt2": r"transformer\.h\.0",
    "t5": r"encoder\.block\.0",
    "vit": r"vit\..*\.?layers?\.0",
    "unet": r"down_blocks\.0",
}
POLICY = off.load_policy(
    {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "heavy",
        "schedule": {"defer": 1, "prefetch": 1, "keep_last": 0},
        "activations": {
            "default": "recompute",
            "layer_outputs": "save",
            "rules": [
                {
                    "name": "heavy",
                    "match": {"op": ["matmul", "attention", "convolution"]},
                    "action": "offload",
                },
                {
                    "name": "routing",
                    "match": {"op": "routing"},
                    "action": "save",
                    "must": True,
                    "optional": True,
                },
            ],
        },
    }
)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Some CPU kernels add in the order in which threads arrive; one thread has one order."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(num_threads)


def request_of(family: str, folder: Path, layers: int = 2) -> ModelRequest:
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[family]))
    # Of two layers, what leaves in one comes back in the other. A U-Net has no number of layers.
    return ModelRequest(f"hf:{folder}", layers=None if family == "unet" else layers, optimizer="sgd")


def trained(family: str, folder: Path, mode: str, layers: int = 2) -> tuple[Training, Training]:
    """Train three steps with the policy's offloads as saves, and as they are: what `apply` compares."""
    plan = TrainingPlan("reference", POLICY, mode, steps=3, numbers=True, deterministic=True)
    request = request_of(family, folder, layers)
    reference = train(request, plan, lambda done, total: None)
    assert reference is not None
    policy = train(
        request, replace(plan, variant="policy", against=reference.final), lambda done, total: None
    )
    assert policy is not None
    return reference, policy


def assert_sound(reference: Training, policy: Training) -> None:
    report = policy.report
    assert report is not None
    diagnostics = [*report.diagnostics, *(found for graph in report.graphs for found in graph.diagnostics)]
    assert not [finding for finding in diagnostics if finding.severity == "error"]
    assert (policy.start, policy.num_layers) == (reference.start, reference.num_layers)
    assert len(policy.steps) == len(reference.steps) == 3
    for step, (ours, theirs) in enumerate(zip(policy.steps, reference.steps, strict=True), start=1):
        assert first_step_difference(ours, theirs, step) is None
    assert policy.final_difference is None
    assert report.planned_bytes == report.moved_bytes > 0


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_three_steps_of_a_family_are_bitwise_the_same_in_mode_graph(family: str, tmp_path: Path) -> None:
    assert_sound(*trained(family, tmp_path, "graph"))


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_layers_names_and_classes_are_those_of_the_family(family: str, tmp_path: Path) -> None:
    report = explain_policy(request_of(family, tmp_path), POLICY, mode="graph")
    tensors = [tensor.activation for tensor in report.tensors if tensor.fate != "skip"]
    layers = {tensor.layer_path for tensor in tensors if tensor.layer is not None}
    assert any(re.fullmatch(LAYERS.get(family, r"model\.layers\.0"), str(layer)) for layer in layers)
    assert not [tensor.module for tensor in tensors if "L[" in tensor.module or "_modules" in tensor.module]
    assert not [tensor for tensor in tensors if tensor.op_class == "other" and tensor.num_bytes >= 2**20]


@pytest.mark.timeout(900)  # two compilations of a whole model
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_three_steps_of_a_family_are_bitwise_the_same_in_mode_inductor(family: str, tmp_path: Path) -> None:
    assert_sound(*trained(family, tmp_path, "inductor", layers=1))  # some 12 kernels, of two seconds each
