"""Where a run takes place in a Kubernetes cluster, and what each launch requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from gpuproof.base.errors import UsageError
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.kubernetes.manifests import launch_manifests, launch_name
from gpuproof.launchers.kubernetes.options import KubernetesOptions, load_kubernetes_options
from gpuproof.launchers.kubernetes.pods import ARCHIVE, kubernetes_node
from gpuproof.launchers.registry import HostChoice
from gpuproof.launchers.site import LaunchSite
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import THIS_MACHINE, HostPlace

HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSite(LaunchSite):
    """The options for a run's launches."""

    launcher: ClassVar[str] = "kubernetes"
    libraries: ClassVar[Mapping[str, str]] = {"kubernetes": "kubernetes"}
    starts: ClassVar[str] = "manifests"

    options: KubernetesOptions = field(default_factory=KubernetesOptions)

    @classmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Read the options.

        Raises:
            UsageError: the file is invalid, or requests something that is not possible in a cluster.
        """
        if choice.one_job:
            raise UsageError(
                "the number of nodes for the single job is not set; the cluster chooses the nodes",
                place="--one-job",
                next_step="Write --distributed.nodes=N instead of --one-job",
            )
        options = load_kubernetes_options(choice.file) if choice.file else KubernetesOptions()
        return cls(options=options.model_copy(update={"python": python or options.python}))

    @classmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Read back the options.

        Raises:
            UsageError: the file is invalid, or an earlier version accepted options that are impossible.
        """
        del python
        if choice.file:
            return cls(options=load_kubernetes_options(choice.file))
        try:
            return cls(options=KubernetesOptions.model_validate(run.description()[cls.launcher]))
        except ValidationError as error:
            raise UsageError(
                f"the run's options are not possible: {error.errors(include_url=False)[0]['msg']}",
                place="--resume",
                next_step="Give corrected ones with --on kubernetes:FILE",
            ) from error

    def places(self) -> Sequence[HostPlace]:
        """Return the one node on which all launches run in sequence; none if the cluster chooses.

        If every pod has all GPUs of one named node to itself, a suite may build on earlier results from that
        node.
        """
        options = self.options
        is_one = HOSTNAME in options.node_selector and options.max_launches == 1
        return THIS_MACHINE if is_one and options.gpus_per_node is not None else ()

    @property
    def text(self) -> str:
        """Describe the cluster and the image."""
        namespace = f", namespace {self.options.namespace}" if self.options.namespace else ""
        return f"Kubernetes{namespace}, a {self.options.engine} for each launch, in {self.options.image}"

    def described(self) -> dict[str, Any]:
        """Return the options."""
        return {self.launcher: self.options.model_dump(mode="json")}

    def shown(self, cases: Iterable[Case], run: Path) -> Iterator[str]:
        """Yield the manifests of each launch, with a comment on why they should not be applied by hand."""
        from gpuproof.launchers.kubernetes.objects import manifests_text

        root = run.absolute()
        node = kubernetes_node(self.options, str(root))
        lacking = f"{ARCHIVE} is empty here" if self.options.claim is None else f"{root} does not exist yet"
        yield f"# For inspection, not to apply: {lacking}, and nothing would fetch or evaluate the results.\n"
        for case in cases:
            spec = json.dumps(to_json(case), indent=2) + "\n"
            data = {} if case.data_file is None else {"data": b""}
            content = {ARCHIVE: b"", layout.SPEC: spec.encode(), **data}
            name = launch_name(run.name, case)
            yield manifests_text(
                launch_manifests(self.options, case, node, name=name, run="shown", contents=content)
            )

    def opened(
        self, *, environment: Mapping[str, str], many_launches: bool
    ) -> AbstractContextManager[Launcher]:
        """Yield a launcher for the cluster in the kubeconfig.

        Raises:
            EnvironmentUnfitError: the cluster cannot be reached, or does not respond.
            UsageError: we are not allowed to list pods.
        """
        from gpuproof.launchers.kubernetes.queue import open_queue

        del many_launches
        return open_queue(self.options, environment)
