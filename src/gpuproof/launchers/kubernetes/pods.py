"""The pod of one node of a launch, as Kubernetes is given it: pure.

In: options, a case, and where its files are. Out: a pod's template. The first container runs the ranks; where
results do not lie on a volume of the user's, a second one without GPUs keeps files until they are fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuproof.launchers.commands import NodeSide, Rendezvous, commands_for, rank_environment
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.processes.granted import GRANTED
from gpuproof.records.case import Case
from gpuproof.store import layout

Manifest = dict[str, Any]
ARCHIVE = "gpuproof-node.pyz"
GIVEN, RUN = "/gpuproof/given", "/gpuproof/run"
"""What the launcher gives a pod, and where the pod keeps the run directory, unless it is on a claim."""
PORT = 29500
"""Where ranks meet: each pod has its own network."""
FILES = "files"
OF_LAUNCH, OF_RUN = "gpuproof/launch", "gpuproof/run"
"""Labels: the name of a launch's objects, and what all launches of one gpuproof have in common."""
TMP = "/tmp"  # noqa: S108  # a volume in a container of its own
MEMORY_GIB_PER_RANK = 4
"""That a rank asks for: torch, its libraries and the driver's own take two or three on the host."""
TERMINATION_S = 60
"""Time between SIGTERM and SIGKILL: for last words, and for the launcher to fetch them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesNode:
    """Where the node side lies in a pod, and the run directory there."""

    archive: str
    run: str
    is_shared: bool
    """Whether that run directory is this machine's own, on a claim."""


def kubernetes_node(options: KubernetesOptions, run: str) -> KubernetesNode:
    """Say where the node side and the run directory lie in a pod; `run` is the run directory here."""
    if options.claim is not None:
        return KubernetesNode(archive=f"{run}/{ARCHIVE}", run=run, is_shared=True)
    return KubernetesNode(archive=f"{GIVEN}/{ARCHIVE}", run=RUN, is_shared=False)


def folder_in_pod(case: Case, node: KubernetesNode) -> str:
    """Return the launch's folder as its pods see it."""
    return f"{node.run}/{layout.launch_path(case.case_id, case.replicate)}"


def rank_words(options: KubernetesOptions, case: Case, node: KubernetesNode, *, address: str) -> list[str]:
    """Return the words of the ranks' container, each `$` doubled, as Kubernetes reads it."""
    side = NodeSide(
        python=_literal(options.python),
        worker=(_literal(node.archive),),
        run=_literal(node.run),
        host="$GPUPROOF_HOST",
        pid="$GPUPROOF_PID",
        folder="$GPUPROOF_FOLDER",
    )
    port = None if case.placement.num_ranks == 1 else PORT
    meeting = Rendezvous(node_rank="$NODE_RANK", address=address, port=port)
    source = [] if node.is_shared else [f"--given={GIVEN}/run", f"--run={node.run}"]
    words = [options.python, node.archive, "kubernetes-task", f"--folder={folder_in_pod(case, node)}"]
    words += [f"--nodes={case.placement.num_hosts}", *source]
    for command in commands_for(case, side, meeting).started:
        words += ["--", *command]
    return [word.replace("$", "$$") for word in words]


def _literal(word: str) -> str:
    return word.replace("$", "$$")


def num_gpus(options: KubernetesOptions, case: Case) -> int:
    """Return how many GPUs each pod gets: as many as are named, else one a rank."""
    return case.placement.gpus_per_host if options.gpus_per_node is None else options.gpus_per_node


def rank_resources(options: KubernetesOptions, case: Case) -> Manifest:
    """Return what a pod's ranks get: a processor and memory for each, where `resources` sets no limits.

    What has a limit is requested as it is, as GPUs and RDMA need it.
    """
    gpus, num_ranks = num_gpus(options, case), case.placement.ranks_per_host
    limits = {**options.resources, **({options.gpu_resource: str(gpus)} if gpus else {})}
    least = {"cpu": str(num_ranks), "memory": f"{MEMORY_GIB_PER_RANK * num_ranks}Gi"}
    requests = {key: amount for key, amount in least.items() if key not in limits}
    return {key: amounts for key, amounts in (("requests", requests), ("limits", limits)) if amounts}


def rank_variables(options: KubernetesOptions, case: Case) -> list[Manifest]:
    """Return the variables of the ranks; a user without an entry in passwd needs a name and a home.

    What the pod's limits grant is told with them: inside, nothing says how many GPUs there should be.
    """
    home = {"HOME": TMP, "USER": "gpuproof", "LOGNAME": "gpuproof"}
    gpus = num_gpus(options, case)
    grant = {GRANTED: f"{gpus} {options.gpu_resource} of the pod's limits"} if gpus else {}
    variables = {**home, **grant, **rank_environment(options.interface), **options.env}
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]


