"""Which launchers there are, and how each is opened: local, attached, ssh."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.launchers.archive import built_node_side, node_side_for
from gpuproof.launchers.base import Launcher

if TYPE_CHECKING:
    from gpuproof.launchers.ssh.hosts import SshHosts

OpenLauncher = Callable[..., AbstractContextManager[Launcher]]


def open_launcher(
    name: str,
    *,
    python: str | None = None,
    hosts: SshHosts | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AbstractContextManager[Launcher]:
    """Give a launcher by name, closed in the end; `python` runs the ranks where no host says otherwise.

    Raises:
        UsageError: there is none of that name, or keys or known hosts cannot be read.
        EnvironmentUnfitError: what it needs is not installed.
    """
    if name not in LAUNCHERS:
        raise UsageError(f"no launcher: {name}", next_step=f"There are {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name](python=python, hosts=hosts, environment=environment)


@contextmanager
def _local(
    *, python: str | None, hosts: SshHosts | None, environment: Mapping[str, str]
) -> Iterator[Launcher]:
    from gpuproof.launchers.local import LocalLauncher

    del hosts
    with node_side_for(python) as worker:
        own = LocalLauncher(python=python or sys.executable, worker=worker, environment=environment)
        with closing(own) as launcher:
            yield launcher


@contextmanager
def _attached(
    *, python: str | None, hosts: SshHosts | None, environment: Mapping[str, str]
) -> Iterator[Launcher]:
    from gpuproof.launchers.attached import AttachedLauncher

    del hosts
    with node_side_for(python) as worker:
        own = AttachedLauncher(python=python or sys.executable, worker=worker, environment=environment)
        with closing(own) as launcher:
            yield launcher


@contextmanager
def _ssh(*, python: str | None, hosts: SshHosts | None, environment: Mapping[str, str]) -> Iterator[Launcher]:
    del python, environment
    assert hosts is not None
    try:
        from gpuproof.launchers.ssh.launcher import SshLauncher
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"hosts are reached with asyncssh, which is not here ({error})",
            next_step="pip install 'gpuproof[ssh]'",
        ) from error
    with built_node_side() as archive:
        content = archive.read_bytes()
    with closing(SshLauncher(hosts.hosts, hosts.options, archive=content)) as launcher:
        yield launcher


LAUNCHERS: Mapping[str, OpenLauncher] = {"local": _local, "attached": _attached, "ssh": _ssh}
