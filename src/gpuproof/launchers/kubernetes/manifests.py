"""The Kubernetes manifests for a launch: pure functions, so they can be shown without a cluster.

In: options, a case, where its files are, and a name. Out: the object that starts the pods, preceded by the
objects that they
need: the ConfigMap with the node side and the case, and the headless Service for the rendezvous of an Indexed
Job's ranks.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuproof.launchers.kubernetes.options import Engine, KubernetesOptions
from gpuproof.launchers.kubernetes.pods import (
    OF_LAUNCH,
    OF_RUN,
    TERMINATION_S,
    KubernetesNode,
    Manifest,
    confined,
    mounts,
    placement_fields,
    pod_security,
    pod_template,
    rank_resources,
    rank_variables,
    rank_words,
    volumes,
)
from gpuproof.records.case import Case
from gpuproof.store import layout

NAME_LENGTH = 45
"""Maximum name length of a launch's objects: pods append their index and more to it, and a host name has at
most 63 characters."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The API's name for the kind of object that starts a launch's pods, and the address of rank 0."""

    group: str
    version: str
    plural: str
    kind: str
    address: str
    """Address of the first pod; `{0}` is the launch's name."""
    maker: str = "{0}"
    """Name of the object that creates the pods: the object itself, or a separate Job."""


KINDS: Mapping[Engine, Kind] = {
    "job": Kind("batch", "v1", "jobs", "Job", "{0}-0.{0}"),
    "jobset": Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", "{0}-node-0-0.{0}", "{0}-node-0"),
    "trainjob": Kind(
        *("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", "{0}-node-0-0.{0}", "{0}-node-0")
    ),
    "pytorchjob": Kind("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", "{0}-master-0"),
}


OBJECTS = (
    Kind("", "v1", "configmaps", "ConfigMap", ""),
    Kind("", "v1", "services", "Service", ""),
)
"""The other objects of a launch."""


def launch_name(run_id: str, case: Case, *, of: str = "") -> str:
    """Name a launch's objects after the run, with a digest that distinguishes the run's launches.

    `of` distinguishes runs that have the same ID, for example by their folder.
    """
    identity = f"{of}/{run_id}/{case.case_id}/{case.replicate}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", f"gpuproof-{run_id.lower()}")
    return f"{words[: NAME_LENGTH - 9].strip('-')}-{digest}"


def launch_manifests(
    options: KubernetesOptions,
    case: Case,
    node: KubernetesNode,
    *,
    name: str,
    run: str,
    contents: Mapping[str, bytes],
) -> list[Manifest]:
    """Return a launch's objects in creation order; the last one starts the pods.

    `run` is the label shared by all launches of one gpuproof process; `contents` is the content of the
    ConfigMap, by key.
    """
    labels = {"app.kubernetes.io/managed-by": "gpuproof", OF_LAUNCH: name, OF_RUN: run}
    manifests: list[Manifest] = []
    if not node.is_shared:
        manifests.append(_config_map(labels, contents))
    if options.engine == "job" and case.placement.num_hosts > 1:
        manifests.append(_service(labels))
    return [*manifests, _started(options, case, node, labels=labels)]


def _metadata(labels: Mapping[str, str]) -> Manifest:
    return {"name": labels[OF_LAUNCH], "labels": dict(labels)}


def _config_map(labels: Mapping[str, str], contents: Mapping[str, bytes]) -> Manifest:
    text = {key: content.decode() for key, content in contents.items() if key == layout.SPEC}
    binary = {key: base64.b64encode(content).decode() for key, content in contents.items() if key not in text}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(labels),
        "data": text,
        "binaryData": binary,
    }


def _service(labels: Mapping[str, str]) -> Manifest:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {OF_LAUNCH: labels[OF_LAUNCH]}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(labels), "spec": spec}


