import pytest

from offload_runtime.hardware import hardware_names
from offload_runtime.models.catalog import BUILTINS
from offload_runtime.op_classes import OP_CLASSES
from offload_runtime.shipped import shipped_policies
from tests.cli.conftest import Offload


@pytest.mark.parametrize(
    ("what", "key", "names"),
    [
        ("hardware", "hardware", list(hardware_names())),
        ("models", "models", list(BUILTINS)),
        ("op-classes", "op_classes", sorted(OP_CLASSES)),
        ("policies", "policies", list(shipped_policies())),
    ],
)
def test_a_list_holds_every_name_with_a_summary_in_both_formats(
    offload: Offload, what: str, key: str, names: list[str]
) -> None:
    entries = offload("list", what, "--format", "json").document["data"][key]
    assert [entry["name"] for entry in entries] == names
    assert all(entry["summary"] for entry in entries)
    lines = offload("list", what).stdout.splitlines()
    assert len(lines) == 1 + len(names)
    assert all(name in line for name, line in zip(names, lines[1:], strict=True))


def test_a_model_is_listed_under_the_name_that_other_commands_take(offload: Offload) -> None:
    assert offload("list", "models").stdout.splitlines()[1].startswith("builtin:llama-tiny ")


def test_the_hardware_list_gives_each_figure_with_its_unit_and_source(offload: Offload) -> None:
    entries = offload("list", "hardware", "--format", "json").document["data"]["hardware"]
    figures = {
        figure["figure"]: figure
        for entry in entries
        if entry["name"] == "gh200"
        for figure in entry["figures"]
    }
    assert (figures["link.d2h"]["value"], figures["link.d2h"]["unit"]) == (170, "GB/s")
    assert all(figure["source"] for figure in figures.values())
