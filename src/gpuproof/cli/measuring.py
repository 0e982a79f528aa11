"""From words to a conclusion, for `gpuproof run` and `gpuproof load`: here, on hosts, or over them.

The inventory, the keys and the known hosts are read before the run directory is made and before the first
connection. run.json keeps the hosts and how they are reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.base.redaction import typed_command
from gpuproof.campaign.campaign import create_run, run_campaign
from gpuproof.cli.options import is_verbose, say
from gpuproof.cli.progress import progress_on
from gpuproof.cli.report import show_report
from gpuproof.config.load import LoadedConfig, load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.secrets import refuse_unset_variables
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.registry import HostChoice, open_launcher, resumed_site, site_type
from gpuproof.launchers.site import LaunchSite
from gpuproof.launchers.surroundings import is_attached
from gpuproof.processes.granted import memory_total_bytes
from gpuproof.records.collected import CaseRecords
from gpuproof.store.names import read_config
from gpuproof.store.run import RunDirectory, resume_command
from gpuproof.suites.base import HostPlace
from gpuproof.suites.forecast import forecast, planned_lines, ranks_text, time_line
from gpuproof.suites.registry import suite_on

MOST_FORESEEN = 100
"""Launches that an estimate beforehand looks at: more would keep a large sweep waiting."""


def begin_run(
    config: str,
    words: Sequence[str],
    *,
    hosts: HostChoice,
    python: str | None,
    as_json: bool,
    command: str = "run",
) -> tuple[RunDirectory, ExitCode]:
    """Make a new run, measure, and show what it ends with.

    Raises:
        UsageError: the inventory, a key or the recipe is wrong; nothing was connected to.
    """
    loaded, site = plan_run(config, words, hosts=hosts, python=python)
    site.follow(loaded.config)
    with _opened(site, many_launches=loaded.config.suite is not None) as launcher:
        places = launcher.places() or site.places()
        for line in _forecast(loaded.config, places, site):
            say(line, err=True)
        directory = create_run(
            loaded.config,
            origins=loaded.origins,
            source=loaded.source,
            places=places,
            described={**site.described(), "command": typed_command()},
        )
        return directory, measure(directory, launcher, as_json=as_json, command=command)


def _forecast(
    config: RunConfig, places: Sequence[HostPlace], site: LaunchSite, *, with_until: bool = True
) -> tuple[str, ...]:
    """Say what the launches that are known by now take at least, or what is planned for them."""
    suite = suite_on(config, places)
    state = suite.begin(config, places)
    remaining = suite.remaining(state)
    return forecast(
        remaining if with_until else replace(remaining, until=None),
        tuple(islice(suite.next(state, {}, None), MOST_FORESEEN)),
        hosts_at_once=len(places) * config.cases.parallel or None,
        host_memory_bytes=memory_total_bytes() if site.is_here else None,
    )


def finish_run(
    directory: RunDirectory,
    *,
    hosts: HostChoice,
    python: str | None,
    retry_failed: bool,
    as_json: bool,
    command: str = "run",
    again: Callable[[CaseRecords], bool] | None = None,
) -> ExitCode:
    """Finish a run where it was begun; launches of which `again` says so are launched again.

    Raises:
        UsageError: other hosts are named.
    """
    site = resumed_site(directory, hosts, python=python)
    if site.is_here:
        refuse_unset_variables(read_config(directory), os.environ)
    with _opened(site) as launcher:
        return measure(
            directory, launcher, retry_failed=retry_failed, as_json=as_json, command=command, again=again
        )


def measure(
    directory: RunDirectory,
    launcher: Launcher,
    *,
    retry_failed: bool = False,
    as_json: bool,
    command: str = "run",
    again: Callable[[CaseRecords], bool] | None = None,
) -> ExitCode:
    """Run the campaign of a run directory and show what it ends with."""
    say(f"Results go to {directory.root}", err=True)
    config = read_config(directory)
    places = launcher.places()  # none where a queue has them
    is_one_host = bool(places) and (config.distributed.nodes > 1 or places[0].name == "")
    one_at_a_time = is_one_host and config.cases.parallel == 1
    try:
        with progress_on(one_at_a_time=one_at_a_time) as progress:
            concluded = run_campaign(
                directory, launcher=launcher, progress=progress, retry_failed=retry_failed, again=again
            )
    except KeyboardInterrupt:
        resume = resume_command(directory.root, command=command)
        click.echo(f"Interrupted. What was measured is kept; go on with: {resume}", err=True)
        return ExitCode.INTERRUPTED
    show_report(concluded, as_json=as_json)
    return ExitCode(concluded.result.exit_code)


@contextmanager
def _opened(site: LaunchSite, *, many_launches: bool = False) -> Iterator[Launcher]:
    """Give the launcher of a site, and say in the end what a person should know of it."""
    with open_launcher(site, many_launches=many_launches) as launcher:
        yield launcher
        for note in launcher.notes():
            say(note, err=True)


def resumed(path: Path, config: str | None, words: Sequence[str]) -> RunDirectory:
    """Open the run to finish.

    Raises:
        UsageError: there is none, or something else was asked for with it.
    """
    if config is not None or words:
        raise UsageError(
            "a resumed run goes on with its own config",
            place="--resume",
            next_step="Leave CONFIG and all settings out, or start a new run",
        )
    if is_attached(os.environ):
        raise UsageError(
            "a run cannot be resumed under a launcher of yours: the other ranks would wait for a case "
            "that may be done",
            place="--resume",
            next_step="Start a new run",
        )
    return RunDirectory.open(path)


def plan_run(
    config: str, words: Sequence[str], *, hosts: HostChoice, python: str | None
) -> tuple[LoadedConfig, LaunchSite]:
    """Read where it is to run, and the recipe.

    Raises:
        UsageError: one is wrong, or this recipe cannot be run there.
    """
    site = site_type(hosts.launcher).chosen(hosts, python=python)
    return load_config(config, [*words, *site.words(hosts)], facts=site.facts(hosts)), site


def show_plan(
    config: str,
    words: Sequence[str],
    *,
    hosts: HostChoice,
    python: str | None,
    writes: Iterable[Path | None] = (),
    commands_of: Callable[[RunConfig], Iterable[str]] | None = None,
) -> ExitCode:
    """Say what would run, where, for how long, and what it would write (`writes` too); start nothing.

    With --verbose standard output has what would be started, by `commands_of` or as the launcher has it.

    Raises:
        UsageError: the run would be refused.
    """
    loaded, site = plan_run(config, words, hosts=hosts, python=python)
    places = site.places()
    suite = suite_on(loaded.config, places)
    run = Path(loaded.config.run.save_dir, loaded.config.run.experiment_name, "RUN_ID")
    state = suite.begin(loaded.config, places)
    cases = tuple(suite.next(state, {}, None))
    remaining = suite.remaining(state)
    files = [run, *filter(None, writes)]
    lines = [
        *planned_lines(loaded.config, suite, cases, remaining),
        *(_forecast(loaded.config, places, site, with_until=False) or (time_line(remaining),)),
        f"where: {site.text}{ranks_text(loaded.config, suite, cases)}",
        f"writes: {', '.join(map(str, files))}",
        *(f"missing: {cause}" for cause in site.missing()),
    ]
    later = remaining.num_launches - len(cases)
    started = site.shown(cases, run) if commands_of is None else commands_of(loaded.config)
    print_plan(lines, started, what=site.starts, later=max(0, later) if commands_of is None else 0)
    return ExitCode.DONE


def print_plan(
    lines: Iterable[str], started: Iterable[str], *, what: str = "commands", later: int = 0
) -> None:
    """Print what would be done; with --verbose what would be started instead, and all else beside it.

    `started` is `what`; `later` launches are not in it, since they begin once these have ended.
    """
    texts, verbose = tuple(started), is_verbose()
    for line in lines:
        say(line, err=verbose)
    if not verbose:
        click.echo(f"Nothing was started. With --verbose it prints the {what}.")
        return
    for text in texts:
        click.echo(text, nl=False)
    if later:
        click.echo(f"{later:,} more launches follow once these have ended.", err=True)
