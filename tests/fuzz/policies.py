"""Random policies for random programs."""

from __future__ import annotations

import random
from typing import Any

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import PolicyError

__all__ = ["draw_policy"]

_ACTIONS = ("save", "recompute", "offload", "offload", "offload", "auto")
_OP_CLASSES = (
    "matmul",
    "attention",
    "norm",
    "activation",
    "elementwise",
    "copy",
    "view",
    "reduction",
    "random",
)
_MODULES = ("**.mlp", "layers.*.attention", "**.norm", "head", "layers.**")
_LAYERS = (":2", "-1:", ":50%", "0", "outside")


def draw_policy(rng: random.Random) -> CompiledPolicy:
    """Draw a policy that validates. Every rule is optional: a graph need not hold what it looks for."""
    rules: list[dict[str, Any]] = []
    policy = load_policy(document := _draw_document(rng))
    for number in range(rng.randint(0, 3)):
        extended = {
            **document,
            "activations": {**document["activations"], "rules": [*rules, _draw_rule(rng, number)]},
        }
        try:
            policy = load_policy(extended)
        except PolicyError:
            continue  # an earlier rule already takes all that this one could match
        rules = extended["activations"]["rules"]
    return policy


def _draw_document(rng: random.Random) -> dict[str, Any]:
    activations: dict[str, Any] = {"default": rng.choice(_ACTIONS), "rules": []}
    if rng.random() < 0.3:
        activations["layer_outputs"] = rng.choice(("save", "recompute", "offload"))
    return {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "drawn",
        "limits": {"budget": rng.choice(("unlimited",) * 6 + ("0B", "200B", "1KiB"))},
        "schedule": {
            "defer": rng.choice((0, 1, 2, 8)),
            "prefetch": rng.choice((0, 1, 2, 8)),
            "keep_last": rng.choice((0, 0, 0, 0, 1, 3)),
        },
        "activations": activations,
    }


def _draw_rule(rng: random.Random, number: int) -> dict[str, Any]:
    match: dict[str, Any] = {}
    if rng.random() < 0.6:
        match["op"] = rng.sample(_OP_CLASSES, rng.randint(1, 3))
    if rng.random() < 0.3:
        match["module"] = rng.choice(_MODULES)
    if rng.random() < 0.3:
        match["layers"] = rng.choice(_LAYERS)
    if rng.random() < 0.2:
        match["bytes"] = {"min": rng.choice(("64B", "128B"))}
    if not match or rng.random() < 0.1:
        match["layout"] = rng.choice(("contiguous", "dense"))
    return {"name": f"rule-{number}", "match": match, "action": rng.choice(_ACTIONS), "optional": True}
