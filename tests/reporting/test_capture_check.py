from __future__ import annotations

from offload_runtime.models.capture_check import CaptureCheck, CaptureDifference
from offload_runtime.reporting.capture_check import render_capture_check


def test_agreement_is_one_line() -> None:
    text = render_capture_check(CaptureCheck(18, 18))
    assert "the same 18 tensors" in text
    assert "\n" not in text


def test_a_difference_is_a_row_with_both_numbers() -> None:
    difference = CaptureDifference("layers.1", "aten.add.Tensor", 2**20, None, 0, 1)
    check = CaptureCheck(17, 18, (difference,))
    heading, columns, row = render_capture_check(check).splitlines()
    assert heading.startswith("capture check: 17 tensors in the compiled graphs, 18 in the whole step")
    assert columns.split() == ["module", "operator", "bytes", "compiled", "step"]
    assert row.split() == ["layers.1", "aten.add.Tensor", "1", "MiB", "0", "1"]
    assert not check.agrees


def test_a_step_that_was_not_captured_says_why_and_does_not_agree() -> None:
    check = CaptureCheck(0, 0, reason="the step of net failed")
    assert render_capture_check(check) == "capture check: not made: the step of net failed"
    assert not check.agrees
    assert check.to_data()["reason"] == "the step of net failed"