def pod_template(
    options: KubernetesOptions, case: Case, node: KubernetesNode, *, labels: Mapping[str, str], address: str
) -> Manifest:
    """Return the template of a launch's pods; PyTorchJob wants the ranks' container called `pytorch`."""
    ranks = {
        "name": "pytorch",
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": rank_words(options, case, node, address=address),
        "env": rank_variables(options, case),
        "resources": rank_resources(options, case),
        "securityContext": confined(),
        "volumeMounts": mounts(options, node, with_shm=True),
    }
    held = [] if node.is_shared else [_files_container(options, case, node)]
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": TERMINATION_S,
        "securityContext": pod_security(options),
        "containers": [ranks, *held],
        "volumes": volumes(options, case, node, name=labels[OF_LAUNCH]),
        **placement_fields(options, case, name=labels[OF_LAUNCH]),
    }
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def _files_container(options: KubernetesOptions, case: Case, node: KubernetesNode) -> Manifest:
    folder = folder_in_pod(case, node)
    words = [options.python, node.archive, "kubernetes-files", "hold", f"--folder={folder}"]
    return {
        "name": FILES,
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": [_literal(word) for word in [*words, f"--lease={options.lease_s:g}"]],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": confined(),
        "volumeMounts": mounts(options, node, with_shm=False),
    }


def pod_security(options: KubernetesOptions) -> Manifest:
    """Return what Kubernetes' restricted standard asks of a pod."""
    user = options.run_as_user
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def confined() -> Manifest:
    """Return what that standard asks of a container; it writes to its volumes alone."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def mounts(options: KubernetesOptions, node: KubernetesNode, *, with_shm: bool) -> list[Manifest]:
    """Return where a container sees the volumes."""
    shm = [{"name": "shm", "mountPath": "/dev/shm"}] if with_shm and options.shm else []  # noqa: S108
    temporary = [{"name": "tmp", "mountPath": TMP}, *shm]
    if node.is_shared:
        return [{"name": "run", "mountPath": options.claim_folder}, *temporary]
    inputs = {"name": "given", "mountPath": GIVEN, "readOnly": True}
    return [{"name": "run", "mountPath": RUN}, inputs, *temporary]


def volumes(options: KubernetesOptions, case: Case, node: KubernetesNode, *, name: str) -> list[Manifest]:
    """Return a pod's volumes: the run directory, what is given, temporary files, shared memory."""
    memory = {"medium": "Memory", "sizeLimit": options.shm}
    temporary = [{"name": "tmp", "emptyDir": {}}]
    temporary += [{"name": "shm", "emptyDir": memory}] if options.shm else []
    if node.is_shared:
        return [{"name": "run", "persistentVolumeClaim": {"claimName": options.claim}}, *temporary]
    items = [{"key": key, "path": path} for key, path in pod_file_paths(case).items()]
    inputs = {"name": "given", "configMap": {"name": name, "items": items}}
    return [{"name": "run", "emptyDir": {}}, inputs, *temporary]


def pod_file_paths(case: Case) -> dict[str, str]:
    """Return by key of the launch's ConfigMap where its content lies below the folder of what is given."""
    folder = layout.launch_path(case.case_id, case.replicate)
    paths = {ARCHIVE: ARCHIVE, layout.SPEC: f"run/{folder}/{layout.SPEC}"}
    return paths if case.data_file is None else {**paths, "data": f"run/{case.data_file}"}


def placement_fields(options: KubernetesOptions, case: Case, *, name: str) -> Manifest:
    """Return the fields of a pod that say where it may run, and who it is."""
    fields: Manifest = {
        "nodeSelector": options.node_selector,
        "tolerations": [rule.model_dump(mode="json", exclude_none=True) for rule in options.tolerations],
        "imagePullSecrets": [{"name": secret} for secret in options.pull_secrets],
        "priorityClassName": options.priority_class,
        "serviceAccountName": options.service_account,
        "affinity": _affinity(options, case, name=name),
    }
    return {key: value for key, value in fields.items() if value}


def _affinity(options: KubernetesOptions, case: Case, *, name: str) -> Manifest:
    affinity: Manifest = {}
    if options.one_pod_per_node and case.placement.num_hosts > 1:
        apart = {"labelSelector": {"matchLabels": {OF_LAUNCH: name}}, "topologyKey": "kubernetes.io/hostname"}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    if case.placement.hosts:
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(case.placement.hosts)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [host]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return affinity
