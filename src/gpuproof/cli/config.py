"""`gpuproof config`: the resolved values of a recipe, or all available keys."""

from __future__ import annotations

import click

from gpuproof.cli.group import LazyGroup
from gpuproof.cli.options import ConfigCommand

COMMANDS: dict[str, str] = {
    "show": "gpuproof.cli.config:show",
    "schema": "gpuproof.cli.config:schema",
}
"""Command name → `module:attribute`."""

config = LazyGroup(
    name="config",
    commands_by_path=COMMANDS,
    help="Show the resolved values of a recipe, and all available keys.",
)


@click.command(cls=ConfigCommand, context_settings={"ignore_unknown_options": True})
@click.argument("recipe", metavar="RECIPE")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
def show(recipe: str, overrides: tuple[str, ...], *, origin: bool) -> None:
    """Print every value of a recipe, as YAML that can be loaded again.

    RECIPE is a YAML file or the name of a recipe that comes with gpuproof. Nothing is run.

    \b
    gpuproof config show quick --origin
    gpuproof config show quick --training.precision=bf16 > mine.yaml
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.config.load import as_yaml, load_config

    loaded = load_config(recipe, overrides)
    click.echo(as_yaml(loaded, with_origins=origin), nl=False)


@click.command()
@click.option("--result", "of_result", is_flag=True, help="Print the schema of result.json instead.")
def schema(*, of_result: bool) -> None:
    """Print the JSON Schema of a recipe: every key with its type, bounds, default and meaning."""
    import json

    from gpuproof.config.keys import json_schema
    from gpuproof.report.formats import result_schema

    click.echo(json.dumps(result_schema() if of_result else json_schema(), indent=2))
