"""A recipe on other hosts, for `gpuproof run` and `gpuproof load`: each host by itself, or all as one job."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpuproof.campaign import create_run
from gpuproof.cli.fleet_options import HostChoice, is_of_hosts
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
from gpuproof.store.run import RunDirectory, resume_command
from gpuproof.suites.fleet import refuse_on_hosts
from gpuproof.suites.plan import next_cases


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
        return resume_on_hosts(resume, hosts=hosts, retry_failed=retry_failed, as_json=as_json)
    if config is None:
        raise click.UsageError("Missing CONFIG, a YAML file or the name of a recipe")
    loaded, remote = planned_on_hosts(config, words, hosts=hosts, python=python)
    if dry_run:
        print_commands(next_cases(loaded.config, ()), remote)
        return ExitCode.DONE
    _, code = measure_on_hosts(loaded, remote, as_json=as_json)
    return code


def planned_on_hosts(
    config: str, words: Sequence[str], *, hosts: HostChoice, python: str | None
) -> tuple[LoadedConfig, Remote]:
    """Read the hosts and the recipe that they are to run.

    Raises:
        UsageError: one is wrong, or this recipe cannot be run on these hosts.
    """
    remote = remote_of(hosts, python=python)
    loaded = load_config(config, [*words, *words_for(hosts, remote)])
    check_nodes(loaded.config.distributed.nodes, remote)
    refuse_on_hosts(loaded.config, gpus_are_given=any(host.gpus is not None for host in remote.hosts))
    return loaded, remote


def resume_on_hosts(
    run: RunDirectory, *, hosts: HostChoice, retry_failed: bool, as_json: bool, command: str = "run"
) -> ExitCode:
    """Finish a run on the hosts that it was begun on.

    Raises:
        UsageError: other hosts are named, or it was no run on hosts.
    """
    if hosts.are_named or not is_of_hosts(run.root):
        raise UsageError(
            "a resumed run goes on with its own hosts",
            place="--resume",
            next_step="Leave --deployment-file, --on and --one-job out, or start a new run",
        )
    _, code = measure_on_hosts(
        run, kept_hosts(run), retry_failed=retry_failed, as_json=as_json, command=command
    )
    return code


def measure_on_hosts(
    what: RunDirectory | LoadedConfig,
    remote: Remote,
    *,
    retry_failed: bool = False,
    as_json: bool,
    command: str = "run",
) -> tuple[RunDirectory, ExitCode]:
    """Run a campaign and show what it ends with; keys are read before a new run gets its directory.

    Raises:
        UsageError: a key or the known hosts cannot be read.
    """
    with open_fleet(remote) as fleet:
        directory = what if isinstance(what, RunDirectory) else _created(what, remote)
        click.echo(f"Results go to {directory.root}", err=True)
        try:
            conclusion = run_on(fleet, directory, retry_failed=retry_failed)
        except KeyboardInterrupt:
            resume = resume_command(directory.root, command=command)
            click.echo(f"Interrupted. What was measured is kept; go on with: {resume}", err=True)
            return directory, ExitCode.INTERRUPTED
    show_report(conclusion.report, as_json=as_json)
    return directory, conclusion.exit_code


def _created(loaded: LoadedConfig, remote: Remote) -> RunDirectory:
    directory = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
    keep_hosts(directory, remote)
    return directory
