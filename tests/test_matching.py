from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.compiler import load_policy
from offload_runtime.document import MapNode, document_from_data
from offload_runtime.findings import Findings
from offload_runtime.matching import ALL_KEYS, SavedActivation, UnknownKeyError, matches
from offload_runtime.policy import Match
from offload_runtime.policy_reading import read_match
from tests.activations import activation, activations, in_layer
from tests.policy_documents import MATCHES

HEAD = {"apiVersion": "offload/v1", "kind": "Policy", "name": "example"}


def match_of(**keys: Any) -> Match:
    rules = [
        {"name": "a", "match": {key.rstrip("_"): value for key, value in keys.items()}, "action": "save"}
    ]
    return load_policy(HEAD | {"activations": {"default": "recompute", "rules": rules}}).policy.rules[0].match


@pytest.mark.parametrize(
    ("keys", "changes", "fits"),
    [
        ({"op": "matmul"}, {}, True),
        ({"op": "attention"}, {}, False),
        ({"op": ["attention", "aten.mm.default"]}, {}, True),
        ({"op": "aten.addmm.default"}, {}, False),
        ({"module": "layers.*.attention.**"}, {}, True),
        ({"module": "attention.wq"}, {}, False),
        ({"module": "inside:attention.wq"}, {}, True),
        ({"module": ["lm_head", "inside:*.wq"]}, {}, True),
        ({"inside": "attention.*"}, {}, True),
        ({"inside": "**"}, {"module": "layers.0"}, True),
        ({"inside": "**"}, {"module": "lm_head", "layer": None, "layer_path": None}, False),
        ({"layers": "0"}, {}, True),
        ({"layers": ":50%"}, {}, True),
        ({"layers": "-1"}, {}, False),
        ({"layers": ["-1", ":1"]}, {}, True),
        ({"layers": "outside"}, {}, False),
        ({"layers": "outside"}, {"layer": None, "layer_path": None}, True),
        ({"bytes": {"min": "1MiB"}}, {}, True),
        ({"bytes": {"min": "1MiB", "max": "1MiB"}}, {}, True),
        ({"bytes": {"max": "1MB"}}, {}, False),
        ({"layout": "contiguous"}, {}, True),
        ({"layout": "contiguous"}, {"layout": "dense"}, False),
        ({"layout": "dense"}, {}, True),
        ({"layout": "dense"}, {"layout": "dense"}, True),
        ({"layout": "dense"}, {"layout": "strided"}, False),
        ({"layout": "any"}, {"layout": "strided"}, True),
        ({"dtype": ["float32", "bfloat16"]}, {}, True),
        ({"dtype": "float32"}, {}, False),
        ({"not": {"op": "attention"}}, {}, True),
        ({"not": {"op": "matmul"}}, {}, False),
        ({"op": "matmul", "not": {"op": "matmul", "bytes": {"max": "1KB"}}}, {}, True),
        ({"not": {"not": {"op": "matmul"}}}, {}, True),
        ({"op": "matmul", "dtype": "float32"}, {}, False),
    ],
)
def test_keys_are_and_and_the_members_of_a_list_are_or(
    keys: dict[str, Any], changes: dict[str, Any], fits: bool
) -> None:
    assert matches(match_of(**keys), activation(**changes)) is fits


def test_the_part_below_a_layer_ends_at_whole_segments() -> None:
    assert in_layer(1).module_inside_layer == "attention.wq"
    assert activation(module="layers.10.wq", layer_path="layers.1").module_inside_layer is None
    assert activation(module="layers.1", layer_path="layers.1").module_inside_layer == ""


def test_a_relative_range_in_a_graph_that_cannot_know_the_total_is_unknown_not_false() -> None:
    partial = activation(num_layers=None)
    with pytest.raises(UnknownKeyError, match="num_layers"):
        matches(match_of(layers=":75%"), partial)
    assert matches(match_of(layers=[":75%", "0"]), partial)
    assert not matches(match_of(layers=":75%", op="attention"), partial)
    assert not matches(match_of(layers=":75%"), activation(num_layers=None, layer=None))


@given(MATCHES, activations(), st.sets(st.sampled_from(sorted(ALL_KEYS))))
def test_what_is_answered_without_a_fact_does_not_hang_on_that_fact(
    keys: dict[str, Any], known_activation: SavedActivation, hidden: set[str]
) -> None:
    node = document_from_data(keys).root
    assert isinstance(node, MapNode)
    match = read_match(node, Findings())
    whole = matches(match, known_activation)
    known = ALL_KEYS - hidden
    try:
        partial = matches(match, known_activation, known)
    except UnknownKeyError as error:
        partial, missing = whole, {error.key}
    else:
        missing = set()
    assert partial is whole
    assert missing <= hidden


@given(activations())
def test_an_activation_is_a_value(saved: SavedActivation) -> None:
    assert replace(saved) == saved
    assert hash(replace(saved)) == hash(saved)
