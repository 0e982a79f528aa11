"""Kubernetes as a queue: each launch is a set of objects, removed once its files are fetched.

In: cases that state how many pods they need. Out: events that report where each ran and how it finished. A
separate thread talks to the API: it creates the launches requested since its last round, lists all pods in
one call (less often while nothing changes), fetches files, and removes objects.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from uuid import uuid4

from gpuproof.base.errors import GpuproofError
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.kubernetes.api import Cluster
from gpuproof.launchers.kubernetes.objects import KubernetesLaunch, LaunchObjects
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.kubernetes.pods import OF_LAUNCH, OF_RUN, PORT, Manifest
from gpuproof.launchers.kubernetes.states import (
    DELETED,
    PodState,
    has_failed_pod,
    launch_trouble,
    pod_state,
    waiting_for,
)
from gpuproof.launchers.queue import LaunchQueue
from gpuproof.records.case import Placed
from gpuproof.records.run import Failure
from gpuproof.store.run import append_record

LAST_WORDS_S = 60.0
"""Time for ranks to exit after they are asked to, in addition to the grace period of torch's agent."""
GONE_S = 120.0
"""Time allowed for removed pods to disappear."""


class KubernetesQueue(LaunchQueue[KubernetesLaunch]):
    """Runs cases in a cluster."""

    end_s = GONE_S

    def __init__(self, options: KubernetesOptions, cluster: Cluster) -> None:
        """Start the thread."""
        super().__init__(KubernetesLaunch, name="kubernetes", max_busy=options.max_launches)
        self._options = options
        self._cluster = cluster
        self._label = uuid4().hex[:12]
        self._objects = LaunchObjects(options, cluster, label=self._label)
        self._thread.start()

    def close(self) -> None:
        """Remove the remaining launches, and stop the thread."""
        super().close()
        for launch in self._open:
            self._remove(launch)

    # The methods below run in the thread.

    def _begin(self, launches: Sequence[KubernetesLaunch]) -> None:
        for launch in launches:
            self._make(launch)

    def _make(self, launch: KubernetesLaunch) -> None:
        if launch.num_end_requests:
            self._over(launch)
            return
        try:
            self._objects.make(launch)
        except GpuproofError as error:
            self._remove(launch)
            if not self._has_begun:
                raise
            failure = launch_failure("environment", f"not started: {error}", next_step=error.next_step)
            append_record(launch.folder, failure)
            self._over(launch)
            return
        self._has_begun = True
        launch.waits_for, launch.since_s = "the cluster", time.monotonic()

    def _tell_ends(self) -> None:
        """Ask the ranks of launches to stop, if requested; remove them on a second request."""
        for launch in self._open:
            if launch.num_end_requests <= launch.num_end_signals or launch.leaving_since_s is not None:
                continue
            if launch.num_end_signals or launch.placed is None:
                self._leave(launch)
            launch.num_end_signals = launch.num_end_requests

    def _look(self) -> bool:
        by_launch: dict[str, list[Manifest]] = defaultdict(list)
        for pod in self._cluster.pods(f"{OF_RUN}={self._label}"):
            by_launch[pod["metadata"]["labels"].get(OF_LAUNCH, "")].append(pod)
        self._heard_s = time.monotonic()
        changed = [self._heard(launch, by_launch[launch.name]) for launch in list(self._open)]
        return any(changed)

    def _heard(self, launch: KubernetesLaunch, listed: Sequence[Manifest]) -> bool:
        """Record the states of a launch's pods; return whether they have changed."""
        before = launch.waits_for, launch.placed, launch.leaving_since_s, launch.is_over
        pods = sorted(map(pod_state, listed), key=lambda pod: pod.index)
        if launch.leaving_since_s is not None:
            self._is_leaving(launch, pods)
        elif launch.placed is None and not self._place(launch, pods):
            self._waits(launch, pods)
        else:
            self._runs(launch, pods)
        return (launch.waits_for, launch.placed, launch.leaving_since_s, launch.is_over) != before

    def _place(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> bool:
        """Report where a launch runs, once all its pods are running or have run."""
        placement = launch.case.placement
        begun = [pod for pod in pods if pod.node and (pod.is_running or pod.status is not None)]
        if len(begun) < placement.num_hosts:
            return False
        is_alone = placement.num_ranks == 1
        launch.placed = Placed(
            hosts=tuple(pod.node for pod in begun),
            ranks_per_host=placement.ranks_per_host,
            address=None if is_alone else self._objects.address(launch),
            port=None if is_alone else PORT,
        )
        launch.waits_for = None
        return True

    def _waits(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> None:
        """Report what a launch is waiting for; give up if it can never start, or waits too long."""
        num_pods = launch.case.placement.num_hosts
        warnings = self._objects.warnings(launch) if len(pods) < num_pods else []
        launch.waits_for = waiting_for(pods, num_pods=num_pods, warnings=warnings)
        failure = launch_trouble(pods) or next((_ended_early(pod) for pod in pods if pod.status), None)
        limit_s = self._options.pending_limit_s
        if failure is None and time.monotonic() - launch.since_s > limit_s:
            failure = launch_failure(
                "environment",
                f"{launch.name} has not started within {limit_s:g} s: {launch.waits_for}",
                next_step="Raise pending_limit_s, or request less, in the file passed to --on "
                "kubernetes:FILE. `kubectl describe nodes` shows what is free",
            )
        if failure is not None:
            self._leave(launch, pods, failure)

    def _runs(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> None:
        """Follow a launch that has started; once one pod has failed, ask the others to stop."""
        num_pods = launch.case.placement.num_hosts
        failure = self._trouble(launch, pods)
        ended = [pod for pod in pods if pod.status is not None or (pod.is_lost and not pod.is_running)]
        if len(ended) >= num_pods and len(pods) >= num_pods:
            self._leave(launch, pods, failure)
            return
        if launch.ending_since_s is None:
            if failure or launch.num_end_requests or any(pod.status for pod in pods):
                launch.ending_since_s = time.monotonic()
                self._objects.tell_end(launch, pods)
        elif time.monotonic() - launch.ending_since_s > LAST_WORDS_S or len(ended) == len(pods):
            self._leave(launch, pods, failure)

    def _trouble(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> Failure | None:
        """Report how pods caused a launch to fail; if they were only removed, look up the reason."""
        failure = launch_trouble(pods)
        are_missing = len(pods) < launch.case.placement.num_hosts
        if has_failed_pod(pods) or not (are_missing or any(pod.reason == DELETED for pod in pods)):
            return failure
        return self._overdue(launch) or failure or _vanished(launch, pods)

    def _overdue(self, launch: KubernetesLaunch) -> Failure | None:
        """Report that the cluster removed a launch's pods because of a timeout, if the cluster says so."""
        deadlines = [
            warning for warning in self._objects.warnings(launch) if warning.startswith("DeadlineExceeded")
        ]
        if not deadlines:
            return None
        return launch_failure(
            "interrupted",
            f"{launch.name} was stopped by the cluster: {deadlines[-1]}",
            next_step="Raise active_deadline_s in the file passed to --on kubernetes:FILE, and "
            "finish the run with --resume --on kubernetes:FILE",
        )

    def _leave(
        self,
        launch: KubernetesLaunch,
        pods: Sequence[PodState] = (),
        failure: Failure | None = None,
    ) -> None:
        """Fetch the pods' files, report how the launch finished, and remove its objects."""
        unfetched = self._objects.fetch(launch, pods)
        for record in (failure, unfetched):
            if record is not None:
                append_record(launch.folder, record)
        statuses = [pod.status for pod in pods]
        is_well = failure is unfetched is None and bool(pods) and not any(status != 0 for status in statuses)
        launch.ended_with = 0 if is_well else next((s for s in statuses if s), launch.ended_with)
        launch.leaving_since_s = time.monotonic()
        self._remove(launch)

    def _is_leaving(self, launch: KubernetesLaunch, pods: Sequence[PodState]) -> None:
        """Wait until the pods have disappeared, so that the next launch can use their GPUs."""
        if not pods:
            self._over(launch)
        elif launch.leaving_since_s is not None and time.monotonic() - launch.leaving_since_s > GONE_S:
            names = " ".join(pod.name for pod in pods)
            self._notes.append(f"pods did not disappear within {GONE_S:g} s: kubectl get pods {names}")
            self._over(launch)

    def _remove(self, launch: KubernetesLaunch) -> None:
        try:
            self._objects.remove(launch)
        except GpuproofError as error:
            left = f"-n {self._cluster.namespace} -l {OF_LAUNCH}={launch.name}"
            removal = f"kubectl delete job,configmap,service,pod {left}"
            self._notes.append(f"{launch.name} may be left in the cluster ({error.cause}): {removal}")

    def _over(self, launch: KubernetesLaunch) -> None:
        launch.finish(launch.ended_with)
        self._open.remove(launch)

    def _abandon(self) -> None:
        for launch in list(self._open):
            self._remove(launch)
            self._over(launch)


def _ended_early(pod: PodState) -> Failure:
    words = f": {pod.reason} {pod.message}".rstrip()
    return launch_failure(
        "environment",
        f"pod {pod.name} exited with status {pod.status} before the others had started{words}",
        host=pod.node or pod.name,
    )


def _vanished(launch: KubernetesLaunch, pods: Sequence[PodState]) -> Failure:
    there = {pod.index for pod in pods}
    missing = [node for node in range(launch.case.placement.num_hosts) if node not in there]
    hosts = launch.placed.hosts if launch.placed is not None else ()
    named = "+".join(hosts[node] for node in missing if node < len(hosts))
    return launch_failure(
        "lost_rank",
        f"pod {', '.join(map(str, missing))} of {launch.name} is gone, along with its files",
        next_step="`kubectl get events` may show why; finish the run with --resume",
        host=named or launch.name,
    )


@contextmanager
def open_queue(options: KubernetesOptions, environment: Mapping[str, str]) -> Iterator[KubernetesQueue]:
    """Yield a queue in the cluster of the kubeconfig; it is closed at the end.

    Raises:
        EnvironmentUnfitError: the cluster cannot be reached, or does not respond.
        UsageError: we are not allowed to list pods.
    """
    with (
        closing(Cluster(options, environment)) as cluster,
        closing(KubernetesQueue(options, cluster)) as queue,
    ):
        yield queue
