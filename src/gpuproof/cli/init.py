"""`gpuproof init`: a first recipe that fits this machine; `init prolog`: a gate before jobs."""

from __future__ import annotations

from pathlib import Path

import click

from gpuproof.base.errors import UsageError
from gpuproof.cli.gates.wrappers import prolog


@click.group(invoke_without_command=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    default=Path("gpuproof.yaml"),
    show_default=True,
    metavar="FILE",
    help="Where to write it; - is standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
@click.option("--python", metavar="PATH", help="Python to examine, instead of the one that runs gpuproof.")
@click.pass_context
def init(ctx: click.Context, *, output: Path, force: bool, python: str | None) -> None:
    """Write a commented recipe that fits this machine.

    Device, ranks, precision, batch size and threads come from what the machine has, each with its reason.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gpuproof.config.first_recipe import first_recipe
    from gpuproof.launchers.probe import probe
    from gpuproof.store.run import write_whole

    to_terminal = str(output) == "-"
    if not to_terminal and not force and output.exists():
        raise UsageError("exists already", place=str(output), next_step="Give --force, or another -o FILE")
    recipe = first_recipe(probe(python))
    if to_terminal:
        click.echo(recipe, nl=False)
        return
    write_whole(output, recipe)
    click.echo(f"Wrote {output}. Next: gpuproof run {output}")


init.add_command(prolog)
