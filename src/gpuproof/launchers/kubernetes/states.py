"""How a launch's pods stand, read from what the API lists: pure.

In: pods as mappings. Out: `PodState`s, what a launch waits for, and how it failed where its ranks cannot say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.kubernetes.pods import FILES, Manifest
from gpuproof.records.run import Failure

RANKS = ("pytorch", "node")
"""What the container of the ranks is called: ours and PyTorchJob's, and TrainJob's."""
INDEXES = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
UNFIT = {
    "ErrImagePull": None,  # Kubernetes tries again, and says ImagePullBackOff then
    "ImagePullBackOff": "Look at image and pull_secrets in the file of --on kubernetes:FILE",
    "InvalidImageName": "Write image in the file of --on kubernetes:FILE as REGISTRY/NAME:TAG",
    "ErrImageNeverPull": "Set pull_policy to IfNotPresent in the file of --on kubernetes:FILE",
    "CreateContainerConfigError": "`kubectl describe pod` says more; look at run_as_user and at the secrets",
    "CreateContainerError": "`kubectl describe pod` says more; look at image and python",
    "RunContainerError": "`kubectl describe pod` says more; look at image and python",
    "StartError": "Set python in the file of --on kubernetes:FILE to the image's own",
}
"""Why a container does not begin, and what to do; None where it may yet."""
DELETED = "Deleted"
"""Not a word of Kubernetes': a pod that is on its way out, and nothing says why."""
_RESUME = "Finish the run with --resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """How one pod stands."""

    name: str
    index: int
    """Which node of the launch it is."""
    node: str
    """Where it runs; empty before."""
    is_running: bool
    """Whether its ranks run."""
    status: int | None
    """Exit status of its ranks' container; None before its end."""
    keeps_files: bool
    """Whether its second container can be asked for files."""
    has_failed: bool = False
    """Whether it has failed as a whole: whoever made it then deletes the others."""
    reason: str = ""
    """Why it does not run, or ended, as Kubernetes calls it …"""
    message: str = ""
    """… and in its words."""

    @property
    def is_lost(self) -> bool:
        """Say whether it was taken away, with or without its ranks' last words."""
        return self.reason in _TAKEN


_TAKEN = frozenset(
    {
        *("Evicted", "Preempted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", DELETED),
        *("DeadlineExceeded", "PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"),
        *("DeletionByPodGC", "TerminationByKubelet"),
    }
)


def pod_state(pod: Manifest) -> PodState:
    """Read how a pod stands."""
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
    """Return how a container stands; one that was started again has ended: its ranks do not begin twice."""
    last = container.get("lastState") or {}
    state: Manifest = last if "terminated" in last else container.get("state", {})
    return state


def _index(metadata: Manifest) -> int:
    """Return the node rank of a pod; of a PyTorchJob, the workers come after the master."""
    marks = {**metadata.get("labels", {}), **metadata.get("annotations", {})}
    index = int(next((marks[name] for name in INDEXES if name in marks), "0"))
    is_worker = marks.get("training.kubeflow.org/replica-type") == "worker"
    return index + 1 if is_worker else index


def _reason(pod: Manifest, ranks: Manifest) -> tuple[str, str]:
    """Return what is the matter with a pod, the gravest first."""
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
    """Say what keeps a launch from beginning, in the cluster's words."""
    for pod in pods:
        if not pod.is_running and pod.reason:
            return f"{pod.name}: {pod.reason}{': ' if pod.message else ''}{pod.message}"
    if len(pods) < num_pods and warnings:
        return warnings[-1]
    return f"{num_pods - sum(pod.is_running for pod in pods)} of {num_pods} pods"


def has_failed_pod(pods: Sequence[PodState]) -> bool:
    """Say whether a pod has failed that nobody deleted: then others are deleted because of it."""
    return any(pod.has_failed and pod.reason != DELETED for pod in pods)


def launch_trouble(pods: Sequence[PodState]) -> Failure | None:
    """Say how pods failed a launch; None where the ranks know better, or nothing is wrong.

    A pod that was only deleted comes last, and is not told of where another has failed: that one is why.
    """
    has_cause = has_failed_pod(pods)
    for pod in sorted(pods, key=lambda pod: pod.reason == DELETED):
        if pod.reason == DELETED and has_cause:
            continue
        where = f"pod {pod.name}" + (f" on {pod.node}" if pod.node else "")
        words = f"{pod.reason}{': ' if pod.message else ''}{pod.message}"
        host = pod.node or pod.name
        if pod.is_lost:
            message = f"{where} was taken away: {words}"
            return launch_failure("interrupted", message, next_step=_RESUME, host=host)
        if pod.reason == "OOMKilled":
            return launch_failure(
                "out_of_memory",
                f"{where} took more memory of its host than it was given",
                next_step="Raise memory in `resources` of the file of --on kubernetes:FILE",
                host=host,
            )
        next_step = UNFIT.get(pod.reason)
        if next_step is not None:
            return launch_failure(
                "environment", f"{where} cannot begin: {words}", next_step=next_step, host=host
            )
    return None
