"""`gpuproof completion`: shell completion of commands, options, recipes, keys and runs."""

from __future__ import annotations

import sys

import click

from gpuproof.base.errors import ExitCode

PROGRAM = "gpuproof"
VARIABLE = "_GPUPROOF_COMPLETE"
"""Environment variables that click's scripts set when they request completions."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print the shell completion script for commands, keys and runs.

    \b
    bash:  eval "$(gpuproof completion bash)"                     in ~/.bashrc
    zsh:   eval "$(gpuproof completion zsh)"                      in ~/.zshrc, after compinit
    fish:  gpuproof completion fish > ~/.config/fish/completions/gpuproof.fish
    """  # noqa: D301  # click reads the backspace character
    from click.shell_completion import get_completion_class

    from gpuproof.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, PROGRAM, VARIABLE)
    try:
        click.echo(script.source())
    except RuntimeError as error:  # bash is too old, or missing
        sys.stderr.write(f"gpuproof: {error}\n")
        sys.exit(ExitCode.UNFIT_ENVIRONMENT)
