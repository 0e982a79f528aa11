"""Read the hosts from names, a list (`host_forms`), or the record of a Lambda deployment.

In: names or a file. Out: hosts in the given order, checked as a whole, or one `ConfigError` with every
mistake. An instance without an address in the file keeps its `instance_id`, for a caller that can query the
provider.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gpuproof.config.entries import StrictModel, Text, read_as
from gpuproof.config.host_forms import hosts_document
from gpuproof.config.settings import ConfigError
from gpuproof.config.yaml import Document, Place

CLOUD_USER = "ubuntu"
"""The login user of Lambda's images."""
ADDRESS = r"^[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,252}$"
"""A host name or an IP address, optionally with a zone; contains nothing that a shell or an option parser
would interpret."""
USER = r"^[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}$"
Address = Annotated[str, Field(pattern=ADDRESS)]
User = Annotated[str, Field(pattern=USER)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Jump = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?$")
]


class HostKeysOfEntry(StrictModel):
    """Settings for one host or, under `defaults`, for all of them."""

    user: User | None = None
    """User to log in as; null means --username."""
    port: Port = 22
    """Port of the SSH server."""
    key: Text | None = None
    """Private key file; null means --ssh-key."""
    jump: Jump | None = None
    """Jump host to connect through, as [USER@]HOST[:PORT]."""
    python: Text | None = None
    """The Python interpreter with torch on that host; null means --python, else python3."""
    directory: Text | None = None
    """Where to create gpuproof's directory on that host; null means the host's temporary directory."""
    gpus: int | None = Field(default=None, ge=1, le=1024)
    """Ranks to start on that host, one per GPU; null means distributed.nproc."""
    gpu_type: Text | None = None
    """Name for the host's GPUs in comparisons; null means the name that they report."""
    price_per_hour: float | None = Field(default=None, gt=0, le=100_000)
    """Hourly price of the whole host."""
    interface: Text | None = None
    """Network interface for gloo and NCCL, as in GLOO_SOCKET_IFNAME."""
    internal_address: Address | None = None
    """Address at which the other hosts of the same job reach it; null means its address."""


class HostEntry(HostKeysOfEntry):
    """One host in a plain list."""

    host: Address
    """Address or name of the host."""
    name: Text | None = None
    """Name to use for the host; null means its address."""
    identity_files: list[Text] = Field(default_factory=list)
    """Private keys to try, as IdentityFile in ~/.ssh/config; key and --ssh-key take precedence."""


class HostList(StrictModel):
    """A plain list of hosts."""

    hosts: list[HostEntry] = Field(min_length=1)
    """The hosts, in the order of their node ranks."""
    defaults: HostKeysOfEntry = Field(default_factory=HostKeysOfEntry)
    """Default values of host keys, for all hosts that do not set them."""
    currency: Text = "USD"
    """Currency of price_per_hour."""


class DeployedEntry(HostKeysOfEntry):
    """The instances launched by one request."""

    instance_ids: list[Text] = Field(min_length=1)
    """The instances' ids in the provider's API."""
    ip: Address | None = None
    """The instance's address, if there is only one instance."""
    hostname: Address | None = None
    """The instance's name, if there is only one instance and it has a name."""
    name: Text | None = None
    """The instance's name."""
    region: Text | None = None
    """Where the instance runs."""
    status: Text | None = None
    """The instance's status when the file was written."""


class Deployment(StrictModel):
    """Record of a deployment, in the format of lambdactl and `gpuproof cloud lambda deploy`."""

    timestamp: Any = None
    """When the instances were deployed."""
    instance_type: Text | None = None
    """The provider's name for the instance type."""
    instance_count: int | None = Field(default=None, ge=0)
    """How many instances were requested."""
    name_prefix: Text | None = None
    """Prefix of the instance names."""
    region: Text | None = None
    """Where the instances run."""
    instances: list[DeployedEntry] = Field(min_length=1)
    """The instances that each request launched."""
    currency: Text = "USD"
    """Currency of price_per_hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryHost:
    """One host, and how to reach and use it."""

    name: str
    address: str
    """Address of the host; empty if only the provider knows it."""
    place: str
    """FILE:LINE where the host is defined."""
    port: int = 22
    user: str | None = None
    key: str | None = None
    jump: str | None = None
    python: str | None = None
    """Python to use on the host; None means the one given on the command line, else python3."""
    directory: str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    price_per_hour: float | None = None
    interface: str | None = None
    internal_address: str | None = None
    identity_files: tuple[str, ...] = ()
    """Private keys to try if neither `key` nor --ssh-key is given."""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All hosts in a file."""

    source: str
    hosts: tuple[InventoryHost, ...]
    currency: str
    notes: tuple[str, ...] = ()
    """Notes on what was skipped, and why."""


