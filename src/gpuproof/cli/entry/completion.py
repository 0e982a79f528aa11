"""`gpuproof completion`: what a shell needs to complete commands, options, recipes, keys and runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuproof.errors import ExitCode

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "gpuproof"
VARIABLE = "_GPUPROOF_COMPLETE"
"""What click's scripts set when they ask for completions."""
YAML = (".yaml", ".yml")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print what makes a shell complete commands, options, recipes, keys and runs.

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
    except RuntimeError as error:  # a bash that is too old, or none
        sys.stderr.write(f"gpuproof: {error}\n")
        sys.exit(ExitCode.UNFIT_ENVIRONMENT)


def complete_recipe(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the recipes that come with gpuproof, and the YAML files and folders that begin like this."""
    from click.shell_completion import CompletionItem

    from gpuproof.config.load import recipe_names

    recipes = [CompletionItem(name) for name in recipe_names() if name.startswith(incomplete)]
    above = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    beside = sorted(above.iterdir()) if above.is_dir() else []
    wanted = [path for path in beside if path.suffix in YAML or path.is_dir()]
    paths = [f"{path}/" if path.is_dir() else str(path) for path in wanted]
    return [*recipes, *(CompletionItem(path) for path in paths if path.startswith(incomplete))]
