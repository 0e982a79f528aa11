"""Which hosts are there? Read from a plain list (JSON or YAML) or from the record of a Lambda deployment.

In: a file. Out: hosts in their order, checked as a whole, or one `ConfigError` with every mistake by line.
An instance that the file gives no address for is left to whoever can ask the provider (`instance_id`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gpuproof.config.errors import ConfigError, Mistake, shown
from gpuproof.config.inventory_models import DeployedEntry, Deployment, HostEntry, HostKeysOfEntry, HostList
from gpuproof.config.located import Located, Place, read_located

MAX_BYTES = 2**20
CLOUD_USER = "ubuntu"
"""Whom Lambda's images let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host, and how it is reached and used."""

    name: str
    address: str
    """Empty where only the provider knows it."""
    place: str
    """FILE:LINE where it stands."""
    port: int = 22
    user: str | None = None
    key: str | None = None
    jump: str | None = None
    python: str | None = None
    """None is what the command says, else python3."""
    directory: str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    price_per_hour: float | None = None
    interface: str | None = None
    internal_address: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All hosts of a file."""

    source: str
    hosts: tuple[Host, ...]
    currency: str


def load_inventory(path: str) -> Inventory:
    """Read an inventory file.

    Raises:
        ConfigError: it cannot be read, or is wrong; every mistake with its line.
    """
    located = read_located(_text(path), source=path)
    data = located.data
    if not isinstance(data, dict) or not ("hosts" in data or "instances" in data):
        raise ConfigError([located.mistake((), "neither `hosts:` nor `instances:`", next_step=_FORMS)])
    model: type[HostList | Deployment] = HostList if "hosts" in data else Deployment
    try:
        read = model.model_validate(data)
    except ValidationError as error:
        raise ConfigError([_mistake(located, model, detail) for detail in error.errors()]) from None
    hosts = _listed(read, located) if isinstance(read, HostList) else _deployed(read, located)
    _refuse_duplicates(hosts, located)
    return Inventory(source=path, hosts=tuple(host for host, _ in hosts), currency=read.currency)


_FORMS = "Write `hosts:` and a list of mappings with the key `host`, or use a deployment's cluster.json"


def _text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
        if len(content) > MAX_BYTES:
            raise ConfigError([Mistake(place=path, cause="larger than 1 MiB, so it is no inventory")])
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Mistake(place=path, cause=f"cannot be read ({error.strerror})")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Mistake(place=path, cause="not UTF-8 text")]) from error


def _mistake(located: Located, model: type[BaseModel], detail: Any) -> Mistake:
    place: Place = detail["loc"]
    if detail["type"] == "extra_forbidden":
        known = _keys_around(model, place)
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"Perhaps {close[0]} is meant" if close else f"Keys: {', '.join(known)}"
        return located.mistake(place, "unknown key", next_step=hint)
    if detail["type"] == "missing":
        return located.mistake(place[:-1], f"the key {place[-1]} is missing")
    found = detail["input"]
    is_plain = found is None or isinstance(found, (bool, int, float, str))
    value = shown(found) if is_plain else f"a {type(found).__name__}"
    what = _field_description(model, place)
    return located.mistake(place, f"{detail['msg']}, found {value}", next_step=what)


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel]:
    inner: dict[str, type[BaseModel]] = {
        "hosts": HostEntry,
        "defaults": HostKeysOfEntry,
        "instances": DeployedEntry,
    }
    return inner.get(str(place[0]), model) if len(place) > 1 else model


def _keys_around(model: type[BaseModel], place: Place) -> list[str]:
    return list(_model_at(model, place).model_fields)


def _field_description(model: type[BaseModel], place: Place) -> str | None:
    names = [part for part in place if isinstance(part, str)]
    field = _model_at(model, place).model_fields.get(names[-1]) if names else None
    return f"The key means: {field.description}" if field else None


def _listed(read: HostList, located: Located) -> list[tuple[Host, Place]]:
    hosts = []
    for index, entry in enumerate(read.hosts):
        place: Place = ("hosts", index)
        values = _common(entry, read.defaults)
        name = entry.name or entry.host
        where = f"{located.source}:{located.line(place)}"
        hosts.append((Host(name=name, address=entry.host, place=where, **values), place))
    return hosts


def _common(entry: HostKeysOfEntry, defaults: HostKeysOfEntry) -> dict[str, Any]:
    """Return the keys of an entry, with the defaults where it sets none."""
    return {
        key: getattr(entry if key in entry.model_fields_set else defaults, key)
        for key in HostKeysOfEntry.model_fields
    }


def _deployed(read: Deployment, located: Located) -> list[tuple[Host, Place]]:
    hosts = []
    for index, entry in enumerate(read.instances):
        place: Place = ("instances", index)
        address = entry.ip or entry.hostname or ""
        if address and len(entry.instance_ids) > 1:
            cause = f"one address for {len(entry.instance_ids)} instances"
            raise ConfigError([located.mistake(place, cause, next_step="Write an entry for each")])
        values = _common(entry, HostKeysOfEntry())
        values["user"] = entry.user or CLOUD_USER
        where = f"{located.source}:{located.line(place)}"
        host = Host(name="", address=address, place=where, **values)
        hosts += [
            (replace(host, name=entry.name or instance_id, instance_id=instance_id), place)
            for instance_id in entry.instance_ids
        ]
    return hosts


def _refuse_duplicates(hosts: Iterable[tuple[Host, Place]], located: Located) -> None:
    seen: dict[tuple[str, ...], int] = {}
    mistakes = []
    for host, place in hosts:
        keys: list[tuple[str, ...]] = [("name", host.name)]
        keys += [("address", host.address, str(host.port), str(host.jump))] if host.address else []
        keys += [("instance", host.instance_id)] if host.instance_id else []
        line = located.line(place)
        twin = next((seen[key] for key in keys if key in seen), None)
        if twin is not None:
            cause = f"{host.name} is the host of line {twin} again"
            mistakes.append(located.mistake(place, cause, next_step="Name each host once"))
        for key in keys:
            seen.setdefault(key, line)
    if mistakes:
        raise ConfigError(mistakes)
