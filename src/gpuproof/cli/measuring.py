"""From words to a conclusion, for `gpuproof run` and `gpuproof load`: here, on hosts, or over them.

The inventory, the keys and the known hosts are read before the run directory is made and before the first
connection. run.json keeps the hosts and how they are reached.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import click

from gpuproof.campaign import create_run, run_campaign
from gpuproof.cli.clusters.kubernetes_site import (
    changed_options,
    described_options,
    kept_options,
    pinned_places,
    read_options,
    show_manifests,
)
from gpuproof.cli.clusters.slurm_site import (
    changed_site,
    described_site,
    kept_site,
    read_site,
    show_jobs,
    site_places,
    site_words,
)
from gpuproof.cli.host_options import HostChoice
from gpuproof.cli.options import say
from gpuproof.cli.progress import progress_on
from gpuproof.cli.report import show_report
from gpuproof.config.inventory import Inventory, InventoryHost, load_inventory
from gpuproof.config.load import LoadedConfig, load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.config.rules.secrets import refuse_unset_variables
from gpuproof.errors import ExitCode, UsageError
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.commands import EXAMPLE_PORT, INSTALLED_WORKER, NodeSide, Rendezvous, commands_for
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.local.attached import become_follower
from gpuproof.launchers.registry import open_launcher
from gpuproof.launchers.slurm.site import SlurmSite
from gpuproof.launchers.ssh.site import SshHosts, SshOptions, host_places, meeting_address
from gpuproof.launchers.surroundings import is_attached, is_follower
from gpuproof.processes.processors import memory_total_bytes
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.store.description import HOSTS, KUBERNETES, SLURM, read_config
from gpuproof.store.run import RunDirectory, resume_command
from gpuproof.suites.base import THIS_MACHINE, HostPlace
from gpuproof.suites.forecast import forecast, planned
from gpuproof.suites.registry import suite_on

Where = SshHosts | SlurmSite | KubernetesOptions
"""Where a run takes place that is not this machine."""
MOST_FORESEEN = 100
"""Launches that an estimate beforehand looks at: more would keep a large sweep waiting."""
_LAUNCHERS = {SshHosts: "ssh", SlurmSite: "slurm", KubernetesOptions: "kubernetes"}


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
    loaded, where = plan_run(config, words, hosts=hosts, python=python)
    if where is None and is_follower(os.environ):
        become_follower(loaded.config)
    with _opened(where, python, many_launches=loaded.config.suite is not None) as launcher:
        places = launcher.places() or _places(where)
        for line in _forecast(loaded.config, places, where):
            say(line, err=True)
        directory = create_run(
            loaded.config,
            origins=loaded.origins,
            source=loaded.source,
            places=places,
            described=_described(where),
        )
        return directory, measure(directory, launcher, as_json=as_json, command=command)


def _forecast(config: RunConfig, places: Sequence[HostPlace], where: Where | None) -> tuple[str, ...]:
    """Say what the launches that are known by now take at least, or what is planned for them."""
    suite = suite_on(config, places)
    state = suite.begin(config, places)
    remaining = suite.remaining(state)
    return planned(remaining) or forecast(
        tuple(islice(suite.next(state, {}, None), MOST_FORESEEN)),
        one_by_one=where is None and config.cases.parallel == 1,
        host_memory_bytes=memory_total_bytes() if where is None else None,
        num_launches=remaining.num_launches,
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
        UsageError: other hosts are named, or it was no run on hosts.
    """
    kept = directory.description()
    is_same = (hosts.slurm is not None and SLURM in kept) or (
        hosts.kubernetes is not None and KUBERNETES in kept
    )
    is_again = is_same and not hosts.one_job
    if hosts.are_named and not is_again:
        raise UsageError(
            "a resumed run goes on with its own hosts",
            place="--resume",
            next_step="Leave --deployment-file, --on and --one-job out, or start a new run",
        )
    where = _kept(directory)
    if where is None:
        refuse_unset_variables(read_config(directory), os.environ)
    if isinstance(where, SlurmSite):
        where = changed_site(where, hosts, python=python)
    if isinstance(where, KubernetesOptions):
        where = changed_options(where, hosts)
    with _opened(where, python) as launcher:
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
    is_one_job = read_config(directory).distributed.nodes > 1
    places = launcher.places()  # none where a queue has them
    one_at_a_time = bool(places) and (is_one_job or places[0].name == "")
    one_at_a_time = one_at_a_time and read_config(directory).cases.parallel == 1
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
def _opened(where: Where | None, python: str | None, *, many_launches: bool = False) -> Iterator[Launcher]:
    """Give the launcher for these hosts, for a cluster, or for this machine."""
    here = "attached" if is_attached(os.environ) else "local"
    name = here if where is None else _LAUNCHERS[type(where)]
    given: dict[str, Any] = {} if where is None else {"hosts" if name == "ssh" else name: where}
    with open_launcher(name, python=python, many_launches=many_launches, **given) as launcher:
        yield launcher
        for note in launcher.notes():
            say(note, err=True)


