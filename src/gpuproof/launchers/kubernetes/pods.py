"""Builds the pod for one node of a launch, as submitted to Kubernetes, without side effects.

In: options, a case, and where its files are. Out: a pod template. The first container runs the ranks; unless
results go to a user's volume, a second container without GPUs keeps the files until they are fetched.
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
"""Where a pod finds the launcher's files, and where it stores the run directory, unless that is on a
claim."""
PORT = 29500
"""Rendezvous port; it is always free, since each pod has its own network."""
FILES = "files"
OF_LAUNCH, OF_RUN = "gpuproof/launch", "gpuproof/run"
"""Labels: the name of a launch's objects, and the label shared by all launches of one gpuproof process."""
TMP = "/tmp"  # noqa: S108  # a volume in a container of its own
MEMORY_GIB_PER_RANK = 4
"""Memory requested per rank: torch, its libraries and the driver's own use two or three GiB on the host."""
TERMINATION_S = 60
"""Time between SIGTERM and SIGKILL, to write last messages and let the launcher fetch them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesNode:
    """The paths of the node side and of the run directory in a pod."""

    archive: str
    run: str
    is_shared: bool
    """Whether the run directory is the same as on this machine, because it is on a volume claim."""


def kubernetes_node(options: KubernetesOptions, run: str) -> KubernetesNode:
    """Return where the node side and the run directory are in a pod; `run` is the local directory."""
    if options.claim is not None:
        return KubernetesNode(archive=f"{run}/{ARCHIVE}", run=run, is_shared=True)
    return KubernetesNode(archive=f"{GIVEN}/{ARCHIVE}", run=RUN, is_shared=False)


def folder_in_pod(case: Case, node: KubernetesNode) -> str:
    """Return the launch's folder as seen by its pods."""
    return f"{node.run}/{layout.launch_path(case.case_id, case.replicate)}"


def rank_words(options: KubernetesOptions, case: Case, node: KubernetesNode, *, address: str) -> list[str]:
    """Return the command for the ranks' container, with each `$` doubled, as Kubernetes requires."""
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
    """Return the number of GPUs per pod: the given number, or else one per rank."""
    return case.placement.gpus_per_host if options.gpus_per_node is None else options.gpus_per_node


def rank_resources(options: KubernetesOptions, case: Case) -> Manifest:
    """Return the resources for a pod's ranks: CPU and memory per rank, unless set in `resources`.

    Resources with a limit are requested in the same amount, as GPUs and RDMA require.
    """
    gpus, num_ranks = num_gpus(options, case), case.placement.ranks_per_host
    limits = {**options.resources, **({options.gpu_resource: str(gpus)} if gpus else {})}
    least = {"cpu": str(num_ranks), "memory": f"{MEMORY_GIB_PER_RANK * num_ranks}Gi"}
    requests = {key: amount for key, amount in least.items() if key not in limits}
    return {key: amounts for key, amounts in (("requests", requests), ("limits", limits)) if amounts}


def rank_variables(options: KubernetesOptions, case: Case) -> list[Manifest]:
    """Return the variables for the ranks; a user without a passwd entry needs a name and a home.

    One variable contains the number of GPUs in the pod's limits, since nothing else inside the pod shows how
    many there should be.
    """
    home = {"HOME": TMP, "USER": "gpuproof", "LOGNAME": "gpuproof"}
    gpus = num_gpus(options, case)
    grant = {GRANTED: f"{gpus} {options.gpu_resource} of the pod's limits"} if gpus else {}
    variables = {**home, **grant, **rank_environment(options.interface), **options.env}
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]


def pod_template(
    options: KubernetesOptions, case: Case, node: KubernetesNode, *, labels: Mapping[str, str], address: str
) -> Manifest:
    """Return the pod template; PyTorchJob requires the ranks' container to be named `pytorch`."""
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
    """Return what Kubernetes' restricted security standard requires of a pod."""
    user = options.run_as_user
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def confined() -> Manifest:
    """Return what that standard requires of a container, which writes only to its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def mounts(options: KubernetesOptions, node: KubernetesNode, *, with_shm: bool) -> list[Manifest]:
    """Return the volume mounts of a container."""
    shm = [{"name": "shm", "mountPath": "/dev/shm"}] if with_shm and options.shm else []  # noqa: S108
    temporary = [{"name": "tmp", "mountPath": TMP}, *shm]
    if node.is_shared:
        return [{"name": "run", "mountPath": options.claim_folder}, *temporary]
    inputs = {"name": "given", "mountPath": GIVEN, "readOnly": True}
    return [{"name": "run", "mountPath": RUN}, inputs, *temporary]


def volumes(options: KubernetesOptions, case: Case, node: KubernetesNode, *, name: str) -> list[Manifest]:
    """Return a pod's volumes: run directory, input files, temporary files, shared memory."""
    memory = {"medium": "Memory", "sizeLimit": options.shm}
    temporary = [{"name": "tmp", "emptyDir": {}}]
    temporary += [{"name": "shm", "emptyDir": memory}] if options.shm else []
    if node.is_shared:
        return [{"name": "run", "persistentVolumeClaim": {"claimName": options.claim}}, *temporary]
    items = [{"key": key, "path": path} for key, path in pod_file_paths(case).items()]
    inputs = {"name": "given", "configMap": {"name": name, "items": items}}
    return [{"name": "run", "emptyDir": {}}, inputs, *temporary]


def pod_file_paths(case: Case) -> dict[str, str]:
    """Return, for each key in the launch's ConfigMap, the path of its content below the input folder."""
    folder = layout.launch_path(case.case_id, case.replicate)
    paths = {ARCHIVE: ARCHIVE, layout.SPEC: f"run/{folder}/{layout.SPEC}"}
    return paths if case.data_file is None else {**paths, "data": f"run/{case.data_file}"}


def placement_fields(options: KubernetesOptions, case: Case, *, name: str) -> Manifest:
    """Return the fields of a pod that define where it may run and under which identity."""
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
