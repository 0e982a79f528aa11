"""Ways to specify hosts: inline, list of names, hostfile, Ansible inventory, API response.

In: the text after `ssh:`. Out: a document in the one format that `inventory` reads, with a line number for
each host, and notes on what was skipped. Names in brackets use the syntax of ClusterShell and Slurm:
`gpu[01-32]`.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tomllib

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.files import packaged_text
from gpuproof.base.units import first_of
from gpuproof.config.entries import open_document, read_entries
from gpuproof.config.settings import ConfigError, Mistake
from gpuproof.config.yaml import Document, Place

MOST_HOSTS = 10_000
"""Maximum number of hosts per range; a larger range must be a typo."""
_SUFFIXES = (".yaml", ".yml", ".json", ".ini", ".cfg", ".txt")
_BETWEEN = re.compile(r"[,\s]+(?![^\[\]]*\])")
_NAMED = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%]*:[^\]]*\]|[^:\s]+)(?::(?P<port>\d+))?")
_BARE_IPV6 = re.compile(r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")
_LINE = re.compile(r"(?P<name>[^\s=:{\"'#-][^\s={\"']*)(?P<settings>(\s+[\w.]+\s*=\s*\S+)*)")
_SECTION = re.compile(r"\[[\w.-]+(:\w+)?\]")
_SETTING = re.compile(r"([\w.]+)\s*=\s*(\S+)")
_ANSIBLE = {
    **{"ansible_host": "host", "ansible_user": "user", "ansible_port": "port"},
    **{"ansible_ssh_private_key_file": "key", "ansible_python_interpreter": "python"},
}
_ALIASES = {
    **{"hostname": "host", "ip": "host", "address": "host", "ssh_user": "user", "username": "user"},
    **{"slots": "gpus", "num_gpus": "gpus", **_ANSIBLE},
}
"""Other tools' names for a host key → our key."""
_NOT_ANSIBLE = (
    *("gpus", "slots", "num_gpus", "gpu_type", "price_per_hour"),
    *("jump", "directory", "interface", "internal_address"),
)
"""Our keys that an Ansible variable may set; in Ansible, `port` and `user` belong to an application."""
_NUMBERS = ("gpus", "port")
_ADDRESSES = ("host", "ansible_host", "ip", "address", "hostname")
"""Keys for a host's address; if an entry has several, the first of these counts."""
_COLUMNS = {"host", "hostname", "name", "ip", "address", "user", "username", "port", "gpus"}
"""Titles of columns by which the first line of a table is recognized."""
_PARTS = ("vars", "hosts", "children")
_NOT_OURS = re.compile(r"ansible_\w+|max[-_]slots")


def hosts_document(named: str, *, user: str | None) -> tuple[Document, tuple[str, ...]]:
    """Return the named hosts, with notes on any that are skipped.

    Names are looked up in ~/.ssh/config, with `user` from the command line if given; hosts described in a
    file are used as they are.

    Raises:
        ConfigError: a file cannot be read, or the names are not in a known format.
        EnvironmentUnfitError: names contain brackets, and ClusterShell is not installed.
    """
    file, colon, group = named.rpartition(":")
    # os.path: a list of many names is too long for a path, which pathlib reports as an error
    if os.path.exists(named) or named.endswith(_SUFFIXES) or ("/" in named and not colon):
        return _of_file(named, None, user)
    if colon and (os.path.isfile(file) or file.endswith(_SUFFIXES)) and not group.isdigit():
        return _of_file(file, group, user)
    is_one = len(_BETWEEN.split(named)) == 1
    if (
        is_one
        and colon
        and not group.isdigit()
        and _NAMED.fullmatch(named) is None
        and not _BARE_IPV6.fullmatch(named)
    ):
        cause = f"neither host {file!r} with a port ({group!r} is not a number) nor a file with a group"
        step = f"Write {file}:22 for a port, or check that the file {file} exists here"
        raise ConfigError([Mistake(place=named, cause=cause, next_step=step)])
    return _of_names(named, [(1, entry) for entry in _named(named, place=named)], user)


