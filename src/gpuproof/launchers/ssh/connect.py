"""How hosts are reached: via the jump host if any, with their key, a limited number at a time.

In: hosts, options, a known_hosts file in OpenSSH format, and the paths of private keys, which are read before
the first connection, so that an invalid key does not cost an attempt. Out: open asyncssh connections, or a
`HostError` with the reason. Problems that may be temporary (a refused connection, a time-out) are retried
after a growing delay; permanent ones (a wrong host key, a refused login) are not. A host with an unknown key
is trusted only on request; a host that presents a key other than the one in known_hosts is always rejected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from getpass import getpass
from pathlib import Path
from typing import Any

import asyncssh

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.files import read_plain
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.base import HostError
from gpuproof.launchers.ssh.site import SshOptions

log = logging.getLogger(__name__)
HANDSHAKES_AT_ONCE = 16
"""Maximum number of simultaneous handshakes. Each costs both sides CPU time, and by default sshd starts
dropping connections at 10 from one address (MaxStartups 10:30:100); later retries make up for those."""
KEEPALIVES = 2
"""Number of unanswered keepalives after which a connection counts as lost; they are spread over two thirds of
the lease."""
CIPHERS = (
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),  # accelerated by CPU instructions
    *("chacha20-poly1305@openssh.com", "aes256-ctr", "aes192-ctr", "aes128-ctr"),
)
SSH_PORT = 22
OTHERS = stat.S_IRWXG | stat.S_IRWXO
MAX_KEY_BYTES = 2**20
PUBLIC = ".pub"
AskPassphrase = Callable[[str], str]


class Connector:
    """Opens connections. Created before the event loop runs, so that invalid keys are reported first."""

    def __init__(
        self, hosts: Iterable[InventoryHost], options: SshOptions, *, ask: AskPassphrase | None = None
    ) -> None:
        """Read keys and known hosts.

        Raises:
            UsageError: a key or the known hosts file cannot be read.
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
            HostError: the host cannot be reached or trusted, or rejects the login.
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
            # performance does not matter here: the attempt takes most of the time
            except (
                OSError,
                asyncssh.Error,
            ) as error:
                if attempt == self._options.attempts or not _may_pass(error):
                    raise self._explained(error, host, target, attempt) from error
                log.info("%s: attempt %d failed (%s), next in %g s", host.name, attempt, error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s *= 2
        raise AssertionError("there is at least one attempt")

    async def _open(
        self, host: InventoryHost, tunnel: asyncssh.SSHClientConnection | None
    ) -> asyncssh.SSHClientConnection:
        options = {
            "config": None,  # it could disable host key checking; config.ssh_config reads what we use
            "known_hosts": self.host_keys.trusted,
            "client_factory": partial(_Client, self.host_keys),
            "encryption_algs": CIPHERS,
            "keepalive_interval": self._options.lease_s * 2 / 3 / KEEPALIVES,
            "keepalive_count_max": KEEPALIVES,
            "login_timeout": self._options.connect_timeout_s,
            "preferred_auth": "publickey",
            **({"username": host.user} if host.user else {}),
            **self._identity(key_files(host, self._options.key)),
        }
        async with self._handshakes:
            connecting = asyncssh.connect(host.address, host.port, tunnel=tunnel, **options)
            return await asyncio.wait_for(connecting, self._options.connect_timeout_s)

    def _identity(self, paths: Sequence[str]) -> dict[str, Any]:
        if not paths:
            return {}
        keys = [self._keys[path] for path in paths]
        of_agent = [str(public_half(Path(path).expanduser())) for path in paths if self._keys[path] is None]
        agent = {"agent_identities": of_agent} if of_agent else {"agent_path": None}
        return {"client_keys": [key for key in keys if key is not None], **agent}

    async def _jump(self, jump_host: InventoryHost, words: str) -> asyncssh.SSHClientConnection:
        """Return the connection to a jump host; all hosts behind it share the connection."""
        task = self._jumps.get(words)
        if task is None or (task.done() and (task.exception() is not None or task.result().is_closed())):
            task = asyncio.ensure_future(self._open(jump_host, None))
            self._jumps[words] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close the connections to all jump hosts."""
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
    """Explain why a host cannot be used, and what to do about it."""
    where = f"{host.address} port {host.port}"
    if isinstance(error, (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed)):
        if keys.knows(host.address, host.address, host.port):
            cause = (
                f"the key of {where} is not the one in {keys.path}: another machine may be "
                "answering in its place"
            )
            return (
                cause,
                "Ask the host's administrator; if its key was changed on purpose, remove the old line",
            )
        return (
            f"the key of {where} is not in {keys.path}",
            f"Add it once you have verified it (ssh-keyscan -p {host.port} {host.address}), or "
            "trust new hosts with --ssh-accept-new",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        login = f"the login of {host.user}" if host.user else "the login"
        return f"{where} refuses {login}", "Check user and key: --username, --ssh-key"
    if isinstance(error, TimeoutError):
        return f"no response from {where} in time", "Check address and firewall, or raise --connect-timeout"
    if isinstance(error, socket.gaierror):
        return f"no such host: {host.address}", None
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error) or type(error).__name__
    return f"cannot connect to {where}: {reason}", None


class HostKeys:
    """The trusted host keys, and how to handle others."""

    def __init__(self, path: Path, *, accept_new: bool) -> None:
        """Read `path`; if the file is missing, no host is trusted.

        Raises:
            UsageError: the file cannot be read, or is not a known_hosts file.
        """
        self.path = path
        self.accepted: dict[str, str] = {}
        """Host → fingerprint of the key that this process stored."""
        self._accept_new = accept_new
        self._lock = threading.Lock()
        self.trusted = self._read()

    def _read(self) -> asyncssh.SSHKnownHosts:
        try:
            return asyncssh.import_known_hosts(read_plain(self.path).decode())
        except FileNotFoundError:
            return asyncssh.import_known_hosts("")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"known hosts cannot be read: {reason}", place=str(self.path)) from error

    def knows(self, host: str, addr: str, port: int) -> bool:
        """Check whether any key is known for a host, the presented key or another."""
        matches = self.trusted.match(host, addr, None if port == SSH_PORT else port)
        return any(matches)

    def take(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide whether to trust a key that is not trusted yet; store it if requested.

        Raises:
            EnvironmentUnfitError: the key cannot be stored.
        """
        with self._lock:
            if not self._accept_new or self.knows(host, addr, port):
                return False
            self._store(host if port == SSH_PORT else f"[{host}]:{port}", key)
            self.trusted = self._read()
            self.accepted[host] = key.get_fingerprint()
            return True

    def _store(self, pattern: str, key: asyncssh.SSHKey) -> None:
        line = f"{pattern} {key.export_public_key().decode('ascii').strip()}\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                self.path.chmod(0o600)
                file.write(line)
        except OSError as error:
            raise EnvironmentUnfitError(
                f"the host's key cannot be stored: {error.strerror}", place=str(self.path)
            ) from error


class _Client(asyncssh.SSHClient):
    """Host key decisions for one connection; asyncssh only asks about unknown keys."""

    def __init__(self, keys: HostKeys) -> None:
        self._keys = keys

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Check whether the key may be trusted."""
        return self._keys.take(host, addr, port, key)


def load_keys(
    default: str | None, hosts: Iterable[InventoryHost], *, ask: AskPassphrase | None = None
) -> dict[str, asyncssh.SSHKey | None]:
    """Read every listed key file; return keys by path, or None if the agent has the key.

    Raises:
        UsageError: a file is missing, unreadable, readable by others, or not a private key, or its passphrase
            is wrong or cannot be requested; the location is the line in the inventory that names the file.
    """
    places = {} if default is None else {default: "--ssh-key"}
    for host in hosts:
        for path in key_files(host, default):
            places.setdefault(path, host.place)
    return {path: _load(path, place=place, ask=ask or ask_on_terminal) for path, place in places.items()}


def key_files(host: InventoryHost, default: str | None) -> tuple[str, ...]:
    """Return the private keys for login: the host's own, the default, or those in ~/.ssh/config."""
    key = host.key or default
    return host.identity_files if key is None else (key,)


def _load(path: str, *, place: str, ask: AskPassphrase) -> asyncssh.SSHKey | None:
    file = Path(path).expanduser()
    if (file.suffix == PUBLIC or not file.exists()) and _agent_has(file):
        return None
    text = _read(file, place=f"{place}: {path}")
    try:
        return asyncssh.import_private_key(text)
    except asyncssh.KeyEncryptionError:
        pass
    except asyncssh.KeyImportError as error:
        if "passphrase" not in str(error).lower():
            raise UsageError(f"no private key: {error}", place=f"{place}: {path}") from error
    if _agent_has(file):
        return None
    try:
        return asyncssh.import_private_key(text, ask(path))
    except (asyncssh.KeyEncryptionError, asyncssh.KeyImportError) as error:
        raise UsageError("the passphrase is wrong", place=f"{place}: {path}") from error


def _read(path: Path, *, place: str) -> str:
    try:
        mode = path.stat().st_mode
        text = read_plain(path, max_bytes=MAX_KEY_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise UsageError(f"the key cannot be read: {reason}", place=place) from error
    if mode & OTHERS:
        raise UsageError(
            f"the key can be read by others (mode {stat.S_IMODE(mode):04o})",
            place=place,
            next_step=f"chmod 600 {path}",
        )
    return text


def _agent_has(path: Path) -> bool:
    """Check whether the agent has the private key for the public key stored next to `path`."""
    if not os.environ.get("SSH_AUTH_SOCK") or not public_half(path).is_file():
        return False
    try:
        wanted = asyncssh.read_public_key(public_half(path)).public_data
        return wanted in asyncio.run(_agent_keys())
    except (OSError, asyncssh.KeyImportError):
        return False  # the passphrase is requested later


async def _agent_keys() -> set[bytes]:
    async with asyncssh.connect_agent() as agent:
        return {key.public_data for key in await agent.get_keys()}


def public_half(path: Path) -> Path:
    """Return where OpenSSH stores the public half of a key; an IdentityFile may itself be that half."""
    return path if path.suffix == PUBLIC else path.with_name(f"{path.name}{PUBLIC}")


def ask_on_terminal(path: str) -> str:
    """Ask for a passphrase.

    Raises:
        UsageError: there is no terminal to prompt on.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "the key is encrypted, and there is no terminal to ask for its passphrase",
            place=path,
            next_step=f"ssh-add {path}",
        )
    return getpass(f"Passphrase of {path}: ")