def _described(where: Where | None) -> dict[str, Any] | None:
    """Return what run.json keeps of where a run takes place."""
    if where is None:
        return None
    if isinstance(where, KubernetesOptions):
        return described_options(where)
    return described_site(where) if isinstance(where, SlurmSite) else {HOSTS: to_json(where)}


def _kept(directory: RunDirectory) -> Where | None:
    """Return where a run takes place, as its run.json says."""
    description, place = directory.description(), str(directory.root / "run.json")
    if SLURM in description:
        return kept_site(description)
    if KUBERNETES in description:
        return kept_options(description)
    kept = description.get(HOSTS)
    return None if kept is None else from_json(SshHosts, kept, place=place)


def _places(where: Where | None) -> Sequence[HostPlace]:
    if where is None:
        return THIS_MACHINE
    if isinstance(where, KubernetesOptions):
        return pinned_places(where)
    return site_places(where) if isinstance(where, SlurmSite) else host_places(where.hosts)


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
) -> tuple[LoadedConfig, Where | None]:
    """Read the recipe, and the hosts or the cluster that is to run it if any is named.

    Raises:
        UsageError: one is wrong, or this recipe cannot be run on these hosts.
    """
    if not hosts.are_named:
        facts = Facts(hosts=(), is_attached=is_attached(os.environ), environment=os.environ)
        return load_config(config, words, facts=facts), None
    if hosts.slurm is not None:
        site = read_site(hosts, python=python)
        facts = Facts(hosts=None)
        return load_config(config, [*words, *site_words(hosts, site)], facts=facts), site
    if hosts.kubernetes is not None:
        options = read_options(hosts, python=python)
        return load_config(config, words, facts=Facts(hosts=None)), options
    remote = read_hosts(hosts, python=python)
    facts = Facts(hosts=remote.hosts, is_one_job=hosts.one_job)
    return load_config(config, [*words, *_words_for(hosts, remote)], facts=facts), remote


def read_hosts(choice: HostChoice, *, python: str | None) -> SshHosts:
    """Read the hosts that the options name.

    Raises:
        UsageError: the inventory is wrong, or there is none.
    """
    if choice.inventory is None:
        raise UsageError(
            "the hosts of the one job are not given",
            place="--one-job",
            next_step="Name them: --deployment-file FILE",
        )
    inventory = _with_addresses(load_inventory(choice.inventory))
    hosts = tuple(
        replace(
            host,
            user=host.user or choice.username,
            key=_absolute(host.key),
            python=host.python or python or "python3",
        )
        for host in inventory.hosts
    )
    options = SshOptions(
        key=_absolute(choice.key),
        known_hosts=_absolute(choice.known_hosts),
        accept_new=choice.accept_new,
        max_workers=choice.max_workers,
        attempts=choice.attempts,
        connect_timeout_s=choice.connect_timeout_s,
        lease_s=choice.lease_s,
    )
    return SshHosts(hosts=hosts, currency=inventory.currency, options=options)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _with_addresses(inventory: Inventory) -> Inventory:
    """Ask the provider for the addresses that the file does not give."""
    unknown = [host for host in inventory.hosts if not host.address]
    if not unknown:
        return inventory
    from gpuproof.cloud.lambda_cloud import fetch_addresses

    known = fetch_addresses([host.instance_id or "" for host in unknown], place=unknown[0].place)
    hosts = (
        host if host.address else replace(host, address=known[host.instance_id or ""])
        for host in inventory.hosts
    )
    return replace(inventory, hosts=tuple(hosts))


