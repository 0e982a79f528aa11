"""From command to verdict for `gpuproof run` and `gpuproof load`: here, on hosts, or across them.

The inventory, the SSH keys and the known hosts are read before the run directory is created and before the
first connection is made. run.json stores the hosts and how to reach them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click

from gpuproof.base.errors import ExitCode, GpuproofError, UsageError
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
from gpuproof.store.names import read_config, read_suite
from gpuproof.store.run import RunDirectory, resume_command
from gpuproof.suites.base import HostPlace
from gpuproof.suites.forecast import forecast, planned_lines, ranks_text, time_line
from gpuproof.suites.registry import suite_on

MOST_FORESEEN = 100
"""Maximum number of launches estimated in advance; more launches would delay a large sweep."""


def begin_run(
    config: str,
    words: Sequence[str],
    *,
    hosts: HostChoice,
    python: str | None,
    as_json: bool,
    command: str = "run",
) -> tuple[RunDirectory, ExitCode]:
    """Start a new run, measure, and show the result.

    Raises:
        UsageError: the inventory, a key or the recipe is invalid; no connection was made.
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
    """Show the minimum time of the launches known so far, or the plan for them."""
    suite = suite_on(config, places)
    state = suite.begin(config, places)
    remaining = suite.remaining(state)
    return forecast(
        remaining if with_until else replace(remaining, until=None),
        tuple(islice(suite.planned(state), MOST_FORESEEN)),
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
    """Finish a run where it was started; also rerun the launches that `again` selects.

    Raises:
        UsageError: the given hosts are not the run's hosts.
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
    """Run the campaign of a run directory and show the result."""
    say(f"Results go to {directory.root}", err=True)
    config = read_config(directory)
    places = launcher.places()  # empty if launches are queued
    is_one_host = bool(places) and (config.distributed.nodes > 1 or places[0].name == "")
    one_at_a_time = is_one_host and config.cases.parallel == 1
    try:
        with progress_on(one_at_a_time=one_at_a_time) as progress:
            concluded = run_campaign(
                directory, launcher=launcher, progress=progress, retry_failed=retry_failed, again=again
            )
    except KeyboardInterrupt:
        if is_attached(os.environ) and (cause := _failure_elsewhere(directory)) is not None:
            click.echo(f"gpuproof: {cause}", err=True)
        resume = resume_command(directory.root, command=command)
        click.echo(f"Interrupted. What was measured is kept; resume with: {resume}", err=True)
        return ExitCode.INTERRUPTED
    show_report(concluded, as_json=as_json)
    return ExitCode(concluded.result.exit_code)


def _failure_elsewhere(directory: RunDirectory) -> str | None:
    """Return why another rank ended: torchrun then stops this one, which looks like an interruption."""
    from gpuproof.campaign.conclude import read_evidence
    from gpuproof.records.run import Failure

    try:
        launches = read_evidence(directory).launches
    except (GpuproofError, OSError):
        return None
    for failure in (failure for launch in launches for failure in launch.of(Failure)):
        if failure.rank is not None and failure.cause != "interrupted":
            step = f". {failure.next_step}" if failure.next_step else ""
            return f"rank {failure.rank} on {failure.host}: {failure.message}{step}."
    return None


@contextmanager
def _opened(site: LaunchSite, *, many_launches: bool = False) -> Iterator[Launcher]:
    """Provide a site's launcher; at the end, report what the user should know about it."""
    with open_launcher(site, many_launches=many_launches) as launcher:
        yield launcher
        for note in launcher.notes():
            say(note, err=True)


def resumed(
    path: Path, config: str | None, words: Sequence[str], *, command: str | None = None
) -> RunDirectory:
    """Open the run to be finished, by the command that started it if `command` is given.

    Raises:
        UsageError: there is no such run, another command started it, or other options were given together
            with it.
    """
    if config is not None or words:
        raise UsageError(
            "a resumed run uses its own config",
            place="--resume",
            next_step="Omit CONFIG and all settings, or start a new run",
        )
    if is_attached(os.environ):
        raise UsageError(
            "a run cannot be resumed under your own launcher: the other ranks would wait for a "
            "case that may be finished",
            place="--resume",
            next_step="Start a new run",
        )
    directory = RunDirectory.open(path)
    if command is not None and (started := read_suite(directory).command) != command:
        raise UsageError(
            f"this is not a run of gpuproof {command}",
            place=f"--resume {path}",
            next_step=f"Finish it with: gpuproof {started} --resume {path}",
        )
    return directory


def plan_run(
    config: str, words: Sequence[str], *, hosts: HostChoice, python: str | None
) -> tuple[LoadedConfig, LaunchSite]:
    """Read the recipe and where to run it.

    Raises:
        UsageError: the recipe or the location is invalid, or this recipe cannot run there.
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
    """Show what would run, where and for how long, and what it writes (with `writes`); start nothing.

    With --verbose, standard output shows what would be started, according to `commands_of` or the launcher.

    Raises:
        UsageError: the run would be rejected.
    """
    loaded, site = plan_run(config, words, hosts=hosts, python=python)
    places = site.places()
    suite = suite_on(loaded.config, places)
    run = Path(loaded.config.run.save_dir, loaded.config.run.experiment_name, "RUN_ID")
    state = suite.begin(loaded.config, places)
    cases = tuple(suite.planned(state))
    remaining = suite.remaining(state)
    files = [run, *filter(None, writes)]
    is_launched = site.is_here and is_attached(os.environ)
    ranks = "" if is_launched else ranks_text(loaded.config, suite, cases)
    lines = [
        *planned_lines(loaded.config, suite, cases, remaining),
        *(_forecast(loaded.config, places, site, with_until=False) or (time_line(remaining),)),
        f"where: {site.text}{ranks}",
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
    """Print what would be done (with --verbose, what would be started), and anything else on stderr.

    `what` describes the contents of `started`, which excludes the `later` launches: those start once the
    launches in `started` have finished.
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
        click.echo(f"{later:,} more launches follow once these have finished.", err=True)
