"""What is asked of Kubernetes for a run, apart from what the recipe says: image, resources, places.

In: a YAML file (`--on kubernetes:FILE`). Out: `KubernetesOptions`, or one `ConfigError` with every mistake by
line. How many pods and ranks a launch has is the recipe's (`distributed.nodes`, `distributed.nproc`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gpuproof.config.entries import StrictModel, Text, open_document, read_as

Engine = Literal["job", "jobset", "trainjob", "pytorchjob"]
Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
"""What Kubernetes takes as the name of an object."""
Key = Annotated[
    str, Field(max_length=317, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""A key of a label, a taint or a resource."""
Quantity = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(m|k|[MGTPE]i?|Ki)?$")]
"""An amount as Kubernetes writes it, as in 500m or 64Gi."""
Folder = Annotated[str, Field(max_length=1000, pattern=r"^/[^\x00-\x1f\x7f:]+$")]
IMAGE = "nvcr.io/nvidia/pytorch:24.07-py3"
"""The vendor's own, with PyTorch 2.4; the node side is carried to it."""


class Toleration(StrictModel):
    """A taint of nodes that pods do not mind."""

    key: Key | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesOptions(StrictModel):
    """Options of every launch of a run."""

    namespace: Name | None = None
    """Namespace of the pods; null is that of the context."""
    context: Text | None = None
    """Context of the kubeconfig; null is its current one, or the pod's own account inside a cluster."""
    engine: Engine = "job"
    """What starts the pods: job (an Indexed Job, which every cluster has), jobset, or Kubeflow's trainjob or
    pytorchjob."""
    image: Text = IMAGE
    """Image that the ranks run in: any with Python 3.10 or newer and PyTorch."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    pull_secrets: list[Name] = Field(default_factory=list)
    """Secrets of the namespace that hold the registry's password."""
    python: Text = "python3"
    """The Python with torch in the image."""
    gpu_resource: Key = "nvidia.com/gpu"
    """What the cluster calls a GPU, as in amd.com/gpu."""
    gpus_per_node: int | None = Field(default=None, ge=0, le=1024)
    """GPUs of each pod; null is one a rank (none under distributed.device: cpu)."""
    resources: dict[Key, Quantity] = Field(default_factory=dict)
    """Limits of each pod, such as rdma/hca: "1", cpu: "32" or memory: 128Gi; without these two a rank asks
    for a processor and 4 GiB, and has no limit."""
    shm: Quantity | None = "16Gi"
    """Shared memory (/dev/shm) of each pod; null leaves the 64 MiB of the container runtime."""
    node_selector: dict[Key, str] = Field(default_factory=dict)
    """Labels that nodes must have."""
    tolerations: list[Toleration] = Field(
        default_factory=lambda: [Toleration(key="nvidia.com/gpu", effect="NoSchedule")]
    )
    """Taints that pods tolerate."""
    one_pod_per_node: bool = True
    """Whether pods of one launch go to different nodes."""
    service_account: Name | None = None
    """Account that pods run under; they get no token of it."""
    priority_class: Name | None = None
    """Priority class of the pods."""
    queue: Name | None = None
    """Kueue's local queue that launches go through."""
    run_as_user: int = Field(default=1000, ge=1)
    """User of the processes, and group of their files; never root."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.=^,-]+$", max_length=200)] | None = None
    """Network interface for gloo and NCCL, as in GLOO_SOCKET_IFNAME."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Variables of the ranks."""
    claim: Name | None = None
    """PersistentVolumeClaim that results are written to; null has them pulled out of the pods."""
    claim_folder: Folder | None = None
    """Where that claim's content lies on this machine; pods see it at the same path."""
    ttl_s: int = Field(default=3600, ge=0)
    """Seconds after which Kubernetes removes a finished launch that gpuproof could not remove."""
    active_deadline_s: int = Field(default=86_400, ge=60)
    """Seconds after which Kubernetes ends a launch, whatever became of gpuproof."""
    lease_s: float = Field(default=600.0, ge=10)
    """Seconds that a pod keeps its files after its ranks have ended, for gpuproof to come for them."""
    max_launches: int = Field(default=10, ge=1, le=10_000)
    """Launches in the cluster at the same time."""
    pending_limit_s: float = Field(default=1800.0, gt=0)
    """Seconds after which a launch whose pods have not begun is removed and counts as failed."""

    @field_validator("run_as_user", mode="before")
    @classmethod
    def _refuse_root(cls, value: object) -> object:
        if value == 0:
            raise ValueError("pods never run as root")
        return value

    @model_validator(mode="after")
    def _check_claim(self) -> KubernetesOptions:
        if (self.claim is None) != (self.claim_folder is None):
            raise ValueError("claim and claim_folder go together")
        if self.engine == "trainjob" and self.claim is None:
            raise ValueError("a TrainJob takes no second container to keep files in: it needs a claim")
        return self


def load_kubernetes_options(path: str) -> KubernetesOptions:
    """Read a file of options; an empty one changes nothing.

    Raises:
        ConfigError: it cannot be read, or is wrong; every mistake with its line.
    """
    document = open_document(path, what="Kubernetes options")
    return KubernetesOptions() if document.data is None else read_as(KubernetesOptions, document)
