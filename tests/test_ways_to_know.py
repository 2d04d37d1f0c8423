"""What the text says of how a fact can be known is what the code can deliver, for every fact of the table."""

from __future__ import annotations

import json
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from offload_runtime.diagnosis_table import CHECKS
from offload_runtime.fact_sheet import FactSheet, how_to_know
from offload_runtime.facts import FACTS, PROBED, PROFILED
from offload_runtime.hardware import hardware_names, load_hardware
from offload_runtime.models.facts import gather_facts
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.result_facts import facts_of_result
from offload_runtime.runtime import machine_facts as probe
from tests.test_result_facts import APPLIED

MACHINE = [fact for fact in FACTS.values() if fact.source == "machine"]
MODEL = [fact for fact in FACTS.values() if fact.source == "model"]
MEASURING = Path(__file__).parents[1] / "skills/diagnose-offload-overhead/references/measuring.md"


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU at an address whose files in sysfs are those of the kernel, and that a shipped profile is of."""
    folder = tmp_path / "bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    for name, text in (
        ("current_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("numa_node", "0"),
    ):
        (folder / name).write_text(text)
    answers = {
        "is_available": True,
        "current_device": 0,
        "device_count": 8,
        "get_device_name": "NVIDIA H100 PCIe",
    }
    for name, answer in {**answers, "mem_get_info": (1, 2)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(probe, "pci_address", lambda _: "0000:1B:00.0")
    monkeypatch.setattr(probe, "profile_of_device", lambda _: load_hardware("h100-pcie5"))
    monkeypatch.setattr(probe, "pcie_facts", partial(probe.pcie_facts, sys_root=tmp_path))
    monkeypatch.setattr(probe, "numa_facts", partial(probe.numa_facts, sys_root=tmp_path))
    memory = "MemTotal: 1000 kB\nMemAvailable: 900 kB\n"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(memory)
    (tmp_path / "sys/devices/system/node/node0").mkdir(parents=True)
    monkeypatch.setattr(probe, "host_facts", partial(probe.host_facts, tmp_path))


@pytest.mark.usefixtures("gpu")
def test_a_command_on_the_machine_finds_out_what_is_said_to_be_found_there() -> None:
    assert set(probe.machine_facts("command")) == PROBED
    promised = {fact.name for fact in FACTS.values() if "run this on the machine" in how_to_know(fact)}
    assert promised == PROBED


def test_every_profile_gives_what_is_said_to_come_with_hardware() -> None:
    given = [set(probe.hardware_facts(load_hardware(name))) for name in hardware_names()]
    assert set.intersection(*given) == PROFILED
    assert {fact.name for fact in MACHINE if "--hardware" in how_to_know(fact)} == PROFILED


def test_a_result_of_apply_gives_what_is_said_to_come_with_it() -> None:
    named = [fact.name for fact in FACTS.values() if "--from" in how_to_know(fact)]
    result = {**APPLIED, "numa": "node 1: 12 threads on 4 CPUs, pinned pages on the node"}
    assert named == ["numa_local"]
    assert set(named) <= set(facts_of_result(result))


@cache
def _planned() -> tuple[FactSheet, FactSheet]:
    """Facts of a model where it fits, and on a device of the same kind that is a little too small."""
    request, hardware = ModelRequest("builtin:llama-tiny", batch=64, layers=1), load_hardware("h100-pcie5")
    roomy = gather_facts(request, hardware=hardware).sheet
    peak_bytes = roomy.size("peak_bytes")
    assert peak_bytes is not None
    return roomy, gather_facts(request, hardware=hardware.with_device_memory(peak_bytes * 9 // 10)).sheet


@pytest.mark.parametrize("fact", MODEL, ids=lambda fact: fact.name)
def test_a_model_on_hardware_gives_what_is_said_to_come_with_both(fact: object) -> None:
    from offload_runtime.facts import Fact

    assert isinstance(fact, Fact)
    way = how_to_know(fact)
    assert way.startswith("give --model and --hardware")
    roomy, tight = _planned()
    assert (tight if "does not fit" in way else roomy).get(fact.name) is not None


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("link_is_coherent", "look it up in the machine's data sheet, then --fact link_is_coherent=false"),
        ("nvme_read_gbps", "measure it with fio, then --fact nvme_read_gbps=6.0"),
        ("ranks_per_node", "--fact ranks_per_node=8"),
        ("host_total_bytes", "run this on the machine, or --fact host_total_bytes=1TiB"),
        (
            "pcie_generation",
            "run this on the machine while it trains (an idle link goes down), or --fact pcie_generation=5",
        ),
        ("pipeline_parallel", "--fact pipeline_parallel=1"),
        ("gpu_utilization", "measure it, then --fact gpu_utilization=0.4"),
    ],
)
def test_what_nothing_here_finds_out_is_to_be_given(name: str, way: str) -> None:
    assert how_to_know(FACTS[name]) == way


def test_where_a_rank_runs_is_said_by_its_own_affinity_whatever_offloads() -> None:
    way = how_to_know(FACTS["numa_local"])
    assert way.startswith("compare `taskset -cp PID` of each rank")
    assert "`taskset -cp PID` of each rank" in MEASURING.read_text("utf-8")


ASKED_BY_THE_DIAGNOSIS = {name for check in CHECKS for name in check.facts}
MEASURED = {fact.name for fact in FACTS.values() if "measure it" in how_to_know(fact)}


@pytest.mark.parametrize("name", sorted(MEASURED | ASKED_BY_THE_DIAGNOSIS))
def test_the_page_on_measuring_says_which_fact_each_measurement_gives(name: str) -> None:
    assert f"`--fact {name}=`" in MEASURING.read_text("utf-8")


def test_the_page_on_measuring_names_only_facts() -> None:
    assert set(re.findall(r"--fact ([a-z_]+)=", MEASURING.read_text("utf-8"))) <= set(FACTS)


@pytest.mark.parametrize(
    ("events", "shares"),
    [
        ([], (0.0, 0.0, 0.0)),
        # Both directions at once for 40 of 100 us, under a kernel for half of that.
        (
            [
                ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 40, 300),
                ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 0, 40, 100),
                ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 50, 20, 500),
                ("kernel", "gemm", 20, 60, 0),
            ],
            (0.4, 0.2, 0.25),
        ),
        # Copies of both directions through all of the step: a sum of the rows would be 2.
        (
            [
                ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 100, 1),
                ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 0, 100, 1),
            ],
            (1.0, 1.0, 0.0),
        ),
    ],
    ids=["no copies", "half under a kernel", "both directions"],
)
def test_the_shares_of_copies_are_what_the_page_on_measuring_computes(
    tmp_path: Path, events: list[tuple[str, str, int, int, int]], shares: tuple[float, float, float]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", MEASURING.read_text("utf-8"), re.DOTALL)
    (source,) = [block for block in blocks if "def copy_shares" in block]
    names: dict[str, Any] = {}
    exec(source, names)
    trace = [
        {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"bytes": num_bytes}}
        for cat, name, ts, dur, num_bytes in events
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"name": "process_name", "ph": "M"}, *trace]}))
    assert names["copy_shares"](path, 100e-6) == pytest.approx(shares)
