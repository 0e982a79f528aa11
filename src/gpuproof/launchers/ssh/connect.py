"""How is a host reached? Through its jump host if it has one, with its key, at most so many at a time.

In: hosts and options. Out: open asyncssh connections, or a `HostError` that says why not. What may pass
(a refused connection, a time-out) is tried again after a growing delay; what will not (a wrong host key, a
refused login) is not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.base import HostError
from gpuproof.launchers.ssh.credentials import AskPassphrase, key_files, load_keys, public_half
from gpuproof.launchers.ssh.host_keys import SSH_PORT, HostKeys
from gpuproof.launchers.ssh.site import SshOptions

log = logging.getLogger(__name__)

HANDSHAKES_AT_ONCE = 16
"""Each costs both sides processor time, and sshd begins to drop them at 10 from one address by default
(MaxStartups 10:30:100): the attempts after a delay are for those."""
KEEPALIVES = 2
"""Unanswered ones after which a connection is lost; they are spread over two thirds of the lease."""
CIPHERS = (
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),  # done by the processor's own instructions
    *("chacha20-poly1305@openssh.com", "aes256-ctr", "aes192-ctr", "aes128-ctr"),
)


class Connector:
    """Opens connections. Made before the event loop runs, so that bad keys are told before any attempt."""

    def __init__(
        self, hosts: Iterable[InventoryHost], options: SshOptions, *, ask: AskPassphrase | None = None
    ) -> None:
        """Read keys and known hosts.

        Raises:
            UsageError: a key or the known hosts cannot be read.
        """
        self._options = options
        self._keys = load_keys(options.key, hosts, ask=ask)
        path = Path(options.known_hosts or "~/.ssh/known_hosts").expanduser()
        self.host_keys = HostKeys(path, accept_new=options.accept_new)
        self._handshakes = asyncio.Semaphore(HANDSHAKES_AT_ONCE)
        self._jumps: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    async def connect(self, host: InventoryHost) -> asyncssh.SSHClientConnection:
        """Open a connection to a host.

        Raises:
            HostError: it cannot be reached or trusted, or refuses the login.
        """
        delay_s = self._options.retry_delay_s
        for attempt in range(1, self._options.attempts + 1):
            target, tunnel = host, None
            try:
                if host.jump is not None:
                    target = _jump_host(host)
                    tunnel = await self._jump(target, host.jump)
                    target = host
                return await self._open(host, tunnel)
            except (OSError, asyncssh.Error) as error:  # an attempt is what takes long
                if attempt == self._options.attempts or not _may_pass(error):
                    raise self._explained(error, host, target, attempt) from error
                log.info("%s: attempt %d failed (%s), next in %g s", host.name, attempt, error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s *= 2
        raise AssertionError("there is at least one attempt")

    async def _open(
        self, host: InventoryHost, tunnel: asyncssh.SSHClientConnection | None
    ) -> asyncssh.SSHClientConnection:
        options = {**self._common(host), **self._identity(key_files(host, self._options.key))}
        async with self._handshakes:
            connecting = asyncssh.connect(host.address, host.port, tunnel=tunnel, **options)
            return await asyncio.wait_for(connecting, self._options.connect_timeout_s)

    def _common(self, host: InventoryHost) -> dict[str, Any]:
        interval_s = self._options.lease_s * 2 / 3 / KEEPALIVES
        return {
            "config": None,  # it can switch the check of host keys off; config.ssh_config reads what is taken
            "known_hosts": self.host_keys.trusted,
            "client_factory": self.host_keys.client,
            "encryption_algs": CIPHERS,
            "keepalive_interval": interval_s,
            "keepalive_count_max": KEEPALIVES,
            "login_timeout": self._options.connect_timeout_s,
            "preferred_auth": "publickey",
            **({"username": host.user} if host.user else {}),
        }

    def _identity(self, paths: Sequence[str]) -> dict[str, Any]:
        if not paths:
            return {}
        keys = [self._keys[path] for path in paths]
        of_agent = [str(public_half(Path(path).expanduser())) for path in paths if self._keys[path] is None]
        agent = {"agent_identities": of_agent} if of_agent else {"agent_path": None}
        return {"client_keys": [key for key in keys if key is not None], **agent}

    async def _jump(self, jump_host: InventoryHost, words: str) -> asyncssh.SSHClientConnection:
        """Return the connection to a jump host, which all hosts behind it share."""
        task = self._jumps.get(words)
        if task is None or (task.done() and (task.exception() is not None or task.result().is_closed())):
            task = asyncio.ensure_future(self._open(jump_host, None))
            self._jumps[words] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close the connections to jump hosts."""
        for task in self._jumps.values():
            if task.done() and task.exception() is None:
                task.result().close()

    def _explained(
        self, error: Exception, host: InventoryHost, target: InventoryHost, attempt: int
    ) -> HostError:
        cause, next_step = _words(error, target, self.host_keys)
        through = "on the way to it, " if target is not host else ""
        tried = f" ({attempt} attempts)" if attempt > 1 else ""
        return HostError(f"{through}{cause}{tried}", host=host.name, stage="setup", next_step=next_step)


def _jump_host(host: InventoryHost) -> InventoryHost:
    user, _, rest = str(host.jump).rpartition("@")
    address, _, port = rest.partition(":")
    return InventoryHost(
        name=rest,
        address=address,
        place=host.place,
        port=int(port or SSH_PORT),
        user=user or host.user,
        key=host.key,
    )


def _may_pass(error: Exception) -> bool:
    lasting = (asyncssh.HostKeyNotVerifiable, asyncssh.PermissionDenied, asyncssh.KeyExchangeFailed)
    return not isinstance(error, (*lasting, socket.gaierror))


def _words(error: Exception, host: InventoryHost, keys: HostKeys) -> tuple[str, str | None]:
    """Say in words why a host cannot be used, and what to do."""
    where = f"{host.address} port {host.port}"
    if isinstance(error, (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed)):
        if keys.knows(host.address, host.address, host.port):
            cause = (
                f"the key of {where} is not the one in {keys.path}: another machine may answer in its place"
            )
            return cause, "Ask who runs the host; if its key was changed on purpose, remove the old line"
        return (
            f"the key of {where} is not in {keys.path}",
            f"Add it once you have compared it (ssh-keyscan -p {host.port} {host.address}), "
            "or trust new hosts with --ssh-accept-new",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return f"{where} refuses the login{_as(host)}", "Check user and key: --username, --ssh-key"
    if isinstance(error, TimeoutError):
        return f"no answer from {where} in time", "Check address and firewall, or raise --connect-timeout"
    if isinstance(error, socket.gaierror):
        return f"no such host: {host.address}", None
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error) or type(error).__name__
    return f"cannot connect to {where}: {reason}", None


def _as(host: InventoryHost) -> str:
    return f" of {host.user}" if host.user else ""
