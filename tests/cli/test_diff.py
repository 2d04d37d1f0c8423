from pathlib import Path

import pytest

from tests.cli.conftest import Offload

POLICY = """\
apiVersion: offload/v1
kind: Policy
name: NAME
activations:
  default: recompute
  rules:
    - {name: wide, match: {op: matmul, bytes: {min: 8KiB}}, action: ACTION}
    - {name: narrow, match: {op: matmul}, action: save, optional: true}
"""
MODEL = ("--model", "tests.cli.small_models:stack")
NUM_BYTES = 32 * 64 * 4  # of the output of each block's first product


@pytest.fixture
def policies(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of a policy that saves the wide products and of one that offloads them."""
    paths = tmp_path / "save.yaml", tmp_path / "offload.yaml"
    for path in paths:
        path.write_text(POLICY.replace("ACTION", path.stem).replace("NAME", path.stem))
    return str(paths[0]), str(paths[1])


def test_the_tensors_whose_fate_changes_are_listed_with_bytes_before_and_after(
    offload: Offload, policies: tuple[str, str]
) -> None:
    finished = offload("diff", *policies, *MODEL, "--format", "json")
    assert finished.exit_code == 0
    data = finished.document["data"]
    assert (data["before"]["policy"], data["after"]["policy"]) == ("save", "offload")
    assert [
        (c["module"], c["before"]["fate"], c["after"]["fate"], c["num_bytes"]) for c in data["changes"]
    ] == [
        ("layers.0.up", "save", "offload", NUM_BYTES),
        ("layers.1.up", "save", "offload", NUM_BYTES),
    ]  # keep_last leaves the third
    assert data["planned_bytes"] == {"before": 0, "after": 2 * NUM_BYTES}
    for fate, num_tensors in (("save", -2), ("offload", 2), ("recompute", 0)):
        sides = data["fates"][fate]
        assert sides["after"]["num_tensors"] - sides["before"]["num_tensors"] == num_tensors
        assert sides["after"]["num_bytes"] - sides["before"]["num_bytes"] == num_tensors * NUM_BYTES


def test_an_override_is_of_the_second_policy_and_exit_code_tells_a_change(
    offload: Offload, policies: tuple[str, str]
) -> None:
    _, path = policies
    limit = ("--set", f"limits.budget={NUM_BYTES}B")
    changed = offload("diff", path, path, *limit, *MODEL, "--exit-code")
    assert changed.exit_code == 1
    assert "1 of " in changed.stdout
    assert "offload -> save" in changed.stdout
    assert offload("diff", path, path, *MODEL, "--exit-code").exit_code == 0


def test_a_mistake_in_either_policy_is_found_before_the_model_is_traced(
    offload: Offload, policies: tuple[str, str]
) -> None:
    Path(policies[1]).write_text(POLICY)
    finished = offload("diff", *policies, "--model", "no.such:model")
    assert finished.exit_code == 1
    assert "POL103" in finished.stderr
