"""The arithmetic that `plan --why` prints keeps to the limits of its plan."""

from __future__ import annotations

import pytest

from offload_runtime.errors import RefusedError
from offload_runtime.models.plan_arithmetic import arithmetic_of
from offload_runtime.models.planning import plan_policy
from tests.models.planned_runs import baseline, policy


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_arithmetic_is_judged_by_the_limit_of_the_plan(share: float) -> None:
    found = baseline(mode="inductor")
    peak, floor = found.forecast.peak_device_bytes, found.resident.throughout
    limits = {"device_peak": f"{int(floor + share * (peak - floor))}B"}
    asked = policy(select="planned", action="auto", keep_last=0, limits=limits)
    try:
        plan_policy(found, asked)
        refused = None
    except RefusedError as error:
        refused = error
    arithmetic = arithmetic_of(found, asked, refusal=refused)
    assert arithmetic is not None
    assert arithmetic.limit_bytes == int(limits["device_peak"][:-1])
    kinds = {measure.kind for measure in (arithmetic.choice.measures if arithmetic.choice else ())}
    assert (refused is not None, not arithmetic.needed_bytes) == (share == 0, share == 1)
    # What no plan keeps to, activations do not cure, and here there is no state to speak of.
    assert bool(kinds) == (share == 0.5)
    assert kinds <= {"activations", "recompute"}
