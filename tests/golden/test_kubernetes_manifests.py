"""What Kubernetes is given, word by word, and held against the published schemas of three versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from gpuproof.launchers.kubernetes.manifests import launch_manifests, launch_name
from gpuproof.launchers.kubernetes.objects import manifests_text
from gpuproof.launchers.kubernetes.options import KubernetesOptions, Toleration
from gpuproof.launchers.kubernetes.pods import Manifest, kubernetes_node, num_gpus, rank_resources
from gpuproof.records.work.window import MonitorSpec
from kubernetes_world import ROLES
from records_by_hand import case

VERSIONS = ("1.35", "1.36", "1.37")
MONITORED = replace(case(placement={"device": "cuda"}), monitor=MonitorSpec(interval_s=0.5))
TWO_NODES = case(nproc=8, placement={"num_hosts": 2, "device": "cuda"})
EVERYTHING = KubernetesOptions(
    namespace="lab",
    image="registry.example/torch:2.4",
    pull_secrets=["registry"],
    python="/opt/$py/bin/python",
    resources={"rdma/hca": "1", "memory": "128Gi", "cpu": "64"},
    shm="32Gi",
    node_selector={"gpu": "h100"},
    tolerations=[Toleration(key="gpu", operator="Equal", value="yes", effect="NoSchedule")],
    service_account="bench",
    priority_class="low",
    queue="team",
    interface="eth0",
    env={"NCCL_DEBUG": "WARN"},
)
ON_CLAIM = KubernetesOptions(engine="trainjob", claim="results", claim_folder="/shared")
MANIFESTS = {
    "one_pod": (KubernetesOptions(), MONITORED),
    "two_pods_with_everything": (EVERYTHING, TWO_NODES),
    "jobset": (KubernetesOptions(engine="jobset"), TWO_NODES),
    "pytorchjob": (KubernetesOptions(engine="pytorchjob", shm=None), TWO_NODES),
    "trainjob": (ON_CLAIM, TWO_NODES),
}


def manifests(name: str) -> list[Manifest]:
    options, asked = MANIFESTS[name]
    node = kubernetes_node(options, "/shared/quick/run_1")
    given = {"gpuproof-node.pyz": b"\0\1", "spec.json": b"{}\n"}
    called = launch_name("Run_1", asked)
    return launch_manifests(options, asked, node, name=called, run="shown", contents=given)


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifests_of_a_launch(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"kubernetes/{name}.yaml", manifests_text(manifests(name)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["one_pod", "two_pods_with_everything"])
def test_they_are_valid_for_kubernetes(name: str, version: str) -> None:
    for manifest in manifests(name):
        kubernetes_validate.validate(manifest, version, strict=True)


def pods_of_others() -> list[tuple[str, Any]]:
    job = manifests("jobset")[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    replicas = manifests("pytorchjob")[-1]["spec"]["pytorchReplicaSpecs"]
    return [("Job", job), *(("Pod", replicas[name]["template"]["spec"]) for name in ("Master", "Worker"))]


@pytest.mark.parametrize(("kind", "spec"), pods_of_others())
def test_what_others_make_pods_from_is_valid_too(kind: str, spec: Any) -> None:
    version = "batch/v1" if kind == "Job" else "v1"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    for at in VERSIONS:
        kubernetes_validate.validate(body, at, strict=True)


@pytest.mark.parametrize(
    ("name", "model"), [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")]
)
def test_kubeflows_models_know_every_field(name: str, model: str) -> None:
    from kubeflow_trainer_api import models  # a second and a half, which collecting is spared

    body = manifests(name)[-1]
    assert getattr(models, model).from_dict(body).to_dict() == body


def test_a_key_that_no_schema_knows_is_seen() -> None:
    job = manifests("one_pod")[-1]
    job["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_pods_keep_to_the_restricted_standard() -> None:
    pod = manifests("two_pods_with_everything")[-1]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        places = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/gpuproof/run"} <= places  # what is written, HOME included, goes to volumes
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert "nvidia.com/gpu" not in str(pod["containers"][1]["resources"])


def test_names_fit_into_a_host_s_name_and_tell_launches_apart() -> None:
    long = launch_name("R" * 200 + "_é", TWO_NODES)
    assert len(f"{long}-node-0-999") <= 63
    assert launch_name("a", replace(TWO_NODES, replicate=1)) != launch_name("a", TWO_NODES)
    assert launch_name("a", TWO_NODES, of="/x") != launch_name("a", TWO_NODES, of="/y")


@pytest.mark.parametrize(
    ("asked_for", "placement", "expected"),
    [
        (None, {"device": "auto"}, 4),
        (None, {"devices": (0, 1, 2, 5)}, 6),
        (None, {"device": "cpu"}, 0),
        (8, {}, 8),
    ],
)
def test_gpus_are_as_many_as_the_ranks_need_unless_said(
    asked_for: int | None, placement: dict[str, object], expected: int
) -> None:
    assert (
        num_gpus(KubernetesOptions(gpus_per_node=asked_for), case(nproc=4, placement=placement)) == expected
    )


def test_ranks_request_processors_and_memory_unless_the_user_sets_limits() -> None:
    assert rank_resources(KubernetesOptions(), TWO_NODES) == {
        "requests": {"cpu": "8", "memory": "32Gi"},
        "limits": {"nvidia.com/gpu": "8"},
    }
    limited = KubernetesOptions(resources={"cpu": "2"})
    assert rank_resources(limited, TWO_NODES)["requests"] == {"memory": "32Gi"}
    assert rank_resources(limited, TWO_NODES)["limits"]["cpu"] == "2"


def test_the_roles_are_valid_for_kubernetes() -> None:
    for path in ROLES.glob("kubernetes-rbac*.yaml"):
        for manifest in YAML(typ="safe").load_all(path):
            for version in VERSIONS:
                kubernetes_validate.validate(manifest, version, strict=True)
