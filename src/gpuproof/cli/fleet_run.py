"""Running on hosts over SSH, for the commands that can: from a file of hosts to a conclusion.

The inventory, the keys and the known hosts are read before the run directory is made and before the first
connection. run.json keeps the hosts and how they are reached, so that `--resume` needs none of it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING

import click

from gpuproof.cli.fleet_options import FLEET, HostChoice
from gpuproof.cli.progress import LineProgress, progress_on
from gpuproof.config.inventory import Host, Inventory, load_inventory
from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.launchers.ssh.hosts import HostError, SshOptions
from gpuproof.records.codec import from_json, to_json
from gpuproof.report.fleet_story import is_fleet
from gpuproof.store.run import RunDirectory

if TYPE_CHECKING:
    from gpuproof.campaign import Progress
    from gpuproof.launchers.ssh.launcher import SshFleet
    from gpuproof.records.case import Case
    from gpuproof.report.conclude import Conclusion


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """The hosts of a run, and how they are reached."""

    hosts: tuple[Host, ...]
    currency: str
    options: SshOptions


def remote_of(choice: HostChoice, *, python: str | None) -> Remote:
    """Read the hosts that the options name.

    Raises:
        UsageError: the inventory is wrong, or there is none.
    """
    if choice.inventory is None:
        raise UsageError(
            "one job over which hosts?", place="--one-job", next_step="Name them: --deployment-file FILE"
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
    return Remote(hosts=hosts, currency=inventory.currency, options=options)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _with_addresses(inventory: Inventory) -> Inventory:
    """Ask the provider for the addresses that the file does not give."""
    unknown = [host for host in inventory.hosts if not host.address]
    if not unknown:
        return inventory
    from gpuproof.cloud.lambda_cloud import addresses_of

    known = addresses_of([host.instance_id or "" for host in unknown], place=unknown[0].place)
    hosts = (
        host if host.address else replace(host, address=known[host.instance_id or ""])
        for host in inventory.hosts
    )
    return replace(inventory, hosts=tuple(hosts))


def words_for(choice: HostChoice, remote: Remote) -> list[str]:
    """Return the config words that the choice of hosts stands for.

    Raises:
        UsageError: hosts of one job have different numbers of GPUs.
    """
    if not choice.one_job:
        return []
    words = [f"--distributed.nodes={len(remote.hosts)}"]
    gpus = {host.gpus for host in remote.hosts}
    if len(gpus) > 1:
        raise UsageError(
            "the hosts have different numbers of GPUs, and one job starts as many ranks on each",
            place=remote.hosts[0].place,
            next_step="Give all hosts the same `gpus`",
        )
    (number,) = gpus
    return words if number is None else [*words, f"--distributed.nproc={number}"]


def check_nodes(nodes: int, remote: Remote) -> None:
    """Refuse one job over more hosts than there are.

    Raises:
        UsageError: there are fewer hosts than `distributed.nodes` says.
    """
    available = len(remote.hosts)
    if nodes > available:
        raise UsageError(
            f"one job over {nodes} hosts, and there are {available}",
            place="distributed.nodes",
            next_step="Name more hosts, or set it to their number",
        )


def keep_hosts(run: RunDirectory, remote: Remote) -> None:
    """Write the hosts of a run into its run.json."""
    fleet = {
        "hosts": to_json(remote.hosts),
        "currency": remote.currency,
        "options": to_json(remote.options),
    }
    run.write_description({**run.description(), FLEET: fleet})


def kept_hosts(run: RunDirectory) -> Remote:
    """Read back the hosts of a run."""
    fleet = run.description()[FLEET]
    place = str(run.root / "run.json")
    return Remote(
        hosts=tuple(from_json(Host, host, place=place) for host in fleet["hosts"]),
        currency=str(fleet["currency"]),
        options=from_json(SshOptions, fleet["options"], place=place),
    )


@contextmanager
def open_fleet(remote: Remote) -> Iterator[SshFleet]:
    """Give the fleet, ready to connect.

    Raises:
        UsageError: a key or the known hosts cannot be read.
        EnvironmentUnfitError: asyncssh is not installed.
    """
    try:
        from gpuproof.launchers.ssh.launcher import SshFleet
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"hosts are reached with asyncssh, which is not here ({error})",
            next_step="pip install 'gpuproof[ssh]'",
        ) from error
    from gpuproof.launchers.archive import build_archive

    with TemporaryDirectory(prefix="gpuproof-") as folder:
        archive = build_archive(Path(folder) / "gpuproof-node.pyz").read_bytes()
    with SshFleet(remote.hosts, remote.options, archive=archive) as fleet:
        yield fleet
        for host, fingerprint in fleet.accepted_keys.items():
            click.echo(f"{host}: its key {fingerprint} was new and is trusted from now on", err=True)


def run_on(fleet: SshFleet, run: RunDirectory, *, retry_failed: bool) -> Conclusion:
    """Run the campaign of a run directory on its hosts.

    Raises:
        KeyboardInterrupt: Ctrl-C; all that came is kept.
    """
    from gpuproof.fleet_campaign import run_fleet, run_one_job

    if is_fleet(run.description()):
        return run_fleet(run, fleet=fleet, progress=HostLines(), retry_failed=retry_failed)
    with progress_on() as progress:
        return run_one_job(run, fleet=fleet, progress=progress, retry_failed=retry_failed)


class HostLines:
    """A line for each thing that a host does, with its name before it."""

    def __init__(self) -> None:
        self._lock = Lock()

    def on(self, host: str) -> Progress:
        """Return the lines of one host."""
        return LineProgress(before=f"{host}: ", say=self.says)

    def host_failed(self, error: HostError) -> None:
        """Say that a host is out."""
        self.says(f"{error.host}: failed at {error.stage}: {error.cause}")

    def says(self, line: str) -> None:
        """Say a line whole, whichever thread it comes from."""
        with self._lock:
            click.echo(line, err=True)


def print_commands(cases: Sequence[Case], remote: Remote) -> None:
    """Print what would be started on which host; start nothing."""
    import shlex

    from gpuproof.launchers.commands import NodeSide, Place, commands_of
    from gpuproof.suites.fleet import on_host

    for case in cases:
        nodes = case.placement.num_hosts
        first = remote.hosts[0]
        for rank, host in enumerate(remote.hosts[:nodes] if nodes > 1 else remote.hosts):
            own = case if nodes > 1 else on_host(case, host.name, nproc=host.gpus)
            alone = nodes == 1 and own.placement.ranks_per_host == 1
            place = Place(
                nodes=nodes,
                node_rank=rank if nodes > 1 else 0,
                address=(first.internal_address or first.address) if nodes > 1 else "127.0.0.1",
                port=None if alone else 29500,
            )
            node = NodeSide(
                python=host.python or "python3",
                archive="DIRECTORY/gpuproof-node.pyz",
                directory="DIRECTORY",
                host="HOST",
                pid=0,
            )
            click.echo(f"# on {host.name} ({_target(host)})")
            click.echo("\n".join(shlex.join(command) for command in commands_of(own, node, place)))


def _target(host: Host) -> str:
    user = f"{host.user}@" if host.user else ""
    through = f" through {host.jump}" if host.jump else ""
    return f"{user}{host.address}:{host.port}{through}"