def _of_names(
    source: str, entries: list[tuple[int, dict[str, Any]]], user: str | None
) -> tuple[Document, tuple[str, ...]]:
    """Return the hosts given only by name, with details from ~/.ssh/config."""
    try:
        from gpuproof.config.ssh_config import with_ssh_config
    except ModuleNotFoundError:  # then no host is reached over SSH, and the launcher reports it
        return _document(source, {}, entries), ()
    completed, notes = with_ssh_config(entries, user=user)
    return _document(source, {}, completed), tuple(notes)


def _document(source: str, common: Mapping[str, Any], entries: list[tuple[int, dict[str, Any]]]) -> Document:
    lines: dict[tuple[str | int, ...], int] = {(): 1, ("hosts",): 1}
    lines |= {("hosts", index): line for index, (line, _) in enumerate(entries)}
    data = {**common, "hosts": [entry for _, entry in entries]}
    return Document(source=source, data=data, lines=lines, written={})


def _named(text: str, *, place: str) -> Iterator[dict[str, Any]]:
    """Yield an entry for each host in `user@gpu[01-32]:22,[::1]:22`."""
    for word in filter(None, _BETWEEN.split(text.strip())):
        if _BARE_IPV6.fullmatch(word):
            yield {"host": word}
            continue
        match = _NAMED.fullmatch(word)
        if match is None:
            step = "Write [USER@]HOST[:PORT]; an IPv6 address with a port needs brackets"
            raise ConfigError([Mistake(place=place, cause=f"{word!r} does not name a host", next_step=step)])
        others = {"user": match["user"], "port": int(match["port"]) if match["port"] else None}
        for host in _expanded(match["host"], place=place):
            yield {"host": host, **{key: value for key, value in others.items() if value is not None}}


