"""The hosts of a run and how they are reached, as run.json keeps it, so that `--resume` needs no inventory.

Loads nothing heavy: asyncssh is for those who connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuproof.config.inventory import InventoryHost
from gpuproof.suites.base import HostPlace

CONNECT_TIMEOUT_S = 30.0
ATTEMPTS = 3
RETRY_DELAY_S = 5.0
"""Before the second attempt; doubled before each further one."""
LEASE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """How hosts are reached, the same for all of them."""

    key: str | None = None
    """Private key file; None uses the agent's keys and the usual files of ~/.ssh."""
    known_hosts: str | None = None
    """None is ~/.ssh/known_hosts."""
    accept_new: bool = False
    """Trust and store the key of a host that has none in known_hosts yet. A changed key is always refused."""
    max_workers: int | None = None
    """Hosts that work at the same time; None is all."""
    attempts: int = ATTEMPTS
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    retry_delay_s: float = RETRY_DELAY_S
    lease_s: float = LEASE_S
    """Seconds after which a host ends what a lost control side left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHosts:
    """The hosts of a run, and how they are reached."""

    hosts: tuple[InventoryHost, ...]
    currency: str
    options: SshOptions


def host_places(hosts: Iterable[InventoryHost]) -> list[HostPlace]:
    """Return hosts as places."""
    return [HostPlace(name=host.name, num_devices=host.gpus) for host in hosts]


def meeting_address(hosts: Sequence[InventoryHost]) -> str:
    """Return where the ranks of a job on these hosts meet: at the first, where there are several."""
    return (hosts[0].internal_address or hosts[0].address) if len(hosts) > 1 else "127.0.0.1"
