"""Policies that the tests of the exports share."""

from __future__ import annotations

from typing import Any

from offload_runtime.compiler import CompiledPolicy, load_policy

# Every clause that the policy schema has, each given.
EVERY_CLAUSE: dict[str, Any] = {
    "summary": "Everything that can be said.",
    "extends": ["sac-default"],
    "limits": {"budget": "1GiB", "device_peak": "auto", "host": "2GiB", "step_overhead": "5%"},
    "schedule": {"select": "planned", "defer": 2, "prefetch": 2, "keep_last": 2},
    "activations": {
        "default": "recompute",
        "layer_outputs": "offload",
        "layers_of": ["layers.*"],
        "rules": [
            {
                "name": "all-keys",
                "summary": "Every key of a match.",
                "match": {
                    "op": "matmul",
                    "layers": ":4",
                    "module": "layers.**",
                    "inside": "**.w1",
                    "bytes": {"min": "4KiB"},
                    "layout": "dense",
                    "dtype": ["bfloat16"],
                    "not": {"module": "layers.0.**"},
                },
                "action": "offload",
                "must": True,
                "expect": {"matches": {"min": 2}, "layers": {"min": 1}},
                "tier": "host",
            },
            {"name": "maybe", "match": {"op": "norm"}, "action": "save", "optional": True},
        ],
    },
    "optimizer_state": {"offload_fraction": 0.5, "overlap": True, "step_device": "gpu", "tier": "host"},
    "gradients": {"offload": True, "tier": "host"},
    "parameters": {"offload": True, "layers": ":4", "double_buffering": True, "tier": "host"},
    "requires": {"fact": "num_gpus", "ge": 1},
    "expect": {"moved": {"min": "1MiB"}},
}


def policy(**sections: Any) -> CompiledPolicy:
    """Return a policy called `p` of the given sections."""
    return load_policy({"apiVersion": "offload/v1", "kind": "Policy", "name": "p", **sections})


def first_layers(layers: str = ":16", **schedule: Any) -> CompiledPolicy:
    """Return a policy that offloads all that the first layers save."""
    rule = {"name": "first", "match": {"layers": layers}, "action": "offload"}
    return policy(activations={"default": "save", "rules": [rule]}, **schedule)
