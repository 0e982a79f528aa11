"""The states of a launch's pods, computed from the API's list without side effects.

In: pods as mappings. Out: `PodState`s, what a launch is waiting for and, if its ranks cannot report it, how
it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.kubernetes.pods import FILES, Manifest
from gpuproof.records.run import Failure

RANKS = ("pytorch", "node")
"""Names of the ranks' container: ours, which PyTorchJob also uses, and TrainJob's."""
INDEXES = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
UNFIT = {
    "ErrImagePull": None,  # Kubernetes tries again, and then reports ImagePullBackOff
    "ImagePullBackOff": "Check image and pull_secrets in the file passed to --on kubernetes:FILE",
    "InvalidImageName": "Write image in the file passed to --on kubernetes:FILE as REGISTRY/NAME:TAG",
    "ErrImageNeverPull": "Set pull_policy to IfNotPresent in the file passed to --on kubernetes:FILE",
    "CreateContainerConfigError": "`kubectl describe pod` shows more; check run_as_user and the secrets",
    "CreateContainerError": "`kubectl describe pod` shows more; check image and python",
    "RunContainerError": "`kubectl describe pod` shows more; check image and python",
    "StartError": "Set python in the file passed to --on kubernetes:FILE to the image's own",
}
"""Reason why a container does not start → what to do; None if it may still start."""
DELETED = "Deleted"
"""Our own term, not a Kubernetes term: a pod that is being removed without a stated reason."""
_RESUME = "Finish the run with --resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The state of a single pod."""

    name: str
    index: int
    """The pod's node number in the launch."""
    node: str
    """Node on which the pod runs; empty before it is scheduled."""
    is_running: bool
    """Whether the pod's ranks are running."""
    status: int | None
    """Exit status of the ranks' container; None before it exits."""
    keeps_files: bool
    """Whether files can be fetched from the second container."""
    has_failed: bool = False
    """Whether the pod has failed as a whole, in which case its owner deletes the others."""
    reason: str = ""
    """Why the pod is not running or has exited, as a reason code from Kubernetes."""
    message: str = ""
    """Why the pod is not running or has exited, as a message from Kubernetes."""

    @property
    def is_lost(self) -> bool:
        """Check whether the pod was removed, whether or not its ranks left final messages."""
        return self.reason in _TAKEN


_TAKEN = frozenset(
    {
        *("Evicted", "Preempted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", DELETED),
        *("DeadlineExceeded", "PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"),
        *("DeletionByPodGC", "TerminationByKubelet"),
    }
)


def pod_state(pod: Manifest) -> PodState:
    """Read the state of a pod."""
    metadata, status = pod["metadata"], pod.get("status", {})
    containers = {container["name"]: _state(container) for container in status.get("containerStatuses") or ()}
    ranks: Manifest = next((containers[name] for name in RANKS if name in containers), {})
    ended = ranks.get("terminated")
    has_failed = status.get("phase") == "Failed"
    reason, message = _reason(pod, ranks)
    return PodState(
        name=metadata["name"],
        index=_index(metadata),
        node=pod.get("spec", {}).get("nodeName") or "",
        is_running="running" in ranks,
        status=int(ended["exitCode"]) if ended else (1 if has_failed else None),
        keeps_files="running" in containers.get(FILES, {}),
        has_failed=has_failed,
        reason=reason,
        message=message,
    )


def _state(container: Manifest) -> Manifest:
    """Return a container's state; a restarted one counts as exited: ranks do not start twice."""
    last = container.get("lastState") or {}
    state: Manifest = last if "terminated" in last else container.get("state", {})
    return state


def _index(metadata: Manifest) -> int:
    """Return the node rank of a pod; in a PyTorchJob, the workers follow the master."""
    marks = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
    index = int(next((marks[name] for name in INDEXES if name in marks), "0"))
    is_worker = marks.get("training.kubeflow.org/replica-type") == "worker"
    return index + 1 if is_worker else index


def _reason(pod: Manifest, ranks: Manifest) -> tuple[str, str]:
    """Return what is wrong with a pod, the most severe problem first."""
    status = pod.get("status", {})
    if status.get("reason"):
        return status["reason"], status.get("message", "")
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    taken = conditions.get("DisruptionTarget", {})
    if taken.get("status") == "True":
        return taken.get("reason", "Terminated"), taken.get("message", "")
    if pod["metadata"].get("deletionTimestamp"):
        return DELETED, "it was deleted, and not by gpuproof"
    for state in ("terminated", "waiting"):
        if ranks.get(state):
            return ranks[state].get("reason", ""), ranks[state].get("message", "")
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return scheduled.get("reason", ""), scheduled.get("message", "")
    return "", ""


def waiting_for(pods: Sequence[PodState], *, num_pods: int, warnings: Sequence[str]) -> str:
    """Report what keeps a launch from starting, in the cluster's words."""
    for pod in pods:
        if not pod.is_running and pod.reason:
            return f"{pod.name}: {pod.reason}{': ' if pod.message else ''}{pod.message}"
    if len(pods) < num_pods and warnings:
        return warnings[-1]
    return f"{num_pods - sum(pod.is_running for pod in pods)} of {num_pods} pods"


def has_failed_pod(pods: Sequence[PodState]) -> bool:
    """Check whether a pod failed without being deleted; others may then be deleted because of it."""
    return any(pod.has_failed and pod.reason != DELETED for pod in pods)


def launch_trouble(pods: Sequence[PodState]) -> Failure | None:
    """Report how pods made a launch fail; None if the ranks report it, or nothing is wrong.

    A pod that was only deleted comes last, and is not reported if another pod has failed, since that failure
    is the cause.
    """
    has_cause = has_failed_pod(pods)
    for pod in sorted(pods, key=lambda pod: pod.reason == DELETED):
        if pod.reason == DELETED and has_cause:
            continue
        where = f"pod {pod.name}" + (f" on {pod.node}" if pod.node else "")
        words = f"{pod.reason}{': ' if pod.message else ''}{pod.message}"
        host = pod.node or pod.name
        if pod.is_lost:
            message = f"{where} was removed: {words}"
            return launch_failure("interrupted", message, next_step=_RESUME, host=host)
        if pod.reason == "OOMKilled":
            return launch_failure(
                "out_of_memory",
                f"{where} used more of its host's memory than it was allowed to",
                next_step="Raise memory under `resources` in the file passed to --on kubernetes:FILE",
                host=host,
            )
        next_step = UNFIT.get(pod.reason)
        if next_step is not None:
            return launch_failure(
                "environment", f"{where} cannot start: {words}", next_step=next_step, host=host
            )
    return None
