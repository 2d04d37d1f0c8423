"""Spans: the bytes of a tensor, whatever its dtype, strides and offset."""

from __future__ import annotations

import pytest
import torch

from offload_runtime.runtime.spans import byte_span, covered_bytes, span_bytes, without_lazy_bits

SPANS = {
    "contiguous": (torch.zeros(3, 4), 48),
    "permuted": (torch.zeros(3, 4).t(), 48),
    "offset slice": (torch.zeros(10, 4)[3:5], 32),
    "every second row": (torch.zeros(5, 4)[::2], 4 * (4 * 4 + 4)),
    "expanded": (torch.zeros(1, 4).expand(1000, 4), 16),
    "scalar": (torch.zeros(()), 4),
    "empty": (torch.zeros(0, 4), 0),
    "bool": (torch.zeros(7, dtype=torch.bool), 7),
    "complex": (torch.zeros(3, dtype=torch.complex128), 48),
}


@pytest.mark.parametrize("name", SPANS)
def test_a_span_runs_from_the_first_to_the_last_element(name: str) -> None:
    tensor, num_bytes = SPANS[name]
    assert span_bytes(tensor) == num_bytes
    span = byte_span(tensor)
    assert (span.dtype, span.numel()) == (torch.uint8, num_bytes)
    if num_bytes:
        assert span.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("name", [name for name in SPANS if name != "empty"])
def test_covering_fill_reaches_every_element(name: str) -> None:
    tensor = SPANS[name][0].clone(memory_format=torch.preserve_format)
    covered_bytes(tensor).fill_(0xFF)
    assert bool((tensor.contiguous().view(-1).view(torch.uint8) == 0xFF).all())


def test_covering_fill_leaves_the_gaps_alone() -> None:
    base = torch.zeros(5, 4)
    covered_bytes(base[::2]).fill_(0xFF)
    assert bool(base[::2].isnan().all())
    assert bool((base[1::2] == 0).all())


def test_lazy_conjugation_and_negation_are_carried_out() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(without_lazy_bits(z.conj()).view(torch.float32), torch.tensor([1.0, -2, 3, 4]))
    assert without_lazy_bits(z.conj().imag).is_neg() is False
    assert without_lazy_bits(z) is z
