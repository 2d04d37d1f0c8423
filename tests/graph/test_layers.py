import pytest

from offload_runtime.graph.layers import layer_path, tabulate_layers
from offload_runtime.patterns import parse_glob


@pytest.mark.parametrize(
    ("modules", "paths"),
    [
        (
            [
                "model.embed_tokens",
                "model.layers.0.mlp",
                "model.layers.1.self_attn.q_proj",
                "model.norm",
                "lm_head",
            ],
            ("model.layers.0", "model.layers.1"),
        ),
        (
            [
                "encoder.block.0.layer.0",
                "encoder.block.1.layer.1",
                "decoder.block.0.layer.2",
                "decoder.block.1",
            ],
            ("encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"),
        ),
        (
            ["down_blocks.0.resnets.0", "down_blocks.1.resnets.0", "mid_block", "up_blocks.0", "up_blocks.1"],
            ("down_blocks.0", "down_blocks.1", "up_blocks.0", "up_blocks.1"),
        ),
        (["0", "1", "2"], ("0", "1", "2")),
        (["fc1", "fc2", ""], ()),
    ],
    ids=["decoder", "two stacks", "u-net", "sequential", "plain"],
)
def test_stacks_are_numbered_one_behind_the_other_as_they_execute(
    modules: list[str], paths: tuple[str, ...]
) -> None:
    table = tabulate_layers(modules)
    assert table.paths == paths
    assert table.num_layers == len(paths)


def test_a_layer_holds_what_is_below_it_and_nothing_else() -> None:
    table = tabulate_layers(["model.layers.0.mlp", "model.layers.1.mlp", "model.norm"])
    assert table.layer_of("model.layers.1.self_attn.q_proj") == 1
    assert table.layer_of("model.layers.1") == 1
    assert table.layer_of("model.norm") is None
    assert table.layer_of("") is None


def test_layers_keep_the_order_of_execution_and_not_of_their_numbers() -> None:
    assert tabulate_layers(["h.2", "h.0", "h.1", "h.2"]).paths == ("h.2", "h.0", "h.1")


def test_a_stack_of_one_element_beside_a_real_stack_is_no_layer() -> None:
    assert tabulate_layers(["norms.0", "layers.0", "layers.1"]).paths == ("layers.0", "layers.1")


def test_globs_say_which_modules_are_the_repeated_blocks() -> None:
    globs = (parse_glob("unet.stage*"),)
    table = tabulate_layers(["unet.stage_a.0.conv", "unet.head.1", "unet.stage_b.1.conv"], globs)
    assert table.paths == ("unet.stage_a", "unet.stage_b")
    assert table.layer_of("unet.head.1") is None


def test_an_incomplete_table_knows_no_total() -> None:
    assert tabulate_layers(["layers.0", "layers.1"], complete=False).num_layers is None


@pytest.mark.parametrize(
    ("module", "globs", "path"),
    [
        ("decoder.block.3.layer.1.mlp", None, "decoder.block.3"),
        ("decoder.block.3.layer.1.mlp", ["decoder.block.*.layer.*"], "decoder.block.3.layer.1"),
        ("lm_head", None, None),
        ("", ["**"], None),
    ],
)
def test_a_module_name_is_cut_at_its_layer(module: str, globs: list[str] | None, path: str | None) -> None:
    assert layer_path(module, [parse_glob(text) for text in globs] if globs is not None else None) == path
