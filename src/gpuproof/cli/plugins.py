"""`gpuproof plugins`: workloads, checks and suites, the package of each, and whether they load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuproof.cli.options import json_option
from gpuproof.errors import ExitCode

if TYPE_CHECKING:
    from gpuproof.report.plugin_states import PluginState

STYLE = {"loads": "green", "broken": "bold red", "duplicate": "bold red", "not loaded": "dim"}


@click.command()
@click.argument("name", required=False)
@click.option("--load", "load_plugins", is_flag=True, help="Try each, and say whether it can be used.")
@json_option
@click.pass_context
def plugins(ctx: click.Context, name: str | None, *, load_plugins: bool, as_json: bool) -> None:
    """List workloads, checks and suites with the package that each comes from.

    The list reads metadata only. With --load, or with a NAME, the torch-free half of each is imported.
    Exit code 5 if one of those cannot be used.
    """
    from gpuproof.report.plugin_states import list_plugins

    found = list_plugins(name=name, load_plugins=load_plugins or name is not None)
    if as_json:
        import json

        from gpuproof.records.codec import to_json

        click.echo(json.dumps(to_json(list(found)), indent=2))
    else:
        _print(found)
    tried = load_plugins or name is not None
    unusable = tried and any(plugin.state != "loads" for plugin in found)
    ctx.exit(ExitCode.UNFIT_ENVIRONMENT if unusable else ExitCode.DONE)


def _print(found: Sequence[PluginState]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gpuproof.cli.report import standard_output
    from gpuproof.report.terminal import write

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("kind", "name", "package", "state"):
        table.add_column(title, overflow="fold")
    for plugin in found:
        package = f"{plugin.distribution} {plugin.version or ''}".strip()
        words = plugin.reason or plugin.summary
        state = f"[{STYLE[plugin.state]}]{plugin.state}[/]" + (f": {escape(words)}" if words else "")
        table.add_row(plugin.kind, escape(plugin.name), escape(package), state)
    write(standard_output(), table)
