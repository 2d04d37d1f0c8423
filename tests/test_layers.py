"""The import contracts of pyproject.toml name every module that must stay free of torch."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_below_the_graph_is_forbidden_to_import_torch() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers, text_layer, _ = configuration["tool"]["importlinter"]["contracts"]
    below_graph = layers["layers"][layers["layers"].index("graph") + 1 :]
    # An optional module, in parentheses, may not exist yet; the other contract can name only what exists.
    torch_free = {name for layer in below_graph for name in layer.split(" : ") if not name.startswith("(")}
    forbidden = {name.removeprefix("offload_runtime.") for name in text_layer["source_modules"]}
    assert forbidden == torch_free | {"docgen", "reporting"}
    assert text_layer["forbidden_modules"] == ["torch"]


def test_an_optional_layer_that_exists_is_no_longer_optional() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = configuration["tool"]["importlinter"]["contracts"][0]["layers"]
    optional = {name for layer in layers for name in re.findall(r"\((\w+)\)", layer)}
    existing = {path.stem for path in (ROOT / "offload_runtime").iterdir()}
    assert optional & existing == set()
