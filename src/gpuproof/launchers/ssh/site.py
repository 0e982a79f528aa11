"""The hosts of a run and how to reach them, as stored in run.json for `--resume`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gpuproof.base import units
from gpuproof.base.outside import plain
from gpuproof.base.redaction import redacted
from gpuproof.config.inventory import Inventory, InventoryHost, load_inventory
from gpuproof.config.rules.base import Facts
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.commands import EXAMPLE_PORT, NodeSide, Rendezvous, commands_for
from gpuproof.launchers.registry import HostChoice
from gpuproof.launchers.site import LaunchSite
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json, to_json
from gpuproof.store import layout
from gpuproof.store.names import HOSTS
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace

if TYPE_CHECKING:
    from gpuproof.observe.stream import Records

CONNECT_TIMEOUT_S = 30.0
ATTEMPTS = 3
RETRY_DELAY_S = 5.0
"""Delay before the second connection attempt; it doubles before each further one."""
LEASE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """How to reach hosts; all hosts share these settings."""

    key: str | None = None
    """Private key file; None means the agent's keys and the default files in ~/.ssh."""
    known_hosts: str | None = None
    """The known hosts file; None means ~/.ssh/known_hosts."""
    accept_new: bool = False
    """Whether to trust and store the key of a host that is not in known_hosts yet. A changed key is always
    rejected."""
    max_workers: int | None = None
    """Maximum number of hosts used at the same time; None means all."""
    attempts: int = ATTEMPTS
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    retry_delay_s: float = RETRY_DELAY_S
    lease_s: float = LEASE_S
    """Seconds after losing the control side until a host cleans up what was left running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHosts(LaunchSite):
    """The hosts of a run and how to reach them."""

    launcher: ClassVar[str] = "ssh"
    libraries: ClassVar[Mapping[str, str]] = {"asyncssh": "ssh"}
    can_sample: ClassVar[bool] = True

    hosts: tuple[InventoryHost, ...]
    currency: str
    options: SshOptions

    @classmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Read the hosts from an inventory.

        Raises:
            UsageError: the inventory is invalid.
        """
        inventory = _with_addresses(load_inventory(choice.file, user=choice.options.get("username")))
        for note in inventory.notes:
            sys.stderr.write(f"gpuproof: {plain(note)}\n")
        hosts = tuple(
            replace(
                host,
                user=host.user or choice.options.get("username"),
                key=_absolute(host.key),
                python=host.python or python or "python3",
            )
            for host in inventory.hosts
        )
        names = {option.name for option in fields(SshOptions)} & choice.options.keys()
        options = SshOptions(**{name: choice.options[name] for name in names})
        options = replace(options, key=_absolute(options.key), known_hosts=_absolute(options.known_hosts))
        return cls(hosts=hosts, currency=inventory.currency, options=options)

    @classmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Load the hosts, and the Python to use on each."""
        del choice, python
        return from_json(cls, run.description()[HOSTS], place=str(run.root / layout.DESCRIPTION))

    @classmethod
    def device_numbers(cls, choice: HostChoice) -> Sequence[int | None]:
        """Return the number of devices on each host, according to its inventory.

        Raises:
            UsageError: the inventory is invalid.
        """
        return [host.gpus for host in load_inventory(choice.file, user=choice.options.get("username")).hosts]

    def words(self, choice: HostChoice) -> list[str]:
        """Return the hosts per job and, if all hosts have the same number of GPUs, the ranks per host."""
        if not choice.one_job:
            return []
        words = [f"--distributed.nodes={len(self.hosts)}"]
        gpus = {host.gpus for host in self.hosts}
        same = next(iter(gpus)) if len(gpus) == 1 else None  # the recipe's rules reject any other number
        return words if same is None else [*words, f"--distributed.nproc={same}"]

    def facts(self, choice: HostChoice) -> Facts:
        """Return the hosts."""
        return Facts(hosts=self.hosts, is_one_job=choice.one_job)

    def places(self) -> Sequence[HostPlace]:
        """Return the hosts in order."""
        return host_places(self.hosts)

    @property
    def text(self) -> str:
        """Describe the hosts."""
        return f"{units.first_of([host.name for host in self.hosts])}, over ssh"

    def described(self) -> dict[str, Any]:
        """Return the hosts and how to reach them."""
        return {HOSTS: to_json(self)}

    def shown(self, cases: Iterable[Case], run: Path) -> Iterator[str]:
        """Yield the command lines of each launch, for each of its hosts."""
        del run
        by_name = {host.name: host for host in self.hosts}
        for case in cases:
            names = case.placement.hosts or list(by_name)
            yield from _shown_on(case, [by_name[name] for name in names][: case.placement.num_hosts])

    def opened(
        self, *, environment: Mapping[str, str], many_launches: bool
    ) -> AbstractContextManager[Launcher]:
        """Return a launcher that connects to the hosts."""
        from gpuproof.launchers.ssh.launcher import SshLauncher

        del environment, many_launches
        return SshLauncher.opened(hosts=self)

    def sampled(self, words: Sequence[str]) -> AbstractContextManager[dict[str, Records]]:
        """Yield the records of a sampler on each host."""
        from gpuproof.launchers.ssh.sampled_hosts import sampled_hosts

        return sampled_hosts(self, words)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _with_addresses(inventory: Inventory) -> Inventory:
    """Ask the provider for addresses that are missing from the file."""
    unknown = [host for host in inventory.hosts if not host.address]
    if not unknown:
        return inventory
    from gpuproof.cloud.lambda_cloud import fetch_addresses

    addresses = fetch_addresses([host.instance_id or "" for host in unknown], place=unknown[0].place)
    hosts = (
        host if host.address else replace(host, address=addresses[host.instance_id or ""])
        for host in inventory.hosts
    )
    return replace(inventory, hosts=tuple(hosts))


def _shown_on(case: Case, hosts: Sequence[InventoryHost]) -> Iterator[str]:
    port = None if case.placement.num_ranks == 1 else EXAMPLE_PORT
    for rank, host in enumerate(hosts):
        worker = ("DIRECTORY/gpuproof-node.pyz",)
        python = host.python or "python3"
        node = NodeSide(python=python, worker=worker, run="DIRECTORY/run", host="HOST", pid=0)
        rendezvous = Rendezvous(node_rank=rank, address=meeting_address(hosts), port=port)
        user = f"{host.user}@" if host.user else ""
        through = f" through {host.jump}" if host.jump else ""
        title = f"# on {host.name} ({user}{host.address}:{host.port}{through})"
        yield f"{redacted(plain(title))}\n"
        for command in commands_for(case, node, rendezvous).started:
            yield f"{shlex.join(command)}\n"


def host_places(hosts: Iterable[InventoryHost]) -> list[HostPlace]:
    """Return each host as a HostPlace."""
    return [HostPlace(name=host.name, num_devices=host.gpus) for host in hosts]


def meeting_address(hosts: Sequence[InventoryHost]) -> str:
    """Return where the ranks of a job on these hosts rendezvous: the first host if there are several."""
    return (hosts[0].internal_address or hosts[0].address) if len(hosts) > 1 else "127.0.0.1"
