"""What `--help` says of every command."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from gpuproof.cli.main import COMMANDS, SUMMARIES, cli


@pytest.mark.parametrize("command", ["gpuproof", *COMMANDS, "config show", "config schema"])
def test_help(command: str, golden: Callable[[str, str], None]) -> None:
    words = ["--help"] if command == "gpuproof" else [*command.split(), "--help"]
    shown = CliRunner().invoke(cli, words, prog_name="gpuproof", terminal_width=100)
    assert shown.exit_code == 0
    golden(f"help/{command.replace(' ', '-')}.txt", shown.output)


def test_every_option_says_what_it_does() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert [
            option.name for option in command.params if isinstance(option, click.Option) and not option.help
        ] == []


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    context = click.Context(cli)
    listed = {
        name: click.Command(name, help=summary).get_short_help_str(1000)
        for name, summary in SUMMARIES.items()
    }
    assert list(SUMMARIES) == list(COMMANDS)
    for name, summary in listed.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1000) == summary
