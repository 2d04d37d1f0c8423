from __future__ import annotations

import json

from offload_runtime.reporting.step_events import step_events
from tests.reporting.plan_results import TRACE, plan_result

EVENTS = step_events(plan_result())["traceEvents"]


def of_policy(category: str) -> list[dict[str, object]]:
    return [event for event in EVENTS if event.get("cat") == category and event["pid"] == 0]


def test_every_kernel_is_an_event_in_microseconds_with_its_layer_and_side() -> None:
    kernels = of_policy("kernel")
    assert [event["name"] for event in kernels] == [kernel.name for kernel in TRACE.kernels]
    assert (kernels[1]["ts"], kernels[1]["dur"]) == (1000.0, 1000.0)
    assert kernels[0]["args"] == {"layer": 0, "side": "forward"}
    assert kernels[-1]["args"] == {"layer": 0, "side": "backward"}


def test_copies_have_lanes_of_their_own_and_the_names_of_pytorchs_profiler() -> None:
    copies = of_policy("gpu_memcpy")
    assert [event["name"] for event in copies] == [
        "Memcpy DtoH (Device -> Pinned)",
        "Memcpy HtoD (Pinned -> Device)",
    ]
    lanes = {event["tid"] for event in copies} | {of_policy("kernel")[0]["tid"]}
    assert len(lanes) == 3


def test_memory_is_a_counter_at_every_kernel() -> None:
    counters = [event for event in EVENTS if event["ph"] == "C" and event["pid"] == 0]
    device = plan_result().policy_step.simulation.device_bytes
    assert [event["args"]["device"] for event in counters] == list(device)


def test_baseline_and_policy_are_processes_with_names() -> None:
    named = {e["pid"]: e["args"]["name"] for e in EVENTS if e["name"] == "process_name"}
    assert named == {0: "policy (predicted)", 1: "baseline (predicted)"}


def test_a_trace_is_plain_json_and_says_what_it_is_of() -> None:
    document = json.loads(json.dumps(step_events(plan_result())))
    assert document["otherData"] == {
        "predicted": True,
        "model": "builtin:llama3-8b",
        "policy": "wide",
        "mode": "inductor",
        "hardware": "h200-pcie5",
    }
