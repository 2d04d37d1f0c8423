"""A user's own function is called, checked, and refused by name when it does not return what it should."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from offload_runtime.errors import RefusedError, UsageError
from offload_runtime.models.resolve import ModelRequest, resolve_model

Write = Callable[[str], str]
_names = itertools.count()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a module into the current directory and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(source: str) -> str:
        name = f"user_model_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{source}\n")
        return name

    return write


def test_a_module_and_its_arguments_are_enough(written: Write) -> None:
    name = written("def build():\n    return nn.Linear(4, 3), (torch.ones(2, 4),)")
    model = resolve_model(f"{name}:build")
    assert model.num_parameters == 15
    assert model.dtype == "float32"
    output = model.module(*model.make_batch(5))
    assert torch.equal(model.loss(output), output.square().mean())


def test_the_loss_function_takes_the_output(written: Write) -> None:
    name = written("def build():\n    return nn.Linear(4, 3), [torch.ones(2, 4)], lambda out: out.sum()")
    model = resolve_model(f"{name}:build")
    output = model.module(*model.example_args)
    assert torch.equal(model.loss(output), output.sum())


def test_the_seed_decides_the_weights(written: Write) -> None:
    name = written("def build():\n    return nn.Linear(4, 3), (torch.randn(2, 4),)")
    first, same, other = (resolve_model(f"{name}:build", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.module.weight, same.module.weight)
    assert torch.equal(first.example_args[0], same.example_args[0])
    assert not torch.equal(first.module.weight, other.module.weight)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("x.sum()", 4.0),
        ("{'loss': x.sum(), 'logits': 100 * x}", 4.0),
        ("(2 * x, torch.tensor([7]))", 4.0),
        ("[x, {'more': 3 * x}]", 10.0),
    ],
)
def test_without_a_loss_function_the_output_tells_the_loss(
    written: Write, output: str, expected: float
) -> None:
    name = written(
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(4))\n"
        "    def forward(self):\n"
        "        x = self.w\n"
        f"        return {output}\n"
        "def build():\n    return M(), ()"
    )
    model = resolve_model(f"{name}:build")
    assert model.loss(model.module()).item() == expected


@pytest.mark.parametrize(
    ("source", "function", "code", "words"),
    [
        ("", "build", "MOD711", "has no build"),
        ("def build_it(): pass", "build_itt", "MOD711", "did you mean"),
        ("build = 3", "build", "MOD711", "of type int, not a function"),
        ("def build(size): pass", "build", "MOD712", "missing a required argument: 'size'"),
        ("def build(): raise KeyError('vocab')", "build", "MOD715", "KeyError: 'vocab'"),
        ("raise RuntimeError('at import')", "build", "MOD715", "RuntimeError: at import"),
        ("import no_such_package_at_all", "build", "MOD715", "no_such_package_at_all"),
        ("def build(): return nn.Linear(2, 2)", "build", "MOD713", "returned a Linear"),
        ("def build(): return 1, 2, 3, 4", "build", "MOD713", "a tuple of 4"),
        ("def build(): return 'm', ()", "build", "MOD713", "a str as its first value"),
        ("def build(): return nn.Linear(2, 2), torch.ones(2)", "build", "MOD713", "as its second value"),
        ("def build(): return nn.Linear(2, 2), (), 3", "build", "MOD713", "third value"),
        ("def build(): return nn.Linear(2, 2), (), lambda a, b: a", "build", "MOD713", "third value"),
        ("def build(): return nn.ReLU(), (torch.ones(2),)", "build", "MOD714", "nothing to train"),
    ],
)
def test_what_is_wrong_with_the_function_is_named(
    written: Write, source: str, function: str, code: str, words: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        resolve_model(f"{written(source)}:{function}")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert words in f"{diagnostic.message} {diagnostic.hint}"
    assert diagnostic.hint


def test_a_missing_module_is_named() -> None:
    with pytest.raises(RefusedError, match=r"MOD711 there is no module no\.such\.module"):
        resolve_model("no.such.module:build")


@pytest.mark.parametrize("option", [{"batch": 2}, {"seq": 8}, {"layers": 2}, {"dtype": "bfloat16"}])
def test_the_shape_options_are_not_for_functions(written: Write, option: dict[str, object]) -> None:
    name = written("def build():\n    return nn.Linear(4, 3), (torch.ones(2, 4),)")
    with pytest.raises(UsageError, match=f"--{next(iter(option))}"):
        ModelRequest(f"{name}:build", **option).resolve()
