"""What an exception out of a training step means."""

from __future__ import annotations

import torch

from offload_runtime.errors import Diagnostic, RefusedError, RunError
from offload_runtime.models.failures import explain_failure, is_out_of_memory


def chained(outer: Exception, inner: Exception) -> Exception:
    """Return ``outer`` as it is when it was raised from ``inner``."""
    outer.__cause__ = inner
    return outer


def test_memory_that_ran_out_is_found_behind_other_errors() -> None:
    memory = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(memory)
    assert is_out_of_memory(chained(RuntimeError("compiling failed"), memory))
    assert not is_out_of_memory(RuntimeError("CUDA out of memory, somebody wrote"))


def test_a_chain_that_bites_its_own_tail_ends() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    chained(one, two), chained(two, one)
    assert not is_out_of_memory(one)


def test_our_own_error_is_raised_as_it_is() -> None:
    own = RefusedError(Diagnostic("PLN401", "error", "a must rule cannot hold"))
    assert explain_failure(chained(RuntimeError("wrapped"), own), "side") is own


def test_what_torch_cannot_trace_is_refused_and_anything_else_failed() -> None:
    untraced = explain_failure(torch._dynamo.exc.Unsupported("a generator"), "side one on model")
    assert isinstance(untraced, RefusedError)
    assert untraced.diagnostics[0].message.startswith(
        "side one on model cannot be traced by torch.compile: Unsupported: a generator"
    )
    failed = explain_failure(ValueError("a\n  long\n  story " + "x" * 1000), "side one on model")
    assert isinstance(failed, RunError)
    assert failed.diagnostics[0].message.startswith("side one on model failed: ValueError: a long story x")
    assert len(failed.diagnostics[0].message) < 500


def test_an_exception_whose_own_text_raises_is_named_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    (finding,) = explain_failure(Mute(), "the step").diagnostics
    assert finding.code == "MOD733"
    assert "Mute" in finding.message
