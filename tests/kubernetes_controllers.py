"""The pods that a cluster's controllers make of an object, and what they do when one fails: pure.

In: a Job, a JobSet, a TrainJob or a PyTorchJob as it was sent. Out: pods with the names, labels, variables
and restart policies that those controllers give them, written after their sources: Indexed Jobs of
kube-controller-manager, jobset's controller and webhook, trainer's plug-in for torch with its runtime
torch-distributed, and training-operator's envvar.go.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

Object = dict[str, Any]
SUFFIX = "x7k2p"
"""Of a Job's pods, which a real cluster draws."""
INDEX = "batch.kubernetes.io/job-completion-index"
RUNTIME: Object = {
    "name": "node",
    "template": {"spec": {"template": {"spec": {"containers": [{"name": "node", "image": "theirs"}]}}}},
}
"""What the runtime torch-distributed has in its JobSet: no restart policy, and no limit of tries."""


def pods_of(body: Object) -> list[Object]:
    """Return the pods of an object, in the order of node ranks."""
    name, spec = body["metadata"]["name"], copy.deepcopy(body["spec"])
    if body["kind"] == "PyTorchJob":
        return _of_pytorch_job(name, spec)
    if body["kind"] == "TrainJob":
        spec = _job_set_of(name, spec)
    if body["kind"] in ("JobSet", "TrainJob"):
        return [pod for job in spec["replicatedJobs"] for pod in _of_job_set(name, job)]
    return _of_job(name, spec)


def address_of(body: Object, services: Collection[str]) -> str | None:
    """Return the name by which the other pods reach the first one; None where it has none."""
    name, spec = body["metadata"]["name"], body["spec"]
    if body["kind"] == "PyTorchJob":
        return f"{name}-master-0"  # the operator makes a Service of that name
    if body["kind"] == "Job":
        subdomain = spec["template"]["spec"].get("subdomain")
        return f"{name}-0.{subdomain}" if subdomain in services else None
    network = spec.get("network", {})
    is_named = network.get("enableDNSHostnames", True)
    return f"{name}-node-0-0.{network.get('subdomain', name)}" if is_named else None


def maker_of(body: Object) -> str:
    """Return the name of what makes an object's pods: events about them are of that."""
    name = str(body["metadata"]["name"])
    return f"{name}-node-0" if body["kind"] in ("JobSet", "TrainJob") else name


def ends_the_others(body: Object) -> bool:
    """Say whether the pods that still run are removed once one has failed."""
    if body["kind"] == "PyTorchJob":
        return bool(body["spec"].get("runPolicy", {}).get("cleanPodPolicy", "None") != "None")
    return True


def _of_job(name: str, spec: Object) -> list[Object]:
    pods = []
    for index in range(spec["completions"]):
        known = {INDEX: str(index), "batch.kubernetes.io/job-name": name}
        variables = {"JOB_COMPLETION_INDEX": str(index)} if spec.get("completionMode") == "Indexed" else {}
        pods.append(_pod(f"{name}-{index}-{SUFFIX}", spec["template"], known, variables))
    return pods


def _of_job_set(name: str, job: Object) -> list[Object]:
    """Return the pods of one replicated job; jobset's webhook fills in what is left out."""
    spec = {"completionMode": "Indexed", "completions": 1, **job["template"]["spec"]}
    spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    spec["template"].setdefault("metadata", {})
    return _of_job(f"{name}-{job['name']}-0", spec)


def _job_set_of(name: str, spec: Object) -> Object:
    """Return the JobSet that trainer makes of a TrainJob: its runtime, patched, with the trainer's words."""
    job, trainer = copy.deepcopy(RUNTIME), spec["trainer"]
    job["template"]["spec"]["completions"] = trainer["numNodes"]
    template = job["template"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    for patch in spec["runtimePatches"]:
        (of_job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        patched = of_job["template"]["spec"]["template"]
        (of_container,) = patched["spec"].pop("containers")
        template["metadata"] = patched.get("metadata", {})
        template["spec"] |= patched["spec"]
        container |= of_container
    variables = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    env = [*trainer.get("env", []), *({"name": key, "value": value} for key, value in variables.items())]
    env.append(
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}
    )
    container |= {"image": trainer["image"], "command": trainer["command"], "env": env}
    return {"replicatedJobs": [job]}


def _of_pytorch_job(name: str, spec: Object) -> list[Object]:
    replicas = spec["pytorchReplicaSpecs"]
    num_pods = sum(told["replicas"] for told in replicas.values())
    pods: list[Object] = []
    for kind in ("Master", "Worker"):
        for index in range(replicas.get(kind, {"replicas": 0})["replicas"]):
            told, role = replicas[kind], kind.lower()
            known = {
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": str(index),
            }
            rank = len(pods)
            variables = {
                "PYTHONUNBUFFERED": "0",
                "MASTER_PORT": "23456",
                "MASTER_ADDR": f"{name}-master-0",
                "WORLD_SIZE": str(num_pods),
                "RANK": str(rank),
                "PET_NNODES": str(num_pods),
                "PET_NODE_RANK": str(rank),
            }
            pod = _pod(f"{name}-{role}-{index}", told["template"], known, variables)
            pod["spec"]["restartPolicy"] = told["restartPolicy"]
            pods.append(pod)
    return pods


def _pod(name: str, template: Object, known: dict[str, str], variables: dict[str, str]) -> Object:
    made = copy.deepcopy(template)
    labels = {**made["metadata"].get("labels", {}), **known}
    for container in made["spec"]["containers"]:
        container["env"] = [_filled_in(told, labels) for told in container.get("env", [])]
        container["env"] += [{"name": key, "value": value} for key, value in variables.items()]
    return {"metadata": {"name": name, "labels": labels}, "spec": made["spec"]}


def _filled_in(told: Object, labels: dict[str, str]) -> Object:
    """Return a variable with its value, which may be a label of the pod."""
    if "value" in told:
        return told
    path = told["valueFrom"]["fieldRef"]["fieldPath"]
    return {"name": told["name"], "value": labels[path.partition("'")[2].rstrip("']")]}
