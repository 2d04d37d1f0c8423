"""Aliases and layout: cases 7 to 16."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.cases.training import (
    Run,
    assert_bitwise,
    assert_exact,
    compiled,
    host_bytes,
    offload_everything,
    on_own_engine,
    policy_of,
    train,
    values_of,
    verdict_of,
)


def batches(*shape: int) -> list[Tensor]:
    """Return three batches."""
    return [torch.randn(shape or (8, 16), generator=torch.Generator().manual_seed(i)) for i in range(3)]


class Around(nn.Module):
    """Call a function between a linear layer and a nonlinearity, so that what it reads and returns is saved."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Linear(16, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x))


def exact(function: Callable[[Tensor], Tensor], *, width: int = 16, rows: int = 8) -> Run:
    """Offload everything around ``function`` for three steps; bitwise like saving and like no policy."""
    run = assert_exact(lambda: Around(function, width), offload_everything(), batches(rows, 16))
    assert run.offloaded
    return run


def test_case_07_a_square_value_and_its_transpose_are_saved_in_one_region() -> None:
    run = exact(lambda h: (h @ h.t()).sin() + h.t().sin() @ h.cos(), rows=16)
    assert run.report.planned_bytes < 2 * 16 * 16 * 4 * len(run.offloaded)
    assert verdict_of(run, "aten.addmm.default").moved_bytes == 16 * 16 * 4


class Attention(nn.Module):
    """Linear, reshape, transpose, product: what is saved are views of the linear's output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        pages = self.inner(x).reshape(2, 4, 16)
        return pages.transpose(1, 2) @ pages


def test_case_08_views_of_an_offloaded_linear_are_replayed_and_counted() -> None:
    policy = policy_of({"name": "linear", "match": {"op": "aten.addmm.default"}, "action": "offload"})
    run = assert_exact(Attention, policy, batches())
    verdict = verdict_of(run, "aten.addmm.default")
    assert verdict.fate == "offload"
    assert verdict.num_views == 2
    assert verdict.reason == "offloaded; 2 views replayed"
    assert run.host_bytes == 0


def test_case_09_a_view_is_saved_and_its_base_is_not() -> None:
    run = exact(lambda h: h.t().sin())
    assert verdict_of(run, "aten.addmm.default").fate == "offload"


PIECES: dict[str, Callable[[Tensor], Tensor]] = {
    "split": lambda h: (lambda a, b: a.sin().sum(1) + b.cos().exp().sum(1))(*h.split(8, dim=1)),
    "unbind": lambda h: (lambda a, *rest: a.sin() + torch.stack(rest).tanh().sum(0))(*h.unbind(1)),
    "chunk": lambda h: (lambda a, b, *_: (a.sin() @ b.t()).exp())(*h.chunk(4, dim=1)),
    "topk": lambda h: (lambda v, i: v.sin().sum(1) + h.gather(1, i).tanh().sum(1))(*h.topk(3, dim=1)),
    "sort": lambda h: (lambda v, i: v.sin() + h.exp().gather(1, i))(*h.sort(dim=1)),
    "max": lambda h: (lambda v, i: v.sin() + h.cos().gather(1, i[:, None])[:, 0])(*h.max(dim=1)),
    "equal calls, a piece of each": lambda h: (
        h.split([2, 14], dim=1)[0].sin().sum(1) + h.split([2, 14], dim=1)[1].cos().sum(1)
    ),
    "late sibling": lambda h: (lambda a, b: (a.sin().cos().tanh().exp() * b.sigmoid()) + b)(
        *h.split(8, dim=1)
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_case_10_pieces_of_a_tensor_are_saved_apart(name: str) -> None:
    exact(lambda h: PIECES[name](h.sin()))


def test_case_11_an_expanded_value_takes_no_more_host_memory_than_its_storage() -> None:
    def expand(h: Tensor) -> Tensor:
        column = h[:, :1].sin()
        return (column.expand(8, 16) * h).tanh()

    run = exact(expand)
    for verdict in run.offloaded:
        assert verdict.moved_bytes <= verdict.activation.num_bytes


SLICES: dict[str, Callable[[Tensor], Tensor]] = {
    "one row": lambda h: h[:1].sin(),
    "two rows": lambda h: h[:1].sin() + h[5:6].cos(),
    "a view of a row": lambda h: h[7].view(32, 32).t().sin(),
    "a piece": lambda h: h.chunk(4)[1].sin(),
    "a row, and all of it": lambda h: h[:1].sin() + h.cos(),
}


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("one row", 4096),
        ("two rows", 2 * 4096),
        ("a view of a row", 4096),
        ("a piece", 1024 * 1024),
        ("a row, and all of it", 4 * 1024 * 1024),
    ],
)
def test_case_11_a_small_slice_does_not_drag_its_storage_along(name: str, num_bytes: int) -> None:
    """A 4 KiB slice of a 4 MiB storage is saved: 4 KiB travel, once, and the report says so."""
    build = lambda: Around(SLICES[name], 1024)  # noqa: E731  # built anew for every run
    run = assert_exact(build, offload_everything(), batches(1024, 16))
    verdict = verdict_of(run, "aten.addmm.default")
    assert verdict.fate == "offload"
    assert verdict.activation.num_bytes == 4 * 1024 * 1024
    assert verdict.moved_bytes == run.report.planned_bytes == num_bytes


def test_case_11_strided_slices_that_drag_their_storage_along_say_what_they_read_of_it() -> None:
    """Every 64th column of 1 MiB is saved, and keeps all of it alive: the whole counts, the whole travels."""
    columns = lambda h: h[:, ::64].sin()  # noqa: E731  # one of the ways to be inside of `Around`
    run = assert_exact(lambda: Around(columns, 512), offload_everything(), batches(512, 16))
    verdict = verdict_of(run, "aten.addmm.default")
    assert verdict.moved_bytes == verdict.activation.num_bytes == run.report.planned_bytes == 1024 * 1024
    assert "1 view replayed, which read 16 KiB of the 1 MiB that move" in verdict.reason


class Projections(nn.Module):
    """q, k and v are projected from one input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 16)
        self.projections = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).sin()
        q, k, v = (projection(h) for projection in self.projections)
        return torch.nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])


