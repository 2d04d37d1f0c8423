"""What a report says of itself in a few lines."""

from __future__ import annotations

from dataclasses import replace

from offload_runtime.errors import Diagnostic
from offload_runtime.offload_plan import Forecast, PeakPlace
from tests.reporting.records import KIB, graph_report, report, verdict

FORECAST = Forecast(
    hardware="h200-pcie5",
    step_ms=701.239,
    peak_bytes=43 * 2**30,
    peak_at=PeakPlace("mm_7", 31, "backward"),
    resident_bytes=15 * 2**30,
    host_bytes=10 * 2**30,
    stall_ms=4.5,
    hidden_fraction=0.99,
    window_bytes=20 * 2**30,
)
ONE = graph_report(verdict("mm", "offload", "heavy", 0, 8 * KIB), verdict("mm_1"))
NOTE = Diagnostic("PLN403", "note", "nothing is offloaded", hint="this is as it should be")
WARNING = Diagnostic("POL183", "warning", "rule 'a' decides nothing", file="p.yaml", line=3, column=5)


def test_without_hardware_and_findings_two_lines_say_what_was_decided_and_moved() -> None:
    assert str(report(ONE)).splitlines() == [
        "policy small (graph, cpu, simulated engine): 1 of 2 activations offloaded in 1 graph",
        "planned 8 KiB, moved 8 KiB, reloaded 8 KiB a step; host memory 8 KiB, of which 0 B unused",
    ]


def test_what_was_measured_and_predicted_has_a_line_each() -> None:
    measured = replace(report(replace(ONE, forecast=FORECAST)), hidden_fraction=0.985, stall_ms=7.0)
    assert str(measured).splitlines()[2:] == [
        "98.5 % of transfer time hidden, 7.00 ms stalled",
        "predicted on h200-pcie5: forward and backward 701.24 ms, of which 4.50 ms stalled; "
        "peak 43 GiB in backward, layer 31, at mm_7",
    ]


def test_several_graphs_are_predicted_one_by_one() -> None:
    graphs = (
        replace(ONE, forecast=FORECAST),
        replace(ONE, graph=1, forecast=FORECAST),
        replace(ONE, graph=2),
    )
    lines = str(report(*graphs)).splitlines()[2:]
    assert [line.partition(" on ")[0] for line in lines] == ["predicted of graph 0", "predicted of graph 1"]


def test_findings_of_the_model_and_of_its_graphs_are_listed_once() -> None:
    found = replace(
        report(replace(ONE, diagnostics=(NOTE,)), replace(ONE, graph=1, diagnostics=(NOTE,))),
        diagnostics=(WARNING,),
    )
    assert str(found).splitlines()[2:] == [
        "p.yaml:3:5: POL183 warning: rule 'a' decides nothing",
        "PLN403 note: nothing is offloaded (this is as it should be)",
    ]