def _started(
    options: KubernetesOptions, case: Case, node: KubernetesNode, *, labels: Mapping[str, str]
) -> Manifest:
    """Return the object that starts the pods."""
    kind = KINDS[options.engine]
    address = kind.address.format(labels[OF_LAUNCH])
    if options.engine == "trainjob":
        spec = _train_job(options, case, node, labels=labels, address=address)
    else:
        template = pod_template(options, case, node, labels=labels, address=address)
        spec = _SPECS[options.engine](options, case, template, labels[OF_LAUNCH])
    metadata = _metadata(labels)
    if options.queue is not None:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
    return {
        "apiVersion": f"{kind.group}/{kind.version}",
        "kind": kind.kind,
        "metadata": metadata,
        "spec": spec,
    }


def _job(options: KubernetesOptions, case: Case, template: Manifest, name: str) -> Manifest:
    if case.placement.num_hosts > 1:
        template = {**template, "spec": {**template["spec"], "subdomain": name}}
    return {**_indexed(options, case, template), "ttlSecondsAfterFinished": options.ttl_s}


def _indexed(options: KubernetesOptions, case: Case, template: Manifest) -> Manifest:
    """Return an Indexed Job that starts each pod once: a restarted pod would overwrite its records."""
    num_hosts = case.placement.num_hosts
    return {
        "completionMode": "Indexed",
        "completions": num_hosts,
        "parallelism": num_hosts,
        "backoffLimit": 0,
        "activeDeadlineSeconds": options.active_deadline_s,
        "template": template,
    }


def _job_set(options: KubernetesOptions, case: Case, template: Manifest, name: str) -> Manifest:
    job = {"spec": _indexed(options, case, template)}
    return {
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": options.ttl_s,
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": job}],
    }


def _pytorch_job(options: KubernetesOptions, case: Case, template: Manifest, _name: str) -> Manifest:
    def replicas(number: int) -> Manifest:
        return {"replicas": number, "restartPolicy": "Never", "template": template}

    policy = {
        "cleanPodPolicy": "None",  # otherwise the operator would remove pods before their files are fetched
        "backoffLimit": 0,
        "activeDeadlineSeconds": options.active_deadline_s,
        "ttlSecondsAfterFinished": options.ttl_s,
    }
    others = case.placement.num_hosts - 1
    specs = {"Master": replicas(1), **({"Worker": replicas(others)} if others else {})}
    return {"runPolicy": policy, "pytorchReplicaSpecs": specs}


_SPECS = {"job": _job, "jobset": _job_set, "pytorchjob": _pytorch_job}


def _train_job(
    options: KubernetesOptions, case: Case, node: KubernetesNode, *, labels: Mapping[str, str], address: str
) -> Manifest:
    """Return a TrainJob for Kubeflow's trainer; settings without a field are patched in its runtime."""
    name = labels[OF_LAUNCH]
    trainer = {
        "image": options.image,
        "command": rank_words(options, case, node, address=address),
        "env": rank_variables(options, case),
        "numNodes": case.placement.num_hosts,
        "numProcPerNode": case.placement.ranks_per_host,
        "resourcesPerNode": rank_resources(options, case),
    }
    placed = placement_fields(options, case, name=name)
    placed.pop("priorityClassName", None)  # a patch has no field for this
    container = {
        "name": "node",
        "securityContext": confined(),
        "volumeMounts": mounts(options, node, with_shm=True),
    }
    pod = {
        "terminationGracePeriodSeconds": TERMINATION_S,
        "securityContext": pod_security(options),
        "containers": [container],
        "volumes": volumes(options, case, node, name=name),
        **placed,
    }
    template = {"spec": {"template": {"metadata": {"labels": dict(labels)}, "spec": pod}}}
    spec = {"replicatedJobs": [{"name": "node", "template": template}]}
    patch = {"manager": "gpuproof/launcher", "trainingRuntimeSpec": {"template": {"spec": spec}}}
    return {
        "runtimeRef": {"name": "torch-distributed"},
        "activeDeadlineSeconds": options.active_deadline_s,
        "trainer": trainer,
        "runtimePatches": [patch],
    }
