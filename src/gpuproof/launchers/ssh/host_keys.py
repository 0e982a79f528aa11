"""Is this the host that we mean? Its key must be in known_hosts; a new host's is taken only when asked for.

In: a known_hosts file in OpenSSH's form. Out: the client that asyncssh asks when a key is not in it. A host
that has a key there and shows another is refused always.
"""

from __future__ import annotations

import threading
from pathlib import Path

import asyncssh

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.files import read_plain

SSH_PORT = 22


class HostKeys:
    """The host keys that are trusted, and what is done about others."""

    def __init__(self, path: Path, *, accept_new: bool) -> None:
        """Read `path`; a file that is not there trusts nobody.

        Raises:
            UsageError: it cannot be read, or holds no known hosts.
        """
        self.path = path
        self.accepted: dict[str, str] = {}
        """Host → fingerprint of the key that was stored in this process."""
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
        """Say whether there is any key for a host, this one or another."""
        matches = self.trusted.match(host, addr, None if port == SSH_PORT else port)
        return any(matches)

    def client(self) -> asyncssh.SSHClient:
        """Make the client of one connection."""
        return _Client(self)

    def take(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide on a key that is not trusted yet; store it where that was asked for.

        Raises:
            EnvironmentUnfitError: it cannot be stored.
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
    """One connection's questions about the host's key; asyncssh asks only for a key that is not known."""

    def __init__(self, keys: HostKeys) -> None:
        self._keys = keys

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Say whether the key may be trusted."""
        return self._keys.take(host, addr, port, key)