def _expanded(host: str, *, place: str) -> list[str]:
    if "[" not in host:
        return [host]
    if ":" in host:
        return [host[1:-1]]
    try:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    except ModuleNotFoundError as error:
        raise EnvironmentUnfitError(
            "names in brackets need ClusterShell",
            place=place,
            next_step="pip install 'gpuproof[ssh]', or write out each name",
        ) from error
    wide = any(len(digits) > len(str(MOST_HOSTS)) for digits in re.findall(r"\d+", host.partition("[")[2]))
    try:
        nodes = None if wide else NodeSet(host, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        step = "Write gpu[01-32], or each name"
        raise ConfigError([Mistake(place=place, cause=f"{host!r} is not a range", next_step=step)]) from error
    if nodes is None or len(nodes) > MOST_HOSTS:
        step = f"Name at most {MOST_HOSTS:,}"
        raise ConfigError([Mistake(place=place, cause=f"{host!r} contains too many hosts", next_step=step)])
    return [str(node) for node in nodes]


def _of_file(path: str, group: str | None, user: str | None) -> tuple[Document, tuple[str, ...]]:
    text = read_entries(path, what="inventory")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    stated = [line for line in lines if line and not line.startswith(";")]
    if any(_SECTION.fullmatch(line) for line in stated):
        return _of_ini(path, text, group), ()
    _refuse_table(path, lines)
    if group is None and stated and all(_LINE.fullmatch(line) for line in stated):
        return _of_names(path, list(_of_lines(path, lines)), user)
    try:
        document = open_document(path, what="inventory")
    except ConfigError:
        _refuse_other_tools(path, text, None)
        raise
    data = document.data
    if isinstance(data, dict) and isinstance(data.get("data"), list):
        return _of_lambda(document)
    _refuse_other_tools(path, text, data)
    if isinstance(data, dict) and not {"hosts", "instances"} & data.keys():
        entries = dict(_of_ansible(document, data, (), group or "all"))
        if entries:
            return _document(path, {}, list(entries.values())), ()
    if group is not None:
        raise _no_group(path, group)
    if isinstance(data, list) and data and all(isinstance(item, str) for item in data):
        at = [(document.line((index,)), item) for index, item in enumerate(data)]
        named = [(line, entry) for line, item in at for entry in _named(item, place=f"{path}:{line}")]
        return _of_names(path, named, user)
    return _with_our_keys(document), ()


def _refuse_table(path: str, lines: list[str]) -> None:
    """Refuse a table with commas, since each of its cells would be taken for a host."""
    for number, line in enumerate(lines, 1):
        cells = [cell.strip(" \"'").lower() for cell in line.split(",")]
        if len(cells) > 1 and (path.lower().endswith(".csv") or len(_COLUMNS.intersection(cells)) > 1):
            step = "Write one host per line (USER@HOST:PORT gpus=8), or a list of mappings below `hosts:`"
            cause = "this looks like a table with commas, which is not a list of hosts"
            raise ConfigError([Mistake(place=f"{path}:{number}", cause=cause, next_step=step)])
        if line:
            return


def _refuse_other_tools(path: str, text: str, data: Any) -> None:
    """Return the tool that wrote a file, and its command for exporting a format that we can read."""
    first = data[0] if isinstance(data, list) and data else data
    keys: set[Any] = set(first) if isinstance(first, dict) else set()
    keys |= {key for inner in first.values() if isinstance(inner, dict) for key in inner} if keys else set()
    is_text = data is None or isinstance(data, str)
    for tool in tomllib.loads(packaged_text("config/other_tools.toml"))["tool"]:
        pattern = tool.get("text") if is_text else None
        if keys & {*tool.get("keys", ())} or (pattern and re.search(pattern, text, re.MULTILINE)):
            cause = f"this looks like {tool['prints']}"
            raise ConfigError([Mistake(place=path, cause=cause, next_step=tool["step"])])


def _of_lines(path: str, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if match := _LINE.fullmatch(line):
            others = _ours(dict(_SETTING.findall(match["settings"])))
            named = _named(match["name"], place=f"{path}:{number}")
            yield from ((number, {**entry, **others}) for entry in named)


def _of_ini(path: str, text: str, group: str | None) -> Document:
    """Read Ansible's INI format: one host per line in groups, groups of groups, and group variables."""
    parser = configparser.RawConfigParser(
        allow_no_value=True, delimiters=("\0",), comment_prefixes=("#", ";"), strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # its documented way to keep capitals
    try:
        parser.read_string("[ungrouped]\n" + text)
    except configparser.Error as error:
        cause = str(error).partition("\n")[0]
        raise ConfigError(
            [Mistake(place=path, cause=cause, next_step="Correct it to match Ansible's INI format")]
        ) from error
    groups = [name for name in parser.sections() if ":" not in name]
    names = _below(parser, group) if group is not None else groups
    if group is not None and not any(parser.has_section(name) for name in names):
        raise _no_group(path, group, groups)
    numbers = {line.strip(): number for number, line in enumerate(text.splitlines(), 1)}
    entries: dict[str, tuple[int, dict[str, Any]]] = {}
    for name in names:
        of_group = _variables(parser, "all") | _variables(parser, name) | _variables(parser, group or name)
        for line in parser.options(name) if parser.has_section(name) else ():
            first, *rest = line.split()
            variables = {**of_group, **dict(_SETTING.findall(" ".join(rest)))}
            for entry in _named(first, place=f"{path}:{numbers.get(line, 1)}"):
                full = {"name": entry["host"], **entry, **_of_variables(variables)}
                entries.setdefault(entry["host"], (numbers.get(line, 1), full))
    return _document(path, {}, list(entries.values()))


def _below(parser: configparser.RawConfigParser, group: str) -> list[str]:
    """Return a group and its subgroups, each only once."""
    found, waiting = [], [group]
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            children = f"{name}:children"
            waiting += parser.options(children) if parser.has_section(children) else []
    return found


def _variables(parser: configparser.RawConfigParser, group: str) -> dict[str, str]:
    section = f"{group}:vars"
    lines = parser.options(section) if parser.has_section(section) else []
    return dict(pair for line in lines for pair in _SETTING.findall(line))


def _of_ansible(
    document: Document,
    groups: Mapping[str, Any],
    at: Place,
    wanted: str,
    above: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, tuple[int, dict[str, Any]]]]:
    """Yield the name, line and keys of each host in a group and its subgroups; `at` locates groups.

    `above` contains the variables of the enclosing groups.
    """
    for name, group in groups.items():
        if not isinstance(group, dict):
            continue
        part = {key: _mapping(document, (*at, name, key), group.get(key)) for key in _PARTS}
        inner = "all" if wanted in (name, "all") else wanted
        variables = {**(above or {}), **part["vars"]}
        for host, own in part["hosts"].items() if inner == "all" else ():
            place = (*at, name, "hosts", host)
            keys = _of_variables({**variables, **_mapping(document, place, own)})
            line = document.line(place)
            for entry in _named(host, place=f"{document.source}:{line}"):
                yield entry["host"], (line, {"name": entry["host"], **entry, **keys})
        yield from _of_ansible(document, part["children"], (*at, name, "children"), inner, variables)


def _mapping(document: Document, place: Place, value: Any) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    cause = f"Ansible expects a mapping here, found {'a list' if isinstance(value, list) else repr(value)}"
    raise ConfigError([document.mistake(place, cause, next_step="Write each name as a key: `NAME:`")])


def _of_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a host's Ansible variables to our keys; skip variables of roles and applications."""
    return _ours({key: value for key, value in variables.items() if key in _ANSIBLE or key in _NOT_ANSIBLE})


def _no_group(path: str, group: str, groups: list[str] | None = None) -> ConfigError:
    listed = f"Groups: {first_of(groups)}" if groups else "Name the file alone"
    return ConfigError([Mistake(place=path, cause=f"no hosts in group {group!r}", next_step=listed)])


def _ours(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with our keys; data that belongs to another tool is skipped."""
    address = next((key for key in _ADDRESSES if entry.get(key)), None)
    if address is not None:
        entry = {key: value for key, value in entry.items() if key == address or key not in _ADDRESSES}
    renamed = {
        _ALIASES.get(key, key): value
        for key, value in entry.items()
        if key in _ALIASES or not _NOT_OURS.fullmatch(str(key))
    }
    for key in _NUMBERS:
        if isinstance(renamed.get(key), str) and str(renamed[key]).isdecimal():
            renamed[key] = int(renamed[key])
    return renamed


def _with_our_keys(document: Document) -> Document:
    """Convert a list, or `hosts:` with strings or other tools' keys, to our form."""
    data = {"hosts": document.data} if isinstance(document.data, list) else document.data
    if not isinstance(data, dict) or not isinstance(data.get("hosts"), list):
        return document
    entries: list[Any] = []
    lines = dict(document.lines)
    for index, item in enumerate(data["hosts"]):
        at = (index,) if data is not document.data else ("hosts", index)
        made = [item]
        if isinstance(item, dict):
            made = [_ours(item)]
        elif isinstance(item, str):
            made = list(_named(item, place=f"{document.source}:{document.line(at)}"))
        for entry in made:
            lines[("hosts", len(entries))] = document.line(at)
            entries.append(entry)
    return Document(
        source=document.source, data={**data, "hosts": entries}, lines=lines, written=document.written
    )


def _of_lambda(document: Document) -> tuple[Document, tuple[str, ...]]:
    """Read the Lambda API's response about instances; skip instances that are not active."""
    entries, notes = [], []
    for index, instance in enumerate(document.data["data"]):
        if not isinstance(instance, dict):
            continue
        kind = instance.get("instance_type") or {}
        name = instance.get("name") or instance.get("hostname") or instance.get("id") or instance.get("ip")
        if instance.get("status") != "active" or not instance.get("ip"):
            notes.append(f"{name} is skipped: its status is {instance.get('status')}")
            continue
        entry = {
            "host": instance["ip"],
            "name": str(name),
            "user": "ubuntu",
            "gpus": (kind.get("specs") or {}).get("gpus"),
            "gpu_type": kind.get("gpu_description"),
        }
        entries.append((document.line(("data", index)), {k: v for k, v in entry.items() if v is not None}))
    return _document(document.source, {}, entries), tuple(notes)
