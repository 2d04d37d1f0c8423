from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.document import read_text
from offload_runtime.errors import UnreadableError
from offload_runtime.shipped import find_source, locate_policy, policies_directory, shipped_policies


def test_a_shipped_policy_is_found_by_its_name_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path, name = locate_policy("balanced")
    assert path == policies_directory() / "balanced" / "policy.yaml"
    assert name == "policies/balanced/policy.yaml"
    assert find_source(name) == path


def test_a_folder_stands_for_the_policy_in_it(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("")
    assert locate_policy(str(tmp_path)) == (tmp_path / "policy.yaml", str(tmp_path / "policy.yaml"))


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    path, name = locate_policy("../b/base.yaml", beside=str(tmp_path / "a" / "child.yaml"))
    assert path == tmp_path / "b" / "base.yaml"
    assert name == str(tmp_path / "b" / "base.yaml")
    assert locate_policy("/abs.yaml", beside="a/child.yaml")[1] == "/abs.yaml"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("balansed", "did you mean balanced?"),
        ("xyz", "shipped policies: balanced, "),
        ("", "shipped policies: "),
    ],
)
def test_an_unknown_name_is_told_the_closest_one(name: str, hint: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        locate_policy(name)
    (finding,) = caught.value.diagnostics
    assert finding.code == "YAML002"
    assert (finding.hint or "").startswith(hint)


@pytest.mark.parametrize("name", shipped_policies())
def test_a_shipped_policy_is_named_as_its_folder_and_has_a_summary(name: str) -> None:
    from offload_runtime.compiler import load_policy

    policy = load_policy(name).policy
    assert policy.name == name
    assert policy.summary.endswith(".")


@pytest.mark.parametrize("reference", ["x" * 5000, f"{'x' * 5000}/", f"{'x' * 300}.yaml", "nul\0.yaml"])
def test_a_name_that_no_file_can_have_is_no_policy(reference: str) -> None:
    """Python's Path raises where the system refuses to look; that is still only a policy that is not there."""
    with pytest.raises(UnreadableError):
        read_text(*locate_policy(reference))
