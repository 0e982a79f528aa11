"""With which keys do we log in? Read before the first connection, so that a bad one costs no attempt.

In: the paths of private keys. Out: key pairs for asyncssh. An encrypted key is taken from the agent where
that has it, else its passphrase is asked for on the terminal, once.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterable
from getpass import getpass
from pathlib import Path

import asyncssh

from gpuproof.base.errors import UsageError
from gpuproof.base.files import read_plain
from gpuproof.config.inventory import InventoryHost

OTHERS = stat.S_IRWXG | stat.S_IRWXO
MAX_KEY_BYTES = 2**20
PUBLIC = ".pub"
AskPassphrase = Callable[[str], str]


def load_keys(
    default: str | None, hosts: Iterable[InventoryHost], *, ask: AskPassphrase | None = None
) -> dict[str, asyncssh.SSHKey | None]:
    """Read every key file that is named, by its path; None where the agent holds the key.

    Raises:
        UsageError: a file is absent, unreadable, open to others, or no private key, or its passphrase is
            wrong or cannot be asked for; the place is the line of the inventory that names it.
    """
    places = {} if default is None else {default: "--ssh-key"}
    for host in hosts:
        for path in key_files(host, default):
            places.setdefault(path, host.place)
    return {path: _load(path, place=place, ask=ask or ask_on_terminal) for path, place in places.items()}


def key_files(host: InventoryHost, default: str | None) -> tuple[str, ...]:
    """Return the private keys to log in with: a host's own, else the default, else those of ~/.ssh/config."""
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
        reason = getattr(error, "strerror", None) or "it holds no text"
        raise UsageError(f"the key cannot be read: {reason}", place=place) from error
    if mode & OTHERS:
        raise UsageError(
            f"the key can be read by others (mode {stat.S_IMODE(mode):04o})",
            place=place,
            next_step=f"chmod 600 {path}",
        )
    return text


def _agent_has(path: Path) -> bool:
    """Say whether the agent holds the key whose public half lies beside `path`."""
    if not os.environ.get("SSH_AUTH_SOCK") or not public_half(path).is_file():
        return False
    try:
        wanted = asyncssh.read_public_key(public_half(path)).public_data
        return wanted in asyncio.run(_agent_keys())
    except (OSError, asyncssh.KeyImportError):
        return False  # then the passphrase is asked for


async def _agent_keys() -> set[bytes]:
    async with asyncssh.connect_agent() as agent:
        return {key.public_data for key in await agent.get_keys()}


def public_half(path: Path) -> Path:
    """Return where OpenSSH keeps the public half of a key; an IdentityFile may name that itself."""
    return path if path.suffix == PUBLIC else path.with_name(f"{path.name}{PUBLIC}")


def ask_on_terminal(path: str) -> str:
    """Ask for a passphrase.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "the key is encrypted, and there is no terminal to ask for its passphrase",
            place=path,
            next_step=f"ssh-add {path}",
        )
    return getpass(f"Passphrase of {path}: ")
