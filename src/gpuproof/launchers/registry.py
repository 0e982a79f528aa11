"""Which launchers there are, and how each is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING

from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.launchers.base import Launcher

if TYPE_CHECKING:
    from gpuproof.launchers.kubernetes.options import KubernetesOptions
    from gpuproof.launchers.slurm.site import SlurmSite
    from gpuproof.launchers.ssh.site import SshHosts

LAUNCHERS: Mapping[str, str] = {
    "local": "gpuproof.launchers.local.launcher:LocalLauncher",
    "attached": "gpuproof.launchers.local.attached:AttachedLauncher",
    "ssh": "gpuproof.launchers.ssh.launcher:SshLauncher",
    "slurm": "gpuproof.launchers.slurm.launcher:SlurmLauncher",
    "kubernetes": "gpuproof.launchers.kubernetes.launcher:KubernetesLauncher",
}
"""By name, classes with a class method `opened` that takes what `open_launcher` does."""


def open_launcher(
    name: str,
    *,
    python: str | None = None,
    hosts: SshHosts | None = None,
    slurm: SlurmSite | None = None,
    kubernetes: KubernetesOptions | None = None,
    environment: Mapping[str, str] = os.environ,
    many_launches: bool = False,
) -> AbstractContextManager[Launcher]:
    """Give a launcher by name, closed in the end; `python` runs the ranks where no host says otherwise.

    `many_launches` says that a launcher of the user's has to keep its ranks for more than one.

    Raises:
        UsageError: there is none of that name, or keys or known hosts cannot be read.
        EnvironmentUnfitError: what it needs is not installed.
    """
    if name not in LAUNCHERS:
        raise UsageError(f"no launcher: {name}", next_step=f"There are {', '.join(LAUNCHERS)}")
    module, _, cls = LAUNCHERS[name].partition(":")
    try:
        launcher = getattr(import_module(module), cls)
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{name} needs {error.name}, which is not here ({error})",
            next_step=f"pip install 'gpuproof[{name}]'",
        ) from error
    opened: AbstractContextManager[Launcher] = launcher.opened(
        python=python,
        hosts=hosts,
        slurm=slurm,
        kubernetes=kubernetes,
        environment=environment,
        many_launches=many_launches,
    )
    return opened
