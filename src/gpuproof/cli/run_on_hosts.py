"""`gpuproof run` on other hosts: the same words, each host measured by itself or all as one job."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpuproof.campaign import create_run
from gpuproof.cli.fleet_options import HostChoice
from gpuproof.cli.fleet_run import (
    Remote,
    check_nodes,
    keep_hosts,
    kept_hosts,
    open_fleet,
    print_commands,
    remote_of,
    run_on,
    words_for,
)
from gpuproof.cli.report import show_report
from gpuproof.config.load import LoadedConfig, load_config
from gpuproof.errors import ExitCode, UsageError
from gpuproof.store import RunDirectory, resume_command
from gpuproof.suites.plan import is_sweep, next_cases


def run_on_hosts(
    config: str | None,
    words: Sequence[str],
    *,
    hosts: HostChoice,
    python: str | None,
    resume: RunDirectory | None,
    retry_failed: bool,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """Run, resume or show what would be run; return the exit code.

    Raises:
        UsageError: the inventory, a key or the recipe is wrong; nothing was connected to.
    """
    if resume is not None:
        return _campaign(resume, kept_hosts(resume), retry_failed=retry_failed, as_json=as_json)
    if config is None:
        raise click.UsageError("Missing CONFIG, a YAML file or the name of a recipe")
    remote = remote_of(hosts, python=python)
    loaded = load_config(config, [*words, *words_for(hosts, remote)])
    check_nodes(loaded.config.distributed.nodes, remote)
    if is_sweep(loaded.config):
        raise UsageError(
            "a sweep on several hosts has no report yet",
            place="--deployment-file",
            next_step="Run its points one by one on the hosts, or the sweep on one machine",
        )
    if dry_run:
        print_commands(next_cases(loaded.config, ()), remote)
        return ExitCode.DONE
    return _campaign(loaded, remote, retry_failed=retry_failed, as_json=as_json)


def _campaign(
    what: RunDirectory | LoadedConfig, remote: Remote, *, retry_failed: bool, as_json: bool
) -> ExitCode:
    """Run a campaign; keys are read before a new run gets its directory."""
    with open_fleet(remote) as fleet:
        directory = what if isinstance(what, RunDirectory) else _created(what, remote)
        click.echo(f"Results go to {directory.root}", err=True)
        try:
            conclusion = run_on(fleet, directory, retry_failed=retry_failed)
        except KeyboardInterrupt:
            resume = resume_command(directory.root)
            click.echo(f"Interrupted. What was measured is kept; go on with: {resume}", err=True)
            return ExitCode.INTERRUPTED
    show_report(conclusion.report, as_json=as_json)
    return conclusion.exit_code


def _created(loaded: LoadedConfig, remote: Remote) -> RunDirectory:
    directory = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
    keep_hosts(directory, remote)
    return directory
