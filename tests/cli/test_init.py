from pathlib import Path

import pytest

from offload_runtime.validate import validate_file
from tests.cli.conftest import Offload

SCRIPT = """\
import argparse
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def make_model(width=16):
    return Net(width)

def make_batch(width=16):
    return torch.randn(32, width), torch.randn(32, width)

def loss_of(output, target):
    return nn.functional.mse_loss(output, target)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    width = parser.parse_args().width
    model = make_model(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        inputs, target = make_batch(width)
        loss_of(model(inputs), target).backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def script(here: Path) -> str:
    """Return the path of a training script, in a folder of its own name, so that no test gets another's module."""
    name = f"train_{here.name.replace('-', '_')}.py"
    (here / name).write_text(SCRIPT)
    return name


def test_a_policy_goes_to_stdout_alone_and_is_valid(offload: Offload, here: Path) -> None:
    finished = offload("init", "--budget", "8GiB", "--ops", "matmul, attention", "--name", "dense")
    assert (finished.exit_code, finished.stderr) == (0, "")
    (here / "dense.yaml").write_text(finished.stdout)
    assert validate_file("dense.yaml").diagnostics == ()
    assert "budget: 8GiB # " in finished.stdout
    assert "op: [matmul, attention] # " in finished.stdout


def test_a_file_is_written_named_after_and_never_replaced_unasked(offload: Offload, here: Path) -> None:
    (here / "dense").mkdir()
    first = offload("init", "--output", "dense/policy.yaml", "--format", "json")
    assert first.exit_code == 0
    assert first.document["data"]["file"] == "dense/policy.yaml"
    assert first.document["next"] == ["offload validate dense/policy.yaml"]
    text = (here / "dense/policy.yaml").read_text()
    assert text == first.document["data"]["text"]
    assert "\nname: dense\n" in text
    again = offload("init", "--output", "dense/policy.yaml", "--budget", "1GB")
    assert (again.exit_code, "CLI636" in again.stderr) == (2, True)
    assert (here / "dense/policy.yaml").read_text() == text
    assert offload("init", "--output", "dense/policy.yaml", "--budget", "1GB", "--force").exit_code == 0
    assert "budget: 1GB" in (here / "dense/policy.yaml").read_text()


@pytest.mark.parametrize(
    ("args", "exit_code", "code"),
    [
        (["--budget", "8"], 1, "POL104"),
        (["--preset", "balansed"], 3, "YAML002"),
        (["--batch", "make_batch"], 2, "CLI635"),
        (["--model-adapter", "train.py:main", "--budget", "8GiB"], 2, "CLI635"),
        (["--model-adapter", "train.py"], 2, "CLI604"),
        (["--model-adapter", "train:main"], 2, "CLI604"),
        (["--model-adapter", "none.py:main"], 3, "CLI631"),
        (["--output", "no/such/folder.yaml"], 2, "CLI637"),
    ],
)
def test_what_cannot_be_written_leaves_no_file(
    offload: Offload, here: Path, args: list[str], exit_code: int, code: str
) -> None:
    finished = offload(
        "init", *args, *(() if "--output" in args else ("--output", "new.py")), "--format", "json"
    )
    assert finished.exit_code == exit_code
    assert [found["code"] for found in finished.document["diagnostics"]] == [code]
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "wishes",
    [
        ["main", "--script-args", "--width 16"],
        ["make_model", "--batch", "make_batch", "--loss", "loss_of"],
    ],
    ids=["a loop", "a model"],
)
def test_a_written_adapter_gives_the_script_to_explain(
    offload: Offload, here: Path, script: str, wishes: list[str]
) -> None:
    function, *options = wishes
    (here / "tools").mkdir()
    written = offload("init", "--model-adapter", f"{script}:{function}", *options, "--output", "tools/adapter.py",
                      "--format", "json")  # fmt: skip
    assert written.exit_code == 0
    (following,) = written.document["next"]
    assert following == "offload explain balanced --model tools.adapter:build --mode inductor"
    explained = offload("explain", "max-savings", "--model", "tools.adapter:build", "--format", "json")
    assert explained.exit_code == 0, explained.stderr
    offloaded = [t for t in explained.document["data"]["tensors"] if t["fate"] == "offload"]
    assert {(t["layer"], t["num_bytes"]) for t in offloaded} >= {(0, 32 * 64 * 4), (1, 32 * 64 * 4)}


def test_an_adapter_of_a_model_without_a_batch_says_what_is_left_to_do(offload: Offload, script: str) -> None:
    finished = offload("init", "--model-adapter", f"{script}:make_model", "--output", "adapter.py")
    assert finished.exit_code == 0
    assert "CLI638 note" in finished.stderr
    refused = offload("explain", "balanced", "--model", "adapter:build")
    assert (refused.exit_code, "edit one_batch" in refused.stderr) == (4, True)


def test_a_batch_is_of_a_model_alone(offload: Offload, script: str) -> None:
    finished = offload("init", "--model-adapter", f"{script}:main", "--batch", "make_batch")
    assert finished.exit_code == 2
    assert "main is taken for a loop" in finished.stderr


def test_script_arguments_that_no_shell_would_split_are_a_usage_error(offload: Offload, script: str) -> None:
    finished = offload("init", "--model-adapter", f"{script}:main", "--script-args", 'a "b')
    assert finished.exit_code == 2
    assert "no closing quotation" in finished.stderr
