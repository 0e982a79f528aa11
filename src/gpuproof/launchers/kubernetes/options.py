"""What a run requests from Kubernetes in addition to the recipe: image, resources, nodes.

In: a YAML file (`--on kubernetes:FILE`). Out: `KubernetesOptions`, or one `ConfigError` that lists every
mistake with its line. The recipe defines how many pods and ranks a launch has (`distributed.nodes`,
`distributed.nproc`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gpuproof.config.entries import StrictModel, Text, open_document, read_as

Engine = Literal["job", "jobset", "trainjob", "pytorchjob"]
Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
"""Object names that Kubernetes accepts."""
Key = Annotated[
    str, Field(max_length=317, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""The key of a label, a taint or a resource."""
Quantity = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(m|k|[MGTPE]i?|Ki)?$")]
"""An amount in Kubernetes notation, e.g. 500m or 64Gi."""
Folder = Annotated[str, Field(max_length=1000, pattern=r"^/[^\x00-\x1f\x7f:]+$")]
IMAGE = "nvcr.io/nvidia/pytorch:24.07-py3"
"""The vendor's official image, with PyTorch 2.4; the node side is copied into it."""


class Toleration(StrictModel):
    """A node taint that pods tolerate."""

    key: Key | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    """Exists if no value is given, otherwise Equal, as in Kubernetes."""
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _compare_values(cls, rule: object) -> object:
        if isinstance(rule, dict) and rule.get("value") is not None and rule.get("operator") is None:
            return {**rule, "operator": "Equal"}
        return rule

    @model_validator(mode="after")
    def _check_operator(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists tolerates every value: leave out value, or set operator: Equal")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("operator Equal needs a key")
        return self


class KubernetesOptions(StrictModel):
    """Options that apply to every launch of a run."""

    namespace: Name | None = None
    """Namespace of the pods; null uses the namespace of the context."""
    context: Text | None = None
    """Kubeconfig context; null uses the current one or, inside a cluster, the pod's own account."""
    engine: Engine = "job"
    """Kind of object that starts the pods: job (an Indexed Job, available in every cluster), jobset, or
    Kubeflow's trainjob or pytorchjob."""
    image: Text = IMAGE
    """Image in which the ranks run; it needs Python 3.10 or newer and PyTorch."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When to pull the image."""
    pull_secrets: list[Name] = Field(default_factory=list)
    """Secrets in the namespace that contain the password of the image registry."""
    python: Text = "python3"
    """The image's Python that has torch installed."""
    gpu_resource: Key = "nvidia.com/gpu"
    """The name of the GPU resource in the cluster, e.g. amd.com/gpu."""
    gpus_per_node: int | None = Field(default=None, ge=0, le=1024)
    """GPUs per pod; null requests one per rank (none with distributed.device: cpu)."""
    resources: dict[Key, Quantity] = Field(default_factory=dict)
    """Limits of each pod, such as rdma/hca: "1", cpu: "32" or memory: 128Gi; if the latter two are not set,
    each rank requests one CPU and 4 GiB and has no limit on them."""
    shm: Quantity | None = "16Gi"
    """Size of the shared memory (/dev/shm) of each pod; null keeps the container runtime's 64 MiB."""
    node_selector: dict[Key, str] = Field(default_factory=dict)
    """Labels that nodes must have."""
    tolerations: list[Toleration] = Field(
        default_factory=lambda: [Toleration(key="nvidia.com/gpu", effect="NoSchedule")]
    )
    """Taints that pods tolerate."""
    one_pod_per_node: bool = True
    """Whether the pods of a launch must run on different nodes."""
    service_account: Name | None = None
    """Service account under which pods run; they get no token for it."""
    priority_class: Name | None = None
    """Priority class of the pods."""
    queue: Name | None = None
    """Kueue's local queue for the launches."""
    run_as_user: int = Field(default=1000, ge=1)
    """User that runs the processes, and group of their files; never root."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.=^,-]+$", max_length=200)] | None = None
    """Network interface for gloo and NCCL, as in GLOO_SOCKET_IFNAME."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Environment variables for the ranks."""
    claim: Name | None = None
    """PersistentVolumeClaim for the results; null fetches results from the pods."""
    claim_folder: Folder | None = None
    """Where that claim is mounted on this machine; pods mount it at the same path."""
    ttl_s: int = Field(default=3600, ge=0)
    """Seconds after which Kubernetes removes a finished launch if gpuproof could not remove it."""
    active_deadline_s: int = Field(default=86_400, ge=60)
    """Seconds after which Kubernetes stops a launch, even if gpuproof is no longer running."""
    lease_s: float = Field(default=600.0, ge=10)
    """Seconds for which a pod keeps its files after its ranks have exited, for gpuproof to fetch them."""
    max_launches: int = Field(default=10, ge=1, le=10_000)
    """Maximum number of launches that run in the cluster at the same time."""
    pending_limit_s: float = Field(default=1800.0, gt=0)
    """Seconds after which a launch is removed and counts as failed if its pods have not started."""

    @field_validator("run_as_user", mode="before")
    @classmethod
    def _refuse_root(cls, value: object) -> object:
        if value == 0:
            raise ValueError("pods never run as root")
        return value

    @model_validator(mode="after")
    def _check_claim(self) -> KubernetesOptions:
        if (self.claim is None) != (self.claim_folder is None):
            raise ValueError("claim and claim_folder must be set together")
        if self.engine == "trainjob" and self.claim is None:
            raise ValueError("a TrainJob does not accept a second container to hold files: it needs a claim")
        return self


def load_kubernetes_options(path: str) -> KubernetesOptions:
    """Read an options file; an empty one changes nothing.

    Raises:
        ConfigError: the file cannot be read, or is wrong; lists every mistake with its line.
    """
    document = open_document(path, what="Kubernetes options")
    return KubernetesOptions() if document.data is None else read_as(KubernetesOptions, document)
