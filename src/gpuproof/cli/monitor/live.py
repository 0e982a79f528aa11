"""`gpuproof monitor live` and `devices`: current GPU activity, here or on many hosts, and GPU details."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, UsageError
from gpuproof.cli.monitor.view import interval_option, records_of, require
from gpuproof.cli.options import PlacedCommand, host_options, json_option

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice
    from gpuproof.observe.live import Sources

PIPE_WIDTH = 120
"""Width in columns of a single reading when not writing to a terminal."""


@click.command("live", cls=PlacedCommand)
@interval_option
@click.option("--devices", metavar="0,2", help="Physical indices to show, e.g. 0,2 (default: all).")
@click.option("--once", is_flag=True, help="Print the readings once, as text, and exit.")
@host_options
@click.argument("source", required=False)
@click.pass_context
def live(
    ctx: click.Context,
    *,
    interval: float,
    devices: str | None,
    once: bool,
    hosts: HostChoice,
    source: str | None,
) -> None:
    """Watch GPUs and the host in the terminal; q quits, and a digit enlarges one GPU.

    With --on ssh:FILE, show the GPUs of all hosts in an inventory, those with problems first; h switches
    between hosts. s sorts the processes, / filters them. SOURCE is a recording in progress, which is
    followed, or - for records on standard input; without SOURCE, a sampler is started.

    \b
    Example:
      gpuproof monitor live --interval 0.5
      gpuproof monitor live --on ssh:cluster.json
      gpuproof monitor live --once | grep -v idle
      ssh NODE python3 gpuproof-node.pyz sample | gpuproof monitor live -
    """  # noqa: D301  # click reads the backspace character
    if not once:
        require("textual", "live")
        if not sys.stdout.isatty():
            raise UsageError(
                "needs a terminal, and standard output is not one",
                place="monitor live",
                next_step="Use --once, or `gpuproof monitor record` to write readings to a file or pipe",
            )
    with _sources(source, hosts, interval=interval, devices=devices, is_drawn=not once) as sources:
        if once:
            ctx.exit(_print_once(sources))
        from gpuproof.observe.live import run_live

        run_live(sources)


@contextmanager
def _sources(
    source: str | None, hosts: HostChoice, *, interval: float, devices: str | None, is_drawn: bool
) -> Iterator[Sources]:
    """Provide the records from this machine, from a recording, or from each host.

    Raises:
        UsageError: both a source and hosts are given, or the hosts are known only to a scheduler.
    """
    from gpuproof.launchers.registry import site_type

    if not hosts.are_named:
        from gpuproof.observe.stream import keys_from_terminal

        pipe = keys_from_terminal() if source == "-" and is_drawn else None
        yield {"": records_of(source, interval=interval, devices=devices, processes="details", pipe=pipe)}
        return
    site = site_type(hosts.launcher)
    if source is not None or not site.can_sample:
        raise UsageError(
            "shows hosts that accept logins, and cannot show a recording at the same time",
            place="monitor live",
            next_step="Write --on ssh:FILE, and omit SOURCE",
        )
    from gpuproof.observe.stream import sampler_words

    words = sampler_words(interval_s=interval, devices=devices, processes="details")
    with site.chosen(hosts, python=None).sampled(words) as sources:
        yield sources


def _print_once(sources: Sources) -> int:
    from gpuproof.observe.live_once import look, written

    states, failures = look(sources)
    if failures and not states and len(failures) == 1:
        raise next(iter(failures.values()))
    width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    click.echo(written(states, failures, width=width, colour=sys.stdout.isatty()), nl=False)
    return int(ExitCode.UNFIT_ENVIRONMENT if failures else ExitCode.DONE)


@click.command("devices")
@json_option
def devices(*, as_json: bool) -> None:
    """Print static GPU properties (limits, clocks, memory, firmware, links), and list missing ones.

    \b
    Example:
      gpuproof monitor devices --json
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.observe.live_once import facts_json, facts_text
    from gpuproof.records.readings import Recording

    records = records_of(None, interval=1.0, devices=None, processes="ids")
    with closing(records):
        header = next((record for record in records if isinstance(record, Recording)), None)
    if header is None:
        raise EnvironmentUnfitError("the sampler reported nothing", place="monitor devices")
    click.echo(json.dumps(facts_json(header), indent=2) if as_json else facts_text(header))
