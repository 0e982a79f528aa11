"""`gpuproof plugins`: list workloads, checks and suites, their packages, and whether they load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuproof.base.errors import ExitCode
from gpuproof.base.redaction import typed_command
from gpuproof.cli.options import json_option, print_json

if TYPE_CHECKING:
    from gpuproof.doctor.plugins import PluginState
    from gpuproof.records.page import Page, Tone

TONES: dict[str, Tone] = {"loads": "good", "broken": "bad", "duplicate": "bad", "not loaded": "faint"}


@click.command()
@click.argument("name", required=False)
@click.option("--load", "load_plugins", is_flag=True, help="Load each plug-in, and report whether it works.")
@json_option
@click.pass_context
def plugins(ctx: click.Context, name: str | None, *, load_plugins: bool, as_json: bool) -> None:
    """List workloads, checks and suites, each with its package.

    Without options, only metadata is read. With --load or a NAME, the part of each plug-in that does not use
    torch is imported. The exit code is 5 if a plug-in is unusable.
    """
    from gpuproof.doctor.plugins import list_plugins

    states = list_plugins(name=name, load_plugins=load_plugins or name is not None)
    if as_json:
        print_json(states)
    else:
        from gpuproof.cli.report import show_page

        show_page(page_of_plugins(states), is_list=True)
    tried = load_plugins or name is not None
    unusable = tried and any(plugin.state != "loads" for plugin in states)
    ctx.exit(ExitCode.UNFIT_ENVIRONMENT if unusable else ExitCode.DONE)


def page_of_plugins(states: Sequence[PluginState]) -> Page:
    """Lay out one line per plug-in."""
    from gpuproof.records.page import Cell, Page
    from gpuproof.records.page.tables import Column, table
    from gpuproof.store.provenance import of_command

    listed = table(
        "",
        states,
        Column.of("kind", lambda row: row.kind, align="left"),
        Column.of("name", lambda row: row.name, align="left", folds=True),
        Column.of("package", lambda row: f"{row.distribution} {row.version or ''}".strip(), align="left"),
        Column.of("state", lambda row: Cell(row.state, TONES[row.state]), align="left"),
        Column.of(
            "", lambda row: row.reason or row.summary or "", align="left", folds=True, is_optional=True
        ),
    )
    title, provenance = "Workloads, checks and suites", of_command(typed_command())
    return Page(title=title, verdict=None, sections=(listed,), provenance=provenance)
