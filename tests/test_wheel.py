"""The wheel holds all that it needs: it is built, unpacked into an environment with nothing else, and used there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.hardware import hardware_names
from offload_runtime.shipped import shipped_policies
from offload_runtime.skills_catalog import list_skills

ROOT = Path(__file__).parent.parent
BUILD = "import sys, hatchling.build as backend; print(backend.build_wheel(sys.argv[1]))"
OFFLOAD = "import sys; from offload_runtime.cli import run; sys.exit(run(sys.argv[1:]))"
# All that the text layer needs of other packages.
NEEDED = ("click", "yaml", "_yaml")


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and a folder of its own to work in."""

    python: Path
    packages: Path
    folder: Path

    def offload(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, without this checkout in reach."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        command = [str(self.python), "-I", "-c", OFFLOAD, *args]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def data(self, *args: str) -> Any:
        """Run a command that has to succeed, and return its data."""
        finished = self.offload(*args, "--format", "json")
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return json.loads(finished.stdout)["data"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return folder / built.stdout.strip().split("\n")[-1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            (packages / name).symlink_to(Path(spec.origin).parent, target_is_directory=True)
    return Installed(environment / "bin/python", packages, tmp_path_factory.mktemp("work"))


def test_it_carries_skills_policies_schemas_profiles_and_the_card(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name.removeprefix("offload_runtime/") for name in names}
    for skill in list_skills():
        read = {file for file in skill.files() if not file.startswith("evals/")}
        assert {f".agents/skills/{skill.name}/{file}" for file in read} <= package
    for policy in shipped_policies():
        assert {f"policies/{policy}/policy.yaml", f"policies/{policy}/cases.yaml"} <= package
    assert {f"profiles/{name}.yaml" for name in hardware_names()} <= package
    schemas = {path.name for path in (ROOT / "offload_runtime/schemas").glob("*.json")}
    assert {f"schemas/{name}" for name in schemas} <= package
    assert {"card.yaml", "py.typed"} <= package


def test_it_carries_no_answers_to_the_evals(wheel: Path) -> None:
    answers = [eval_["right_answer"] for eval_ in _evals()]
    assert len(answers) > len(list_skills())
    with zipfile.ZipFile(wheel) as files:
        assert [name for name in files.namelist() if "evals" in name and name.endswith(".json")] == [
            "offload_runtime/schemas/evals.schema.json"
        ]
        texts = [files.read(name).decode() for name in files.namelist() if "/.agents/" in name]
    assert [answer for answer in answers if any(answer in text for text in texts)] == []


def _evals() -> list[dict[str, Any]]:
    files = [json.loads(path.read_text()) for path in (ROOT / "skills").glob("*/evals/evals.json")]
    return [eval_ for file in files for eval_ in file["evals"]]


def test_it_carries_nothing_but_the_package(wheel: Path) -> None:
    outside = [
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if not name.startswith("offload_runtime/") and ".dist-info/" not in name
    ]
    assert outside == []


def test_without_torch_and_without_a_checkout_the_text_layer_works(installed: Installed) -> None:
    assert installed.offload("--version").stdout.startswith("offload ")
    listed = [entry["name"] for entry in installed.data("list", "policies")["policies"]]
    assert listed == list(shipped_policies())
    assert all(file["ok"] for file in installed.data("validate", *listed)["files"])
    missing = subprocess.run([str(installed.python), "-I", "-c", "import torch"], capture_output=True)
    assert missing.returncode != 0


def test_its_skills_are_listed_shown_and_checked(installed: Installed) -> None:
    names = [entry["name"] for entry in installed.data("skills", "list")["skills"]]
    assert names == ["cpu-offload", *(skill.name for skill in list_skills())]
    assert "name: choose-offload" in installed.data("skills", "show", "choose-offload")["text"]
    verdicts = installed.data("skills", "check")["skills"]
    assert all(verdict["ok"] for verdict in verdicts)
    assert {tuple(verdict["not_checked"]) for verdict in verdicts} == {
        ("numbers, tests and evals, for want of a checkout",)
    }


def test_its_skills_are_installed_and_hold_where_they_lie(installed: Installed) -> None:
    installed.data("skills", "install", "--client", "codex")
    folder = installed.folder / ".agents/skills/choose-offload"
    shipped = installed.packages / "offload_runtime/.agents/skills/choose-offload"
    assert (folder / "SKILL.md").read_bytes() == (shipped / "SKILL.md").read_bytes()
    assert installed.offload("validate", ".agents/skills/choose-offload/card.yaml").returncode == 0


def test_tests_of_a_card_are_refused_where_there_are_none(installed: Installed) -> None:
    finished = installed.offload("skills", "check", "--run-tests")
    assert finished.returncode == 4
    assert "CRD603" in finished.stderr
