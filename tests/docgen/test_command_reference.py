"""Commands as their help has them."""

import click

from offload_runtime.docgen.command_reference import Option, read_commands


@click.group()
def program() -> None:
    """A program."""


@program.command()
@click.argument("what")
@click.option("--size", type=click.Choice(["s", "m"]), default="m", show_default=True, help="How large.")
@click.option("--count", metavar="N", required=True, help="How many.")
@click.option("--add", multiple=True, help="More.")
@click.option("--fast/--slow", help="How fast.")
@click.option("--secret", hidden=True)
def bake(**_: object) -> None:
    """Bake WHAT
    in the oven.

    It gets warm.

    \b
    Example:
      program bake bread \\
        --count 2
    """


@program.group()
def shop() -> None:
    """Shop."""


@shop.command(name="open")
def open_shop() -> None:
    """Open the shop."""


def test_a_command_has_its_usage_text_and_examples() -> None:
    bake_reference = read_commands(program)[0]
    assert (bake_reference.name, bake_reference.usage) == ("offload bake", "offload bake [OPTIONS] WHAT")
    assert bake_reference.paragraphs == ("Bake WHAT in the oven.", "It gets warm.")
    assert bake_reference.examples == "program bake bread \\\n  --count 2"


def test_options_say_what_they_take_and_hidden_ones_are_left_out() -> None:
    assert read_commands(program)[0].options == (
        Option("--size", "s|m", "m", False, False, "How large."),
        Option("--count", "N", None, True, False, "How many."),
        Option("--add", "TEXT", None, False, True, "More."),
        Option("--fast / --slow", "", None, False, False, "How fast."),
    )


def test_commands_of_a_group_stand_under_their_whole_names() -> None:
    assert [command.name for command in read_commands(program)] == [
        "offload bake",
        "offload shop",
        "offload shop open",
    ]
