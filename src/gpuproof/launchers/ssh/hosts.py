"""What is a host to a launcher, and at which stage did it fail?

In: the inventory. Out: values that the SSH launcher, the fleet's campaign and its report share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.errors import EnvironmentUnfitError

Stage = Literal["setup", "deploy", "execute", "download", "parse", "exception"]
"""Connect, carry the node side over, run, bring files back, read them; or a fault of ours."""

CONNECT_TIMEOUT_S = 30.0
ATTEMPTS = 3
RETRY_DELAY_S = 5.0
"""Before the second attempt; doubled before each further one."""
LEASE_S = 30.0


class HostError(EnvironmentUnfitError):
    """A host cannot be used: which, at which stage, and why."""

    def __init__(self, cause: str, *, host: str, stage: Stage, next_step: str | None = None) -> None:
        super().__init__(cause, place=f"{host}: {stage}", next_step=next_step)
        self.host = host
        self.stage = stage


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
