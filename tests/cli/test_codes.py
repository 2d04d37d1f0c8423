import re
from pathlib import Path

import pytest

from offload_runtime.codes import CODES
from tests.cli.conftest import Offload

CLI = Path(__file__).parents[2] / "offload_runtime" / "cli"


def test_every_code_is_listed_once_in_order(offload: Offload) -> None:
    lines = offload("codes").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == sorted(CODES)
    data = offload("codes", "--format", "json").document["data"]["codes"]
    assert [entry["code"] for entry in data] == sorted(CODES)


@pytest.mark.parametrize("spelling", ["CLI602", "cli602"])
def test_a_code_has_a_page_with_its_cure_and_both_examples(offload: Offload, spelling: str) -> None:
    entry = CODES["CLI602"]
    finished = offload("codes", spelling)
    assert finished.exit_code == 0
    assert finished.stdout.startswith(f"CLI602 (error): {entry.title}\n")
    for part in (
        entry.explanation,
        f"cure: {entry.cure}",
        f"  {entry.bad_example}",
        f"  {entry.good_example}",
    ):
        assert part in finished.stdout


def test_an_unknown_code_is_a_usage_error_that_names_the_closest(offload: Offload) -> None:
    finished = offload("codes", "CLIO602", "--format", "json")
    assert finished.exit_code == 2
    (finding,) = finished.document["diagnostics"]
    assert finding["code"] == "CLI606"
    assert finding["hint"] == "did you mean CLI602?"
    assert "`offload codes`" in offload("codes", "nonsense").stderr


def test_every_code_that_the_command_line_raises_is_in_the_table() -> None:
    raised = {
        code for file in CLI.glob("*.py") for code in re.findall(r'"([A-Z]{3,4}\d{3})"', file.read_text())
    }
    assert raised
    assert raised <= set(CODES)
