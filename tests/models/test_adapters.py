from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offload_runtime.models.adapters import (
    KeywordModel,
    first_training_step,
    model_and_batch,
    running_script,
    trainer_step,
)


class Labelled(nn.Module):
    """Takes what a data loader of transformers gives, and returns the loss among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs: Tensor, labels: Tensor | None = None, scale: float = 1.0) -> Any:
        output = self.linear(inputs) * scale
        if labels is None:
            return output
        return {"loss": nn.functional.mse_loss(output, labels), "output": output}


class Mean(nn.Module):
    """Returns its loss and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs).square().mean()


INPUTS, LABELS = torch.randn(4, 3), torch.randn(4, 2)


def test_a_mapping_gives_keyword_arguments_and_the_models_own_loss() -> None:
    model = Labelled()
    built = model_and_batch(model, {"inputs": INPUTS, "labels": LABELS})
    assert len(built) == 2
    module, args = built
    assert torch.equal(module(*args)["loss"], model(INPUTS, LABELS)["loss"])


def test_a_loss_of_two_arguments_takes_the_target_from_the_batch() -> None:
    model = Labelled()
    for loss in (nn.functional.mse_loss, nn.MSELoss()):
        module, args, loss_fn = model_and_batch(model, (INPUTS, LABELS), loss)  # type: ignore[misc]
        assert (module, len(args)) == (model, 1)
        assert torch.equal(loss_fn(module(*args)), nn.functional.mse_loss(model(INPUTS), LABELS))


def test_a_loss_of_one_argument_leaves_the_batch_to_the_model() -> None:
    module, args, loss_fn = model_and_batch(Labelled(), [INPUTS, LABELS], lambda output: output["loss"])  # type: ignore[misc]
    assert len(args) == 2
    assert loss_fn(module(*args)).ndim == 0


def test_a_single_value_is_the_only_argument() -> None:
    assert model_and_batch(Labelled(), INPUTS)[1] == (INPUTS,)


def test_a_trainer_gives_its_model_and_the_first_batch_of_its_data() -> None:
    class Trainer:
        model = Labelled()

        def get_train_dataloader(self) -> list[dict[str, Tensor]]:
            return [{"inputs": INPUTS, "labels": LABELS}, {}]

    module, args = trainer_step(Trainer())[:2]
    assert torch.equal(module(*args)["loss"], Trainer.model(INPUTS, LABELS)["loss"])


def test_a_step_with_keywords_is_called_with_positional_arguments() -> None:
    model = Labelled()

    def loop() -> None:
        (model(INPUTS, scale=2.0) - LABELS).square().mean().backward()

    module, args, loss_fn = first_training_step(loop)  # type: ignore[misc]
    assert args[1:] == (2.0,)
    expected = (model(INPUTS, scale=2.0) - LABELS).square().mean()
    torch.testing.assert_close(loss_fn(module(*args)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_loss_that_the_model_returns_is_left_to_it(is_alone: bool) -> None:
    model = Labelled()
    alone = Mean()

    def loop() -> None:
        (alone(INPUTS) if is_alone else model(INPUTS, LABELS)["loss"]).backward()

    assert len(first_training_step(loop)) == 2


def test_a_trainer_of_transformers_gives_the_step_that_it_takes_itself(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs it")
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    tokens = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]

    def trainer() -> Any:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=2, report_to=[], use_cpu=True
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=tokens)

    module, args = trainer_step(trainer())[:2]
    step = first_training_step(lambda: trainer().train())
    recorded, recorded_args = step[:2]
    assert isinstance(module, KeywordModel)
    assert isinstance(recorded, KeywordModel)
    batch = dict(zip(module.keywords, args, strict=True))
    values = [batch.get(key, value) for key, value in zip(recorded.keywords, recorded_args, strict=True)]
    assert batch["input_ids"].shape == (4, 8)
    torch.testing.assert_close(step[-1](recorded(*values)), module(*args)["loss"], rtol=1e-6, atol=0)  # type: ignore[operator]  # the third value


SCRIPT = """
import random
import sys
import numpy
import neighbour
ARGUMENTS = sys.argv[1:]
DRAWN = (random.random(), numpy.random.rand())
COUNT = []
def main(): COUNT.append(1)
if __name__ == "__main__": raise SystemExit("started")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("")
    path = tmp_path / "train_of_test_adapters.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_sees_its_arguments_and_its_folder_and_is_new_each_time(script: Path) -> None:
    before = list(sys.argv), list(sys.path)
    with running_script(script, ["--width", "32"]) as first:
        assert first.ARGUMENTS == ["--width", "32"]
        first.main()
    with running_script(script) as second:
        assert (second.ARGUMENTS, second.COUNT) == ([], [])
    assert (sys.argv, sys.path) == before
    assert sys.modules[script.stem] is second


def test_what_a_script_draws_follows_torchs_seed(script: Path) -> None:
    drawn = []
    states = random.getstate(), np.random.get_state()
    try:
        for seed in (0, 0, 1):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                with running_script(script) as module:
                    drawn.append(module.DRAWN)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[2][0]
    assert drawn[0][1] != drawn[2][1]


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.py"), running_script(tmp_path / "none.py"):
        pass
