import pytest
from torch import fx

from offload_runtime.graph.names import module_of_node, normalise_fqn


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']", ""),
        ("L['self'].model.layers.0", "model.layers.0"),
        ("L['args'][0].model.layers.1", "model.layers.1"),
        ("L['self'].__dict__['_modules']['down_blocks'].0", "down_blocks.0"),
        ("L['self']._modules['encoder']._modules['block']._modules['3']", "encoder.block.3"),
        ("L['self'].layers[2].mlp", "layers.2.mlp"),
        ("L['fn'].layers.4", "layers.4"),
        ("G['net'].block", "block"),
        ("layers.0", "layers.0"),
        ("L['self']._orig_mod.layers.0._orig_mod.mlp", "layers.0.mlp"),
        ("L['self']._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.mlp", "layers.0.mlp"),
    ],
)
def test_a_source_of_dynamo_becomes_the_name_its_author_gave(source: str, name: str) -> None:
    assert normalise_fqn(source) == name


def test_a_module_list_held_in_a_local_keeps_its_index() -> None:
    assert normalise_fqn("L['blocks'][3].mlp") == "3.mlp"


def test_a_name_that_torchtitan_annotated_counts_where_no_stack_was_recorded() -> None:
    node = fx.Graph().placeholder("x")
    assert module_of_node(node) is None
    node.meta["custom"] = {"module_fqn": "layers.0.attention.wq"}
    assert module_of_node(node) == "layers.0.attention.wq"
    node.meta["nn_module_stack"] = {"m": ("L['self'].layers.1", object)}
    assert module_of_node(node) == "layers.1"
