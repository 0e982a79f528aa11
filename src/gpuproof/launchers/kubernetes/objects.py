"""A launch's objects in a cluster: create them, send them files, read them, and remove them.

In: a case and its folder. Out: a ConfigMap with the files that the pods need, readable manifests, and the
pods' files in the case's folder. All objects of a launch are owned by the object that starts its pods, so
that Kubernetes also removes them if gpuproof is no longer running.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import IO

from ruamel.yaml import YAML

from gpuproof.base.errors import GpuproofError, RecordError, UsageError
from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.kubernetes.api import Cluster
from gpuproof.launchers.kubernetes.manifests import KINDS, OBJECTS, Kind, launch_manifests, launch_name
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.kubernetes.pods import ARCHIVE, FILES, Manifest, folder_in_pod, kubernetes_node
from gpuproof.launchers.kubernetes.states import PodState
from gpuproof.launchers.queue import FAILED_STATUS, QueuedLaunch
from gpuproof.processes.scratch import scratch_folder
from gpuproof.records.case import Case
from gpuproof.records.run import Failure
from gpuproof.store import layout

AT_ONCE = 8
"""Number of pods that are queried at the same time."""
ROOM_BYTES = 2**20
"""Size limit of a ConfigMap (https://kubernetes.io/docs/concepts/configuration/configmap/)."""


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """An object that was created, and has to be removed."""

    name: str
    uid: str
    kind: Kind


class KubernetesLaunch(QueuedLaunch):
    """The pods of one case."""

    def __init__(self, case: Case, folder: Path, *, wake: Callable[[], object]) -> None:
        super().__init__(case, folder, wake=wake)
        self.name = ""
        self.objects: list[ClusterObject] = []
        self.ending_since_s: float | None = None
        """When the launch's pods were asked to stop, either because one of them stopped, or on request."""
        self.leaving_since_s: float | None = None
        """When the removal of the launch's objects started."""
        self.ended_with = FAILED_STATUS
        """The status to report once all objects have been deleted."""


class LaunchObjects:
    """Creates and removes the objects of launches in a cluster."""

    def __init__(self, options: KubernetesOptions, cluster: Cluster, *, label: str) -> None:
        self._options = options
        self._cluster = cluster
        self._label = label

    def make(self, launch: KubernetesLaunch) -> None:
        """Create a launch's objects; `launch.objects` lists those created so far, even if this fails.

        Raises:
            UsageError: the cluster rejects an object, or the case cannot be run there.
            EnvironmentUnfitError: the cluster does not respond.
        """
        run = layout.run_folder(launch.folder)
        check_runnable(self._options, launch, run)
        node = kubernetes_node(self._options, str(run))
        if node.is_shared:
            build_archive(run / ARCHIVE)
        contents = {} if node.is_shared else pod_files(launch.case, launch.folder)
        # If objects from an earlier attempt remain, they have a different name.
        attempt = len(list(launch.folder.parent.glob(f"{launch.folder.name}{layout.ASIDE}*")))
        launch.name = launch_name(run.name, launch.case, of=f"{run}/{attempt}")
        manifests = launch_manifests(
            self._options, launch.case, node, name=launch.name, run=self._label, contents=contents
        )
        launch.command = manifests_text(manifests)
        (launch.folder / layout.LAUNCH_TEXT).write_text(launch.command, encoding="utf-8")
        *others, starting = manifests
        for manifest in others:
            (kind,) = (kind for kind in OBJECTS if kind.kind == manifest["kind"])
            launch.objects.append(ClusterObject(launch.name, self._cluster.create(manifest, kind), kind))
        kind = KINDS[self._options.engine]
        uid = self._cluster.create(starting, kind)
        owner = {"apiVersion": starting["apiVersion"], "kind": kind.kind, "name": launch.name, "uid": uid}
        owned = list(launch.objects)
        launch.objects.insert(0, ClusterObject(launch.name, uid, kind))
        for dependent in owned:
            self._cluster.set_owner(dependent.name, dependent.kind, owner=owner)

    def address(self, launch: KubernetesLaunch) -> str:
        """Return the address at which a launch's ranks rendezvous."""
        return KINDS[self._options.engine].address.format(launch.name)

    def warnings(self, launch: KubernetesLaunch) -> list[str]:
        """Return the cluster's warnings about a launch, and about the object that creates its pods."""
        names = {launch.name: None, KINDS[self._options.engine].maker.format(launch.name): None}
        return [warning for name in names for warning in self._cluster.warnings(name)]

    def tell_end(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> None:
        """Give running ranks time to write their last messages; unresponsive ones are removed later."""
        node = kubernetes_node(self._options, str(layout.run_folder(launch.folder)))
        words = [self._options.python, node.archive, "kubernetes-task", "--end"]
        words += [
            f"--folder={folder_in_pod(launch.case, node)}",
            f"--nodes={launch.case.placement.num_hosts}",
        ]
        container = "node" if self._options.engine == "trainjob" else "pytorch"
        running = [pod for pod in pods if pod.is_running]

        def tell(pod: PodState) -> None:
            with suppress(GpuproofError):
                self._cluster.run_in(pod.name, container, words)[0].close()

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(tell, running))

    def fetch(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> Failure | None:
        """Fetch the files from a launch's pods; return why any of them could not be fetched."""
        node = kubernetes_node(self._options, str(layout.run_folder(launch.folder)))
        folder = folder_in_pod(launch.case, node)
        words = [self._options.python, node.archive, "kubernetes-files", "send", f"--folder={folder}"]
        holding = [pod for pod in pods if pod.keeps_files]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            failures = list(threads.map(partial(self._fetch_from, words, launch.folder), holding))
        if pods:
            join_output(launch.folder)
        return next((failure for failure in failures if failure is not None), None)

    def _fetch_from(self, words: Sequence[str], folder: Path, pod: PodState) -> Failure | None:
        try:
            sent, fault = self._cluster.run_in(pod.name, FILES, words)
            with sent:
                if fault is None:
                    take_files(sent, folder)
                    return None
        except GpuproofError as error:
            fault = str(error)
        return launch_failure(
            "lost_rank",
            f"the files of pod {pod.name} could not be fetched: {fault}",
            next_step="Set claim in the file passed to --on kubernetes:FILE, or finish the run with --resume",
            host=pod.node or pod.name,
        )

    def remove(self, launch: KubernetesLaunch) -> None:
        """Remove what was created for a launch, but nothing else with its name.

        Raises:
            GpuproofError: some object could not be removed; all others were.
        """
        faults: list[GpuproofError] = []
        for item in list(launch.objects):
            try:
                self._cluster.delete(item.name, item.uid, item.kind)
                launch.objects.remove(item)
            except GpuproofError as error:  # noqa: PERF203  # the rest is removed all the same
                faults.append(error)
        if faults:
            raise faults[0]


def check_runnable(options: KubernetesOptions, launch: KubernetesLaunch, run: Path) -> None:
    """Reject a case that cannot be run in a cluster as requested.

    Raises:
        UsageError: hosts are listed in a fixed order, or the run's folder is not on the volume claim.
    """
    if len(launch.case.placement.hosts) > 1:
        raise UsageError(
            (
                f"{launch.case.case_id} requests its hosts in a fixed order, which Kubernetes does not "
                "preserve"
            ),
            place="--on kubernetes",
            next_step="Set the number of hosts with --distributed.nodes",
        )
    if options.claim_folder is not None and not run.is_relative_to(options.claim_folder):
        raise UsageError(
            f"{run} is not in {options.claim_folder}, where the claim {options.claim} is mounted",
            place="--on kubernetes",
            next_step=f"Set --run.save_dir to a folder below {options.claim_folder}",
        )


def pod_files(case: Case, folder: Path) -> dict[str, bytes]:
    """Return the files that a launch's pods need, by key.

    Raises:
        UsageError: the files are too large.
    """
    contents = {ARCHIVE: _archive(), layout.SPEC: (folder / layout.SPEC).read_bytes()}
    if case.data_file is not None:
        contents["data"] = (layout.run_folder(folder) / case.data_file).read_bytes()
    size = sum(map(len, contents.values()))
    if size > ROOM_BYTES:
        raise UsageError(
            f"{case.data_file} is too large for pods: {size} bytes with the node side, but a "
            f"ConfigMap has room for {ROOM_BYTES}",
            place="data",
            next_step=(
                "Set claim and claim_folder in the file passed to --on kubernetes:FILE, or use other data"
            ),
        )
    return contents


@cache
def _archive() -> bytes:
    with scratch_folder() as folder:
        return build_archive(folder / ARCHIVE).read_bytes()


def take_files(archive: IO[bytes], folder: Path) -> None:
    """Write the files that a pod sent to the launch's folder.

    Raises:
        RecordError: the data is damaged, or would be written outside the folder.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as sent:
            for member in sent:
                _take(sent, member, folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise RecordError(f"data sent by the pod is damaged: {error}", place=str(folder)) from error


def _take(sent: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = PurePosixPath(member.name)
    content = sent.extractfile(member) if member.isfile() else None
    if content is None or path.is_absolute() or ".." in path.parts:
        raise RecordError(f"{member.name!r} is not a file of a launch", place=str(folder))
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while part := content.read(2**20):
            file.write(part)


def join_output(folder: Path) -> None:
    """Write the output of the pods' processes into one file, in the order of node ranks."""
    parts: Sequence[Path] = sorted(
        folder.glob("launcher-output-*.txt"), key=lambda path: int(path.stem.rpartition("-")[2])
    )
    with (folder / layout.LAUNCHER_OUTPUT).open("ab") as output:
        for part in parts:
            output.write(part.read_bytes())
            part.unlink()
    for left in folder.glob("task-*.pid"):
        left.unlink()


def manifests_text(manifests: Sequence[Manifest]) -> str:
    """Write manifests as YAML; for binary content, write only the key, since the rest is unreadable."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.width = 100_000
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # an option without a type
    output = io.StringIO()
    for manifest in manifests:
        shown = manifest
        if "binaryData" in manifest:
            shown = {**manifest, "binaryData": dict.fromkeys(manifest["binaryData"], "")}
        output.write("---\n")
        writer.dump(shown, output)
    return output.getvalue()
