"""The launcher of `--on kubernetes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from gpuproof.launchers.base import Launcher
from gpuproof.launchers.kubernetes.api import Cluster
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.kubernetes.queue import KubernetesQueue


class KubernetesLauncher:
    """Opens a queue in one namespace of a cluster."""

    @classmethod
    @contextmanager
    def opened(
        cls, *, kubernetes: KubernetesOptions, environment: Mapping[str, str], **_: object
    ) -> Iterator[Launcher]:
        """Give a launcher for the cluster that the kubeconfig names.

        Raises:
            EnvironmentUnfitError: there is no way to a cluster, or nobody answers.
            UsageError: it does not let us look at pods.
        """
        with (
            closing(Cluster(kubernetes, environment)) as cluster,
            closing(KubernetesQueue(kubernetes, cluster)) as queue,
        ):
            yield queue
