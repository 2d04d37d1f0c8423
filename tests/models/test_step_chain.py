"""Several graphs as one step: order, times, what others hold."""

from __future__ import annotations

import pytest

from offload_runtime.models.step_chain import ChainLink, KernelPlace, chain_steps, place_of_kernel
from offload_runtime.planning import place, simulate
from offload_runtime.step import Item, Kernel, LinkRates, Region, StepTrace

LINK = LinkRates(d2h_bytes_per_ms=100.0, h2d_bytes_per_ms=100.0)


def link(name: str, *, offload: bool = False, resident_bytes: int = 1000) -> ChainLink:
    """Return a step of two forward and two backward kernels, with one saved tensor and one gradient."""
    kernels = tuple(Kernel(f"{name}{i}", 1.0 + i, layer=i % 2) for i in range(4))
    item = Item(
        name=f"{name}-saved",
        num_bytes=50,
        moved_bytes=50,
        created=0,
        ready=0,
        last_forward_use=0,
        first_backward_use=3,
        last_backward_use=3,
        fates=frozenset({"save", "offload"}),
    )
    regions = (Region(f"{name}-grad", 7, 2, 3, is_gradient=True), Region(f"{name}-temporary", 500, 1, 1))
    trace = StepTrace(kernels, 2, resident_bytes, regions, (item,))
    fates = ("offload" if offload else "save",)
    moves = place(trace, fates, LINK, None)
    return ChainLink(trace, fates, simulate(trace, fates, moves, LINK))


def test_one_graph_is_its_own_step() -> None:
    only = link("a")
    assert chain_steps([only], resident_bytes=5) == (only.trace, only.simulation)
    with pytest.raises(ValueError, match="at least one graph"):
        chain_steps([], resident_bytes=0)


def test_forward_runs_in_order_and_backward_in_reverse() -> None:
    trace, run = chain_steps([link("a"), link("b")], resident_bytes=1000)
    assert [kernel.name for kernel in trace.kernels] == ["a0", "a1", "b0", "b1", "b2", "b3", "a2", "a3"]
    assert trace.num_forward == 4
    assert run.starts_ms == (0, 1, 3, 4, 6, 9, 13, 16)
    assert run.step_ms == 20


def test_what_other_graphs_hold_is_counted() -> None:
    _, run = chain_steps([link("a"), link("b")], resident_bytes=1000)
    saved, grad, temporary = 50, 7, 500
    assert run.device_bytes == (
        1000 + saved,
        1000 + saved + temporary,
        1000 + 2 * saved,
        1000 + 2 * saved + temporary,
        1000 + 2 * saved + grad,  # backward of b: what a saved is still there
        1000 + 2 * saved + grad,
        1000 + saved + 2 * grad,  # backward of a: the gradients of b stay
        1000 + saved + 2 * grad,
    )


def test_inputs_that_one_graph_hands_to_the_next_are_counted_once() -> None:
    _, run = chain_steps([link("a"), link("b", resident_bytes=1300)], resident_bytes=1000)
    assert run.device_bytes[2] == 1000 + 2 * 50


def test_an_offloaded_tensor_is_gone_from_the_device_while_later_graphs_run() -> None:
    first = link("a", offload=True)
    _, run = chain_steps([first, link("b")], resident_bytes=1000)
    assert first.kept_sizes == ()
    assert run.device_bytes[2] == 1000 + 50
    assert run.host_bytes[2:6] == (50,) * 4
    down, up = run.copies
    assert (down.direction, up.direction) == ("d2h", "h2d")
    assert down.end_ms <= 3
    assert up.start_ms >= 13 - 0.5 - 1e-9  # no earlier than the backward of its own graph


def test_places_are_found_again_in_their_graphs() -> None:
    links = [link("a"), link("b")]
    trace, _ = chain_steps(links, resident_bytes=1000)
    for number, kernel in enumerate(trace.kernels):
        place = place_of_kernel(links, number)
        assert links[place.graph].trace.kernels[place.kernel] == kernel
    assert place_of_kernel(links, 7) == KernelPlace(0, 3)
    with pytest.raises(IndexError):
        place_of_kernel(links, 8)


def test_items_and_regions_keep_their_kernels() -> None:
    links = [link("a"), link("b")]
    trace, _ = chain_steps(links, resident_bytes=1000)
    assert [(item.created, item.first_backward_use) for item in trace.items] == [(0, 7), (2, 5)]
    gradients = [region for region in trace.regions if region.name.endswith("grad")]
    assert [(region.name, region.first, region.last) for region in gradients] == [
        ("a-grad", 6, 7),
        ("b-grad", 4, 7),  # what outlives its graph lasts to the end of the step
    ]