def _words_for(choice: HostChoice, remote: SshHosts) -> list[str]:
    """Return the config words that the choice of hosts stands for."""
    if not choice.one_job:
        return []
    words = [f"--distributed.nodes={len(remote.hosts)}"]
    gpus = {host.gpus for host in remote.hosts}
    same = next(iter(gpus)) if len(gpus) == 1 else None  # a rule of the recipe refuses others
    return words if same is None else [*words, f"--distributed.nproc={same}"]


def show_commands(config: str, words: Sequence[str], *, hosts: HostChoice, python: str | None) -> None:
    """Print what would be started, on which host; start nothing.

    Raises:
        UsageError: the run would be refused.
    """
    loaded, remote = plan_run(config, words, hosts=hosts, python=python)
    if remote is None and python is not None and shutil.which(python) is None:
        raise UsageError("there is no such program", place="--python", next_step="Give the path of a Python")
    places = _places(remote)
    suite = suite_on(loaded.config, places)
    run = Path(loaded.config.run.save_dir, loaded.config.run.experiment_name, "RUN_ID")
    state = suite.begin(loaded.config, places)
    cases = tuple(suite.next(state, {}, None))
    if isinstance(remote, SlurmSite):
        show_jobs(cases, remote, run)
    elif isinstance(remote, KubernetesOptions):
        show_manifests(cases, remote, run)
    else:
        for case in cases:
            _show(case, remote, run, python)
    for line in _forecast(loaded.config, places, remote):
        click.echo(line, err=True)
    if (later := suite.remaining(state).num_launches - len(cases)) > 0:
        click.echo(f"{later:,} more launches follow once these have ended.", err=True)
    if loaded.config.search.kind is not None:
        click.echo("What the search launches next depends on what these give.", err=True)


def _show(case: Case, remote: SshHosts | None, run: Path, python: str | None) -> None:
    if remote is None:
        _show_here(case, run, python)
        return
    by_name = {host.name: host for host in remote.hosts}
    names = case.placement.hosts or list(by_name)
    _show_on(case, [by_name[name] for name in names][: case.placement.num_hosts])


def _show_here(case: Case, run: Path, python: str | None) -> None:
    attached = 0 if is_attached(os.environ) else None
    own = INSTALLED_WORKER if python is None else ("DIRECTORY/gpuproof-node.pyz",)
    node = NodeSide(python=python or sys.executable, worker=own, run=str(run), host="HOST", pid=os.getpid())
    port = None if attached is not None or case.placement.num_ranks == 1 else EXAMPLE_PORT
    click.echo(
        shlex.join(commands_for(case, node, Rendezvous(port=port), attached_launch=attached).started[0])
    )


def _show_on(case: Case, hosts: Sequence[InventoryHost]) -> None:
    port = None if case.placement.num_ranks == 1 else EXAMPLE_PORT
    for rank, host in enumerate(hosts):
        worker = ("DIRECTORY/gpuproof-node.pyz",)
        node = NodeSide(
            python=host.python or "python3", worker=worker, run="DIRECTORY/run", host="HOST", pid=0
        )
        rendezvous = Rendezvous(node_rank=rank, address=meeting_address(hosts), port=port)
        user = f"{host.user}@" if host.user else ""
        through = f" through {host.jump}" if host.jump else ""
        say(f"# on {host.name} ({user}{host.address}:{host.port}{through})")
        for command in commands_for(case, node, rendezvous).started:
            click.echo(shlex.join(command))
