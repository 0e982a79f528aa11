"""What ~/.ssh/config says about named hosts: address, user, port and private keys.

In: entries for named hosts. Out: the same entries with the hosts' configuration, and notes on unsupported
options. Only this module reads the file: connections use these four settings and no others
(docs/decisions/0009). asyncssh's own reader would run the command of `Match exec`; here, such a block is
skipped with a note.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, cast

from asyncssh import ConfigParseError
from asyncssh.config import SSHClientConfig, SSHConfig

from gpuproof.config.settings import ConfigError, Mistake

Entry = tuple[int, dict[str, Any]]
"""A line number, and the keys of the host on that line."""

SSH_CONFIG = Path("~/.ssh/config")
_SSH_PORT = 22
_REFUSED = ("ProxyJump", "ProxyCommand")
"""Options without which the host is unreachable, or a different host is reached."""
_IGNORED = ("HostKeyAlias", "UserKnownHostsFile", "CertificateFile", "IdentityAgent", "CanonicalizeHostname")
"""Options without which the login may fail; a note reports them."""
_NOTED = (*_REFUSED, *_IGNORED)
_EXEC = ("exec", "!exec")


class _HostSettings(SSHClientConfig):
    """Settings of one host; also stores the location of unsupported options."""

    def __init__(self, *positional: Any) -> None:
        super().__init__(*positional)
        self.places: dict[str, str] = {}
        """FILE:LINE of each unsupported option and each skipped `Match exec`."""

    def _place(self) -> str:
        return f"{self._path}:{self._line_no}"

    def _match_without_exec(self, option: str, args: list[str]) -> None:
        words = [word.lower() for word in args]
        at = next((index for index, word in enumerate(words) if word in _EXEC), None)
        if at is None:
            self._match(option, args)
            return
        self._match(option, [*args[:at], *args[at + 2 :]])  # an empty remainder matches
        if self._matching:
            self.places.setdefault(f"Match exec {self._line_no}", self._place())
        self._matching = False
        args.clear()

    def _set_noted(self, option: str, args: list[str]) -> None:
        self.places.setdefault(option, self._place())
        SSHClientConfig._handlers[option.lower()][1](self, option, args)

    _handlers = {  # noqa: RUF012  # asyncssh declares it so
        **SSHClientConfig._handlers,
        "match": ("Match", _match_without_exec),
        **dict(zip(map(str.lower, _NOTED), zip(_NOTED, repeat(_set_noted)), strict=False)),
    }


def with_ssh_config(entries: Iterable[Entry], *, user: str | None) -> tuple[list[Entry], list[str]]:
    """Complete entries from ~/.ssh/config, each host once, and return them with notes.

    Keys in an entry, and `user` (from the command line), override those in the file.

    Raises:
        ConfigError: the file cannot be read, or specifies an unsupported way to reach hosts.
    """
    path = SSH_CONFIG.expanduser()
    if not path.is_file():
        return list(entries), []
    mistakes: list[Mistake] = []
    notes: list[str] = []
    configured = []
    for line, entry in entries:
        config = _read(path, entry, user)
        mistakes += [] if "jump" in entry else _refused(config, entry["host"])
        notes += _ignored(config)
        values, key_notes = _values(config, entry)
        notes += key_notes
        configured.append((line, entry, values))
    if mistakes:
        raise ConfigError(mistakes)
    once, again = _once(configured)
    return once, [*dict.fromkeys(notes), *again]


def _read(path: Path, entry: Mapping[str, Any], user: str | None) -> _HostSettings:
    def load(*, final: bool) -> _HostSettings:
        typed = (entry.get("user") or user or (), entry["host"], entry.get("port") or ())
        config: SSHConfig = _HostSettings.load(None, path, False, False, final, getpass.getuser(), *typed)
        return cast(_HostSettings, config)

    try:
        config = load(final=False)
        return load(final=True) if config.has_match_final() else config
    except RecursionError as error:
        cause, step = "its Include lines include each other", "Remove the Include that creates the cycle"
        raise ConfigError([Mistake(place=str(path), cause=cause, next_step=step)]) from error
    except (ConfigParseError, OSError, UnicodeDecodeError) as error:
        cause = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        step = "Correct it, or list the hosts in a file with `host:`, which does not use it"
        raise ConfigError([Mistake(place=str(path), cause=cause, next_step=step)]) from error


def _refused(config: _HostSettings, host: str) -> list[Mistake]:
    step = f"Write the line `{host} jump=[USER@]HOST[:PORT]` to a file, and pass that file: --on ssh:FILE"
    return [
        Mistake(place=config.places[option], cause=f"{option} of {host} is not supported", next_step=step)
        for option in _REFUSED
        if config.get(option) is not None
    ]


def _ignored(config: _HostSettings) -> list[str]:
    notes = [f"{config.places[option]}: {option} is not used" for option in _IGNORED if config.get(option)]
    commands = [place for name, place in config.places.items() if name.startswith("Match exec")]
    return [*notes, *(f"{place}: Match exec is skipped: its command is not run" for place in commands)]


def _values(config: _HostSettings, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a host's configuration as inventory keys, with a note if its key files do not exist."""
    files = [
        str(Path(file).expanduser().absolute()) for file in cast(list[str], config.get("IdentityFile") or [])
    ]
    present = [file for file in files if Path(file).exists() or Path(f"{file}.pub").exists()]
    values = {
        "name": entry["host"],
        "host": config.get("Hostname", entry["host"]),
        "user": config.get("User"),
        "port": config.get("Port"),
        "identity_files": present,
    }
    absent = f"IdentityFile of {entry['host']} does not exist: {', '.join(files)}"
    return {key: value for key, value in values.items() if value}, [absent] if files and not present else []


def _once(configured: Iterable[tuple[int, dict[str, Any], dict[str, Any]]]) -> tuple[list[Entry], list[str]]:
    """Merge an alias and its address into one host, unless an entry specifies a different user."""
    by_address: dict[tuple[str, int], list[tuple[Entry, str | None]]] = {}
    for line, typed, values in configured:
        entry = {**typed, **values, **{key: value for key, value in typed.items() if key != "host"}}
        address = (entry["host"].lower().rstrip("."), entry.get("port", _SSH_PORT))
        by_address.setdefault(address, []).append(((line, entry), typed.get("user")))
    entries, notes = [], []
    for same in by_address.values():
        alias = next((entry for (_, entry), _ in same if entry["name"] != entry["host"]), None)
        for (line, entry), typed_user in same:
            if alias is None or entry is alias or typed_user not in (None, alias.get("user")):
                entries.append((line, entry))
            else:
                notes.append(f"{entry['name']} is the same as {alias['name']}: they count as one host")
    return entries, notes
