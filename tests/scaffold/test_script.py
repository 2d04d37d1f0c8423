from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.errors import OffloadError, UnreadableError
from offload_runtime.scaffold.script import Script, read_script

SCRIPT = """\
import torch
from data import loader as make_loader
WIDTH = 3
class Net: ...
def make_model(width=WIDTH): return Net()
def needs(width, *, depth, seed=0): return Net()
def make_trainer(): return transformers.Trainer(model=make_model())
def main():
    for batch in make_loader():
        loss(batch).backward()
def train_by_trainer(): make_trainer().train()
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return read_script(str(path))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("make_model", "model"),
        ("Net", "model"),
        ("make_trainer", "trainer"),
        ("main", "loop"),
        ("train_by_trainer", "loop"),
    ],
)
def test_what_a_function_gives_is_read_from_its_body(script: Script, function: str, kind: str) -> None:
    script.check_call(function)
    assert script.kind_of(function) == kind


@pytest.mark.parametrize(
    ("name", "code", "shown"),
    [
        ("makemodel", "CLI632", "did you mean make_model?"),
        ("zzz", "CLI632", "torch, make_loader, WIDTH, Net, make_model"),
        ("needs", "CLI633", "needs needs width, depth"),
    ],
)
def test_a_name_that_cannot_be_called_is_refused(script: Script, name: str, code: str, shown: str) -> None:
    with pytest.raises(OffloadError, match=shown) as caught:
        script.check_call(name)
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("main()", True),
        ("for step in range(3): print(step)", True),
        ("trainer.train()", True),
        ("torch.manual_seed(0)", False),
        ("if __name__ == '__main__': main()", False),
        ("model = Net()", False),
    ],
)
def test_a_top_level_that_trains_is_warned_about_at_its_line(tmp_path: Path, line: str, warned: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\n{line}\n")
    found = [(d.code, d.severity, d.line) for d in read_script(str(path)).work_on_import()]
    assert found == ([("CLI634", "warning", 2)] if warned else [])


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"def main(:\n", "is no Python"),
        (b"x = '\xff'\n", "is not UTF-8"),
        (b"x = 1\x00\n", "is no Python"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_script_is_unreadable(tmp_path: Path, content: bytes | None, shown: str) -> None:
    path = tmp_path / "train.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match=shown) as caught:
        read_script(str(path))
    assert caught.value.diagnostics[0].code == "CLI631"
