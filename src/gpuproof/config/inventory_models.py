"""What an inventory file may hold: a plain list of hosts, or the record of a Lambda deployment.

Pydantic's part only; `inventory` reads files, says what is wrong by line, and gives out `Host` values.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

ADDRESS = r"^[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,252}$"
"""A host name or an IP address, a zone included; nothing that a shell or an option parser would read."""
USER = r"^[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}$"
Address = Annotated[str, Field(pattern=ADDRESS)]
User = Annotated[str, Field(pattern=USER)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Jump = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?$")
]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class HostKeysOfEntry(_Strict):
    """What may be said of one host, or of all of them under `defaults`."""

    user: User | None = Field(default=None, description="Whom to log in as; null is --username.")
    port: Port = Field(default=22, description="The port of its SSH server.")
    key: Text | None = Field(default=None, description="Private key file; null is --ssh-key.")
    jump: Jump | None = Field(default=None, description="[USER@]HOST[:PORT] to go through.")
    python: Text | None = Field(
        default=None, description="The Python that has torch there; null is --python, else python3."
    )
    directory: Text | None = Field(
        default=None, description="Where to make our directory there; null is its temporary one."
    )
    gpus: int | None = Field(
        default=None, ge=1, le=1024, description="Ranks to start there, one a GPU; null is distributed.nproc."
    )
    gpu_type: Text | None = Field(
        default=None, description="What to call its GPUs in comparisons; null is the name that they report."
    )
    price_per_hour: float | None = Field(default=None, gt=0, le=100_000, description="Of the whole host.")
    interface: Text | None = Field(
        default=None, description="Network interface for gloo and NCCL, as in GLOO_SOCKET_IFNAME."
    )
    internal_address: Address | None = Field(
        default=None, description="Where the other hosts of one job reach it; null is its address."
    )


class HostEntry(HostKeysOfEntry):
    """One host of a plain list."""

    host: Address = Field(description="Address or name of the host.")
    name: Text | None = Field(default=None, description="What to call it; null is its address.")


class HostList(_Strict):
    """A plain list of hosts."""

    hosts: list[HostEntry] = Field(min_length=1, description="The hosts, in the order of their node ranks.")
    defaults: HostKeysOfEntry = Field(
        default_factory=HostKeysOfEntry, description="Keys of a host for all that do not set them."
    )
    currency: Text = Field(default="USD", description="Of price_per_hour.")


class DeployedEntry(HostKeysOfEntry):
    """Instances that one request launched."""

    instance_ids: list[Text] = Field(min_length=1, description="Their ids in the provider's API.")
    ip: Address | None = Field(default=None, description="The address, where there is one instance.")
    hostname: Address | None = Field(default=None, description="Its name, where it has one.")
    name: Text | None = Field(default=None, description="What the instance is called.")
    region: Text | None = Field(default=None, description="Where it runs.")
    status: Text | None = Field(default=None, description="How it stood when the file was written.")


class Deployment(_Strict):
    """What a deployment left: the form that lambdactl writes, and `gpuproof cloud lambda deploy`."""

    timestamp: Any = Field(default=None, description="When it was deployed.")
    instance_type: Text | None = Field(default=None, description="The provider's name of the type.")
    instance_count: int | None = Field(default=None, ge=0, description="How many were asked for.")
    name_prefix: Text | None = Field(default=None, description="What their names begin with.")
    region: Text | None = Field(default=None, description="Where they run.")
    instances: list[DeployedEntry] = Field(min_length=1, description="What each request launched.")
    currency: Text = Field(default="USD", description="Of price_per_hour.")
