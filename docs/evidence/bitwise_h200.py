"""Prove on one GPU that offloading changes no bit and that memory stays flat.

    CUBLAS_WORKSPACE_CONFIG=:4096:8 python docs/evidence/bitwise_h200.py docs/evidence/bitwise-h200.json

Four layers of the Llama-3-8B shape, bf16, deterministic algorithms. In each mode, three training steps with the policy
are compared, bit for bit, with three steps in which every offload is replaced by a save. Then 200 steps of the policy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from llama3_8b_h200 import environment, soak_memory, step

import offload_runtime as off
from offload_runtime.models import resolve_model
from offload_runtime.runtime.backend import offload_backend

POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "everything",
    "schedule": {"defer": 1, "prefetch": 1},
    "activations": {
        "default": "recompute",
        "layer_outputs": "offload",
        "rules": [{"name": "heavy", "match": {"op": ["matmul", "attention"]}, "action": "offload"}],
    },
}


def main() -> None:
    torch.use_deterministic_algorithms(True)
    result: dict[str, Any] = {
        "what": __doc__,
        "command": " ".join(
            ["python", *(Path(word).name if word.startswith("/") else word for word in sys.argv)]
        ),
        "environment": environment(),
    }
    for mode in ("graph", "inductor"):
        moved, report = train(mode, "policy")
        kept, _ = train(mode, "reference")
        different = [name for name in kept if not torch.equal(moved[name], kept[name])]
        result[mode] = {
            "bitwise_identical": not different,
            "num_tensors_compared": len(kept),
            "different": different,
            "num_offloaded": sum(tensor.fate == "offload" for tensor in report.tensors),
            "planned_bytes": report.planned_bytes,
            "moved_bytes": report.moved_bytes,
        }
        print(mode, result[mode], flush=True)
        write(result)
    torch.use_deterministic_algorithms(False)
    result["soak"] = soak()
    write(result)
    print(result["soak"])


def write(result: dict[str, Any]) -> None:
    """Write what has been measured so far, so that a run that is cut off leaves it behind."""
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


def train(mode: str, variant: str) -> tuple[dict[str, torch.Tensor], off.Report]:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    under_test = resolve_model(
        "builtin:llama3-8b", layers=4, seq=1024, device="cuda", dtype="bfloat16", seed=0
    )
    model = under_test.module
    options = {"policy": POLICY, "mode": mode, "variant": variant, "model": model}
    compiled: Any = torch.compile(model, backend=offload_backend, options=options)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    seen = {}
    for index in range(3):
        loss = compiled(*under_test.make_batch(index))
        loss.backward()
        seen[f"loss of step {index}"] = loss.detach().cpu()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            seen[f"gradient of {name}, step {index}"] = parameter.grad.cpu()
        optimizer.step()
        optimizer.zero_grad()
    return seen, off.report(compiled)


def soak() -> dict[str, Any]:
    torch._dynamo.reset()
    under_test = resolve_model(
        "builtin:llama3-8b", layers=4, seq=8192, device="cuda", dtype="bfloat16", seed=0
    )
    model, batch = under_test.module, under_test.make_batch(0)
    options = {"policy": POLICY, "mode": "inductor", "model": model}
    compiled: Any = torch.compile(model, backend=offload_backend, options=options)  # type: ignore[call-overload]
    step(model, compiled, batch)
    return soak_memory(model, compiled, batch, 200)


if __name__ == "__main__":
    main()
