"""Options that say on which hosts a command works, the same on every command that can work elsewhere.

In: words. Out: a `HostChoice`, or None for this machine. Loads nothing heavy: reading the inventory is for
`measuring`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import click

from gpuproof.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
SSH, SLURM, KUBERNETES = "ssh:", "slurm", "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChoice:
    """What the options say; None is what the inventory, or the default, says."""

    inventory: str | None
    slurm: str | None = None
    """The file of options for Slurm, empty for none; None where it is not asked for."""
    kubernetes: str | None = None
    """The same for Kubernetes."""
    key: str | None
    username: str | None
    known_hosts: str | None
    accept_new: bool
    max_workers: int | None
    connect_timeout_s: float
    attempts: int
    lease_s: float
    one_job: bool

    @property
    def are_named(self) -> bool:
        """Say whether the command is to work on other hosts."""
        return self.inventory is not None or self.is_queue or self.one_job

    @property
    def is_queue(self) -> bool:
        """Say whether a scheduler is to find the hosts."""
        return self.slurm is not None or self.kubernetes is not None


HERE_ALONE = HostChoice(
    inventory=None,
    key=None,
    username=None,
    known_hosts=None,
    accept_new=False,
    max_workers=None,
    connect_timeout_s=0.0,
    attempts=1,
    lease_s=0.0,
    one_job=False,
)
"""Of commands that work on this machine alone."""
HOW = [field.name for field in fields(HostChoice) if field.name not in ("inventory", SLURM, KUBERNETES)]

_OPTIONS = (
    click.option(
        "--on",
        metavar="WHERE",
        default="local",
        help="Where to run: local (this machine), ssh:FILE, slurm, kubernetes, or slurm:FILE "
        "or kubernetes:FILE (with options in YAML).",
    ),
    click.option(
        "--deployment-file",
        metavar="FILE",
        help="Hosts to run on, as JSON or YAML: the same as --on ssh:FILE.",
    ),
    click.option(
        "--ssh-key", "key", metavar="FILE", help="Private key; without it the agent's and ~/.ssh's."
    ),
    click.option("--username", metavar="NAME", help="User to log in as, where the hosts' file names none."),
    click.option("--known-hosts", metavar="FILE", help="Host keys to trust (~/.ssh/known_hosts)."),
    click.option(
        "--ssh-accept-new",
        "accept_new",
        is_flag=True,
        help="Trust and store the key of a host that is not in known_hosts yet; a changed key never.",
    ),
    click.option(
        "--max-workers",
        type=click.IntRange(1, 4096),
        metavar="N",
        help="How many hosts work at the same time (all).",
    ),
    click.option(
        "--connect-timeout",
        "connect_timeout_s",
        type=click.FloatRange(0.1, 3600),
        default=30.0,
        metavar="SECONDS",
        help="Time that one attempt to connect may take (30).",
    ),
    click.option(
        "--connect-attempts",
        "attempts",
        type=click.IntRange(1, 20),
        default=3,
        metavar="N",
        help="Attempts to connect, 5 s and then ever longer apart (3).",
    ),
    click.option(
        "--lease",
        "lease_s",
        type=click.FloatRange(2, 3600),
        default=30.0,
        metavar="SECONDS",
        help="A host that loses contact for so long ends its ranks and cleans up (30).",
    ),
    click.option(
        "--one-job",
        is_flag=True,
        help="One job over all hosts instead of one on each (distributed.nodes).",
    ),
)


def host_options(command: Command) -> Command:
    """Add the options; the command gets them as `hosts`, a HostChoice."""

    @wraps(command)
    def chosen(*args: Any, on: str, deployment_file: str | None, **kwargs: Any) -> Any:
        how = {name: kwargs.pop(name) for name in HOW}
        choice = HostChoice(
            inventory=_inventory(on, deployment_file),
            slurm=_options_of(SLURM, on),
            kubernetes=_options_of(KUBERNETES, on),
            **how,
        )
        return command(*args, hosts=choice, **kwargs)

    for option in reversed(_OPTIONS):
        chosen = option(chosen)
    return chosen  # type: ignore[return-value]  # click's decorators keep the command's type


def _inventory(on: str, deployment_file: str | None) -> str | None:
    if on == "local":
        return deployment_file
    is_queue = any(_options_of(name, on) is not None for name in (SLURM, KUBERNETES))
    if is_queue and deployment_file is None:
        return None
    if not on.startswith(SSH) or on == SSH:
        cause = "cannot be combined with a file of hosts" if is_queue else "not a place to run"
        next_step = (
            "Write local, ssh:FILE, slurm, slurm:FILE, kubernetes or kubernetes:FILE, and --deployment-file "
            "with local alone"
        )
        raise UsageError(cause, place=f"--on {on}", next_step=next_step)
    if deployment_file is not None and deployment_file != on.removeprefix(SSH):
        raise UsageError(
            "the hosts are named twice", place="--deployment-file", next_step="Give one of the two"
        )
    return on.removeprefix(SSH)


def _options_of(name: str, on: str) -> str | None:
    """Return the file of options for a scheduler, empty for none; None where it is not asked for."""
    where, colon, file = on.partition(":")
    return file if where == name and bool(colon) == bool(file) else None