def load_inventory(path: str, *, user: str | None = None) -> Inventory:
    """Read the named hosts, which may be given directly, in a file, or in a group of a file.

    `user` comes from the command line, and overrides the one in ~/.ssh/config.

    Raises:
        ConfigError: the file cannot be read, or is invalid; lists every mistake with its line.
    """
    document, notes = hosts_document(path, user=user)
    data = document.data
    if not isinstance(data, dict) or not ("hosts" in data or "instances" in data):
        cause = "the file is empty" if data in (None, "") else "neither `hosts:` nor `instances:`"
        raise ConfigError([document.mistake((), cause, next_step=_FORMS)])
    model: type[HostList | Deployment] = HostList if "hosts" in data else Deployment
    read = read_as(model, document, model_at=partial(_model_at, model))
    hosts = _read_hosts(read, document) if isinstance(read, HostList) else _read_deployment(read, document)
    once, again = _once(hosts)
    _refuse_duplicates(once, document)
    listed = tuple(host for host, _ in once)
    return Inventory(source=path, hosts=listed, currency=read.currency, notes=(*notes, *again))


def _once(
    hosts: Iterable[tuple[InventoryHost, Place]],
) -> tuple[list[tuple[InventoryHost, Place]], list[str]]:
    """Return each host once, however its name is spelt, with a note for each identical duplicate."""
    by_settings: dict[object, tuple[InventoryHost, Place]] = {}
    notes = []
    for number, (host, place) in enumerate(hosts):
        address = host.address.lower().rstrip(".")
        name = address if host.name == host.address else host.name
        alike = replace(host, name=name, address=address, place="") if address else number
        if alike in by_settings:
            notes.append(f"{host.name} is the same as {by_settings[alike][0].name}: they count as one host")
        by_settings.setdefault(alike, (host, place))
    return list(by_settings.values()), notes


_FORMS = (
    "Write one name per line, or `hosts:` and a list of mappings with the key `host`, or use a "
    "deployment's cluster.json"
)


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel]:
    inner: dict[str, type[BaseModel]] = {
        "hosts": HostEntry,
        "defaults": HostKeysOfEntry,
        "instances": DeployedEntry,
    }
    return inner.get(str(place[0]), model) if len(place) > 1 else model


def _read_hosts(read: HostList, document: Document) -> list[tuple[InventoryHost, Place]]:
    hosts = []
    for index, entry in enumerate(read.hosts):
        place: Place = ("hosts", index)
        values = {**_common(entry, read.defaults), "identity_files": tuple(entry.identity_files)}
        name = entry.name or entry.host
        where = f"{document.source}:{document.line(place)}"
        hosts.append((InventoryHost(name=name, address=entry.host, place=where, **values), place))
    return hosts


def _common(entry: HostKeysOfEntry, defaults: HostKeysOfEntry) -> dict[str, Any]:
    """Return an entry's keys, with defaults for those that it does not set."""
    return {
        key: getattr(entry if key in entry.model_fields_set else defaults, key)
        for key in HostKeysOfEntry.model_fields
    }


def _read_deployment(read: Deployment, document: Document) -> list[tuple[InventoryHost, Place]]:
    hosts = []
    for index, entry in enumerate(read.instances):
        place: Place = ("instances", index)
        address = entry.ip or entry.hostname or ""
        if address and len(entry.instance_ids) > 1:
            cause = f"one address for {len(entry.instance_ids)} instances"
            raise ConfigError([document.mistake(place, cause, next_step="Write an entry for each")])
        values = _common(entry, HostKeysOfEntry())
        values["user"] = entry.user or CLOUD_USER
        where = f"{document.source}:{document.line(place)}"
        host = InventoryHost(name="", address=address, place=where, **values)
        hosts += [
            (replace(host, name=entry.name or instance_id, instance_id=instance_id), place)
            for instance_id in entry.instance_ids
        ]
    return hosts


def _refuse_duplicates(hosts: Iterable[tuple[InventoryHost, Place]], document: Document) -> None:
    seen: dict[tuple[str, ...], int] = {}
    mistakes = []
    for host, place in hosts:
        keys: list[tuple[str, ...]] = [("name", host.name)]
        keys += [("address", host.address, str(host.port), str(host.jump))] if host.address else []
        keys += [("instance", host.instance_id)] if host.instance_id else []
        line = document.line(place)
        twin = next((seen[key] for key in keys if key in seen), None)
        if twin is not None:
            cause = f"{host.name} is a duplicate of the host on line {twin}"
            mistakes.append(document.mistake(place, cause, next_step="Name each host once"))
        for key in keys:
            seen.setdefault(key, line)
    if mistakes:
        raise ConfigError(mistakes)
