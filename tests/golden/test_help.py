"""What `--help` says of every command."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from gpuproof.cli.main import COMMANDS, GROUPS, SUMMARIES, cli


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


def test_every_command_stands_in_one_group_with_its_whole_sentence_at_80_columns() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    shown = CliRunner().invoke(cli, ["--help"], prog_name="gpuproof", terminal_width=80).output
    assert [name for name, summary in SUMMARIES.items() if summary not in shown] == []
    assert "..." not in shown.partition("Measure:")[2]


@pytest.mark.parametrize("command", ["run", "load", "scale", "validate", "matrix", "monitor live"])
def test_options_of_where_to_run_stand_in_a_section_of_their_own(command: str) -> None:
    shown = CliRunner().invoke(cli, [*command.split(), "--help"], terminal_width=100).output
    elsewhere, _, section = shown.partition("Where to run:\n")
    flags = ["--on WHERE", "--ssh-key FILE", "--lease SECONDS", "--one-job"]
    assert [flag for flag in flags if f"  {flag} " not in section] == []
    assert "--help" in elsewhere
