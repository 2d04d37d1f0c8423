from __future__ import annotations

from pathlib import Path

import pytest

import offload_runtime as off
from offload_runtime.passes.refusal import refuse_infeasible
from offload_runtime.planning.limits import Holder, Infeasible
from offload_runtime.policy import Limits
from offload_runtime.step import Kernel, Region, StepTrace
from offload_runtime.units import parse_size

GIB = 2**30
KERNELS = (Kernel("mm", 1.0, 3), Kernel("loss", 1.0), Kernel("mm_1", 1.0, 3))
TRACE = StepTrace(
    KERNELS, 2, 0, (Region("mm_2", GIB, 2, 2, is_gradient=True), Region("mm_3", GIB, 2, 2, is_gradient=True))
)
WORDS = {
    "mm": "saved aten.mm.default in layers.3.up",
    "loss": "aten.mean.default in the root module",
    "mm_1": "aten.mm.default in layers.3.down",
    "logits": "saved aten.mm.default in head",
}
HOLDERS = (
    Holder("resident", 5 * GIB),
    Holder("logits", 3 * GIB),
    Holder("workspace of mm_1", GIB),
    Holder("mm_2", GIB // 2),
    Holder("mm_3", GIB // 2),
    Holder("unseen", 1),
)
POLICY = """\
apiVersion: offload/v1
kind: Policy
name: tight
limits:
  device_peak: 8GiB
  step_overhead: 5%
schedule: {select: planned}
activations: {default: auto}
"""


def refusal(
    tmp_path: Path, limits: Limits, kernel: int = 2, floor_ms: float | None = None, text: str = POLICY
) -> tuple[str, str | None, int | None]:
    """Return message, path and line of the finding."""
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    error = Infeasible(10 * GIB, kernel, HOLDERS, floor_ms)
    (diagnostic,) = refuse_infeasible(off.load_policy(file), limits, TRACE, error, WORDS).diagnostics
    assert diagnostic.code == "PLN412"
    assert diagnostic.hint is not None
    return diagnostic.message, diagnostic.path, diagnostic.line


def test_a_floor_is_named_with_its_place_and_what_holds_it(tmp_path: Path) -> None:
    assert refusal(tmp_path, Limits(device_peak=8 * GIB)) == (
        "no plan keeps to device_peak 8 GiB: the floor is 10 GiB, in backward, layer 3 at aten.mm.default in "
        "layers.3.down, held by what stays throughout 5 GiB, saved aten.mm.default in head 3 GiB, workspace of "
        "aten.mm.default in layers.3.down 1 GiB, gradients 1 GiB",
        "limits.device_peak",
        5,
    )


def test_the_parts_of_a_floor_add_up(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    many = tuple(Holder(f"mm_{number}", GIB // 4) for number in range(8))
    refused = refuse_infeasible(
        off.load_policy(file),
        Limits(device_peak=GIB),
        TRACE,
        Infeasible(7 * GIB, 2, (Holder("resident", 5 * GIB), *many)),
        WORDS,
    )
    _, _, held = refused.diagnostics[0].message.partition("held by what stays throughout 5 GiB, ")
    # mm_2 and mm_3 are gradients; of the others the largest are named.
    assert (
        held
        == "gradients 512 MiB, mm_0 256 MiB, aten.mm.default in layers.3.down 256 MiB, smaller ones 1 GiB"
    )


@pytest.mark.parametrize(
    ("floor", "limit"), [(10 * GIB, "10240MiB"), (10 * GIB + 1, "10241MiB"), (1, "1MiB")]
)
def test_the_hint_has_the_least_limit_as_a_policy_takes_it(tmp_path: Path, floor: int, limit: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    refused = refuse_infeasible(
        off.load_policy(file), Limits(device_peak=GIB), TRACE, Infeasible(floor, 2, HOLDERS), WORDS
    )
    assert (refused.diagnostics[0].hint or "").startswith(f"set device_peak to {limit} or more, ")
    assert parse_size(limit) >= floor


@pytest.mark.parametrize(
    ("kernel", "place"),
    [
        (0, "in forward, layer 3 at aten.mm.default in layers.3.up,"),
        (1, "in forward at aten.mean.default in the root module,"),
        (2, "in backward, layer 3 at aten.mm.default in layers.3.down,"),
    ],
)
def test_the_place_is_an_operator_its_module_and_layer_and_its_side(
    tmp_path: Path, kernel: int, place: str
) -> None:
    assert place in refusal(tmp_path, Limits(device_peak=8 * GIB), kernel)[0]


def test_both_floors_are_named_where_two_limits_meet(tmp_path: Path) -> None:
    message, path, line = refusal(tmp_path, Limits(device_peak=8 * GIB, step_overhead=0.05), floor_ms=123.4)
    assert message.startswith(
        "no plan keeps to device_peak 8 GiB and step_overhead 5.0%: within that time the floor is 10 GiB, in backward"
    )
    assert message.endswith("; under that peak forward and backward take at least 123.4 ms")
    assert (path, line) == ("limits.device_peak", 5)


def test_a_step_time_alone_has_a_floor_in_time(tmp_path: Path) -> None:
    found = refusal(tmp_path, Limits(step_overhead=0.05), floor_ms=123.4)
    assert found == (
        "no plan keeps to step_overhead 5.0%: forward and backward take at least 123.4 ms",
        "limits.step_overhead",
        6,
    )


def test_what_has_to_leave_may_be_more_than_budget_or_host_allow(tmp_path: Path) -> None:
    message = "no plan keeps to budget 1 GiB: what has to be offloaded takes more"
    assert refusal(tmp_path, Limits(budget=GIB))[:2] == (message, "limits.budget")
    message = "no plan keeps to host 1 GiB: what has to be offloaded takes more"
    assert refusal(tmp_path, Limits(host=GIB))[:2] == (message, "limits.host")


def test_a_host_limit_is_named_where_the_policy_has_one(tmp_path: Path) -> None:
    limits = Limits(device_peak=8 * GIB, host=GIB)
    assert "host" not in refusal(tmp_path, limits)[0]
    text = POLICY.replace("  step_overhead: 5%", "  host: 1GiB")
    assert "device_peak 8 GiB and host 1 GiB: the floor" in refusal(tmp_path, limits, text=text)[0]
    assert (
        "device_peak 8 GiB and budget 0 B: the floor"
        in refusal(tmp_path, Limits(device_peak=8 * GIB, budget=0))[0]
    )