def test_case_12_the_input_of_three_projections_moves_once() -> None:
    policy = policy_of({"name": "input", "match": {"op": "aten.sin.default"}, "action": "offload"})
    run = assert_exact(Projections, policy, batches())
    (verdict,) = run.offloaded
    assert verdict.activation.op == "aten.sin.default"
    assert run.report.moved_bytes == 8 * 16 * 4


class Skips(nn.Module):
    """Outputs of the way down are read again on the way up, the first one last."""

    def __init__(self) -> None:
        super().__init__()
        self.down_blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.up_blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 16), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down_blocks:
            x = block(x)
            skips.append(x)
        for block in self.up_blocks:
            x = block(torch.cat([x, skips.pop()], 1))
        return x


@pytest.mark.parametrize("defer", [0, 1])
def test_case_13_a_skip_connection_is_read_layers_after_it_was_copied(defer: int) -> None:
    run = assert_exact(Skips, offload_everything(schedule={"defer": defer}), batches())
    assert {verdict.activation.layer for verdict in run.offloaded} >= {0, 1, 2, 3, 4}


def test_case_14_an_activation_that_is_also_returned_stays() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.inner(x)
            return self.outer(hidden.sin()).cos(), hidden

    run = assert_exact(Returns, offload_everything(), batches())
    verdict = verdict_of(run, "aten.addmm.default", "inner")
    assert verdict.fate == "save"
    assert "returned to the caller" in verdict.reason
    assert verdict_of(run, "aten.sin.default").fate == "offload"


def _index_put(h: Tensor) -> Tensor:
    fresh = torch.zeros_like(h)
    fresh.index_put_((torch.tensor([1, 3]),), h[:2].sin())
    return fresh.exp() * h


def _copy_into(h: Tensor) -> Tensor:
    fresh = torch.empty_like(h)
    fresh.copy_(h.cos())
    return fresh.tanh() * fresh


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_": lambda h: h.relu_().sin(),
    "add_ after save": lambda h: (lambda s: s * h.add_(1.0).tanh())(h.sum(1, keepdim=True)),
    "copy_ into a fresh buffer": _copy_into,
    "index_put_ into a fresh buffer": _index_put,
}


@pytest.mark.parametrize("name", WRITES)
def test_case_15_in_place_writes_are_copied_after_the_last_one(name: str) -> None:
    exact(WRITES[name])


def _overwrites_what_was_saved(x: Tensor) -> Tensor:
    h = x * 1.0
    kept = h.sin()
    h.add_(1.0)
    return kept


def test_case_15_a_saved_tensor_that_is_overwritten_outside_raises_as_plain_autograd_does() -> None:
    """What the compiled region saved is its caller's to overwrite; the check by version stays."""
    messages = []
    with on_own_engine():
        for function in (torch.exp, compiled(lambda x: torch.exp(x), offload_everything())):
            y = function(torch.randn(4, requires_grad=True))
            y.add_(1.0)
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
                y.sum().backward()
            messages.append(str(error.value).partition(":")[0])
    assert messages[0] == messages[1]


def test_case_15_what_plain_autograd_refuses_inside_the_region_is_refused() -> None:
    with on_own_engine():
        x = torch.randn(4, requires_grad=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _overwrites_what_was_saved(x).sum().backward()
        run = compiled(_overwrites_what_was_saved, offload_everything())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(x).sum().backward()


class Weights(nn.Module):
    """Reads weights as they are, cast, transposed and tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.inner = nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids).sin()
        h = h @ self.inner.weight.to(torch.float64).to(torch.float32).t()
        return h.tanh() @ self.embed.weight.t()


def test_case_16_weights_their_views_and_casts_are_no_activations() -> None:
    ids = [torch.randint(16, (8,), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    run = assert_exact(Weights, offload_everything(), [(one,) for one in ids])
    skipped = [verdict for verdict in run.report.tensors if verdict.fate == "skip"]
    assert any(verdict.reason.startswith("parameter") for verdict in skipped)
    assert {verdict.activation.op for verdict in run.offloaded} == {
        "aten.embedding.default",
        "aten.sin.default",
        "aten.tanh.default",
    }
    weights = {"aten.t.default", "aten.permute.default", "aten._to_copy.default", "aten.to.dtype"}
    assert not [verdict for verdict in run.offloaded if verdict.activation.op in weights]


def test_host_memory_is_held_from_forward_to_backward_and_no_longer() -> None:
    """Without this, ``host_bytes == 0`` after a run would prove nothing."""
    with on_own_engine() as engine:
        torch.manual_seed(0)
        model = Attention()
        loss = compiled(model, offload_everything())(batches()[0]).sum()
        assert host_bytes(engine) > 0
        loss.backward()
        assert host_bytes(engine) == 0
        assert_bitwise([values_of(model, loss)], [values_of(model, loss)])
    assert train(Attention, offload_everything(), batches()).host_bytes == 0
