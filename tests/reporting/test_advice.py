"""What is said of facts that stayed unknown though a model and hardware were given."""

from __future__ import annotations

import pytest

from offload_runtime.advice import advise
from offload_runtime.fact_sheet import FactSheet, FactsResult
from offload_runtime.predicates import Scalar
from offload_runtime.reporting.advice import advice_data


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"traceable": False}, "the model could not be traced; --fact peak_bytes="),
        ({"world_size": 8}, "what the ranks share is not said"),
        ({"zero_stage": 3, "data_parallel": 8}, "this run shares its state; --fact peak_bytes="),
        ({}, "planning the model on this hardware did not settle it; --fact peak_bytes="),
    ],
    ids=str,
)
def test_a_fact_that_planning_left_unknown_has_the_reason(facts: dict[str, Scalar], reason: str) -> None:
    result = FactsResult(FactSheet().with_facts(facts, "given"))
    planned = advice_data(advise(result), (), result, is_planned=True)["missing"]["peak_bytes"]
    assert reason in planned
    assert "--model" not in planned
    assert "give --model and --hardware" in advice_data(advise(result), (), result)["missing"]["peak_bytes"]


def test_a_fact_of_the_machine_that_the_profile_lacks_does_not_ask_for_the_profile_again() -> None:
    result = FactsResult(FactSheet().with_facts({"offload_enabled": True, "slowdown": 3.0}, "given"))
    missing = advice_data(advise(result), (), result, is_planned=True)["missing"]
    assert (
        missing["pcie_link_width"]
        == "run this on the machine without --hardware, or --fact pcie_link_width=16"
    )
    assert missing["numa_local"].endswith("then --fact numa_local=true (or false)")
    assert "--hardware" not in missing["numa_local"]
