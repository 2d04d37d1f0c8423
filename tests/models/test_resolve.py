"""A model specification resolves to a model that trains, or to a refusal with thing, reason and cure."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from offload_runtime.errors import OffloadError, RefusedError, UsageError
from offload_runtime.models.construction import construct
from offload_runtime.models.resolve import ModelRequest, resolve_model
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.runtime.host_memory import HostMemory

SMALL_MODELS = ("llama-tiny", "moe-tiny", "unet-tiny")


def trained(model: ModelUnderTest, steps: int) -> list[float]:
    optimizer = model.make_optimizer()
    losses = []
    for step in range(steps):
        loss = model.loss(model.module(*model.make_batch(step)))
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_a_small_model_learns_within_twenty_steps(name: str) -> None:
    losses = trained(resolve_model(f"builtin:{name}"), 20)
    assert sum(losses[-3:]) / 3 < 0.75 * losses[0]


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_equal_requests_give_equal_weights_and_data(name: str) -> None:
    first, second = (resolve_model(f"builtin:{name}", seed=7) for _ in range(2))
    for ours, theirs in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(first.make_batch(3), second.make_batch(3), strict=True):
        assert torch.equal(ours, theirs)


def test_adapters_start_as_nothing_and_the_base_stays_as_it_is() -> None:
    model = resolve_model("builtin:llama-tiny-lora", layers=2, seq=32)
    projection = model.module.layers[0].attention.wq
    x = torch.randn(3, 128)
    assert torch.equal(projection(x), torch.nn.functional.linear(x, projection.weight))
    before = {name: p.clone() for name, p in model.module.named_parameters()}
    losses = trained(model, 5)
    changed = {name for name, p in model.module.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name, p in model.module.named_parameters() if ".lora_" in name}
    assert losses[-1] < losses[0]


def test_another_seed_gives_other_weights() -> None:
    first, second = (resolve_model("builtin:llama-tiny", seed=seed) for seed in (0, 1))
    assert not torch.equal(first.module.output.weight, second.module.output.weight)


def test_building_leaves_torch_s_global_state_alone() -> None:
    before = torch.get_rng_state()
    resolve_model("builtin:llama-tiny", dtype="bfloat16")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


def test_the_options_shape_the_model() -> None:
    model = resolve_model("builtin:llama-tiny", batch=2, seq=32, layers=3, dtype="bfloat16", optimizer="sgd")
    assert model.example_args[0].shape == (2, 32)
    assert len(model.module.layers) == model.num_layers == 3
    assert {p.dtype for p in model.module.parameters()} == {torch.bfloat16}
    assert isinstance(model.make_optimizer(), torch.optim.SGD)
    assert model.loss(model.module(*model.example_args)).dtype == torch.float32


def test_the_rotary_tables_stay_in_float32_in_a_bfloat16_model() -> None:
    model = resolve_model("builtin:llama-tiny", dtype="bfloat16")
    assert model.module.rotary.cos.dtype == torch.float32


def test_optimizer_none_leaves_the_weights() -> None:
    model = resolve_model("builtin:llama-tiny", layers=1, optimizer="none")
    assert model.make_optimizer() is None


def test_attention_sees_no_later_token() -> None:
    model = resolve_model("builtin:llama-tiny", layers=2)
    tokens = model.example_args[0][:1]
    changed = tokens.clone()
    changed[0, 100] = (changed[0, 100] + 1) % 256
    ours, theirs = model.module(tokens), model.module(changed)
    assert torch.equal(ours[0, :100], theirs[0, :100])
    assert not torch.equal(ours[0, 100:], theirs[0, 100:])


def test_a_token_goes_to_the_experts_with_the_highest_scores() -> None:
    """The grouped product over sorted tokens equals a loop over tokens and their experts."""
    moe = resolve_model("builtin:moe-tiny", layers=1, dtype="bfloat16").module.layers[0].moe
    x = torch.randn(1, 12, 64, dtype=torch.bfloat16)
    scores = moe.gate(x[0]).float().softmax(-1)
    expected = torch.zeros(12, 64)
    for token in range(12):
        weights, experts = scores[token].topk(2)
        for weight, expert in zip(weights / weights.sum(), experts, strict=True):
            w1, w2, w3 = (getattr(moe.experts, name)[expert] for name in ("w1", "w2", "w3"))
            hidden = torch.nn.functional.silu(w1 @ x[0, token]) * (w3 @ x[0, token])
            expected[token] += weight * (w2 @ hidden).float()
    torch.testing.assert_close(moe(x)[0].float(), expected, rtol=0.03, atol=1e-3)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b", "dsv3-16b"])
def test_a_large_model_can_be_built_of_fake_tensors(name: str) -> None:
    with FakeTensorMode():
        model = resolve_model(f"builtin:{name}", layers=2)
        model.loss(model.module(*model.example_args)).backward()
    assert all(isinstance(p.grad, FakeTensor) for p in model.module.parameters())


def test_a_model_that_outgrows_the_host_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "offload_runtime.models.construction.read_host_memory", lambda: HostMemory(1 << 20, 1 << 20)
    )
    with pytest.raises(RefusedError, match=r"7\.63 MiB, .* 1 MiB free") as caught:
        construct(
            "some-model", lambda: torch.nn.Linear(1000, 1000, bias=False), torch.float32, torch.device("cpu")
        )
    assert caught.value.diagnostics[0].code == "MOD703"
    with pytest.raises(RefusedError, match=r"3\.81 MiB, .* 1 MiB free"):
        construct(
            "frozen",
            lambda: torch.nn.Linear(1000, 1000, bias=False).requires_grad_(False),
            torch.float32,
            torch.device("cpu"),
        )


@pytest.mark.parametrize(
    ("spec", "code", "hint"),
    [
        ("builtin:lama-tiny", "MOD701", "did you mean builtin:llama-tiny?"),
        ("llama-tiny", "MOD701", "did you mean builtin:llama-tiny?"),
        ("builtin:", "MOD701", "the built-in models are"),
        ("", "MOD701", "the built-in models are"),
        ("zebra", "MOD701", "package.module:function"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_name(spec: str, code: str, hint: str) -> None:
    with pytest.raises(RefusedError) as caught:
        resolve_model(spec)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert repr(spec) in diagnostic.message
    assert hint in (diagnostic.hint or "")


@pytest.mark.parametrize("option", ["seq", "layers"])
def test_an_option_that_a_model_does_not_have_is_a_usage_error(option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option} cannot shape builtin:unet-tiny"):
        ModelRequest("builtin:unet-tiny", **{option: 4}).resolve()


@pytest.mark.parametrize(
    "values", [{"batch": 0}, {"seq": -1}, {"layers": 0}, {"dtype": "int8"}, {"optimizer": "lion"}]
)
def test_a_value_out_of_range_is_the_caller_s_error(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=name):
        ModelRequest("builtin:llama-tiny", **values)


def test_every_refusal_has_a_cure() -> None:
    for spec in ("zebra", "builtin:x", "hf:/no/such/place", "no_such_module:build"):
        with pytest.raises(OffloadError) as caught:
            resolve_model(spec)
        assert all(d.hint for d in caught.value.diagnostics)
