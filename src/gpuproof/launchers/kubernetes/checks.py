"""Can a cluster run GPU launches? The checks behind `gpuproof kubernetes verify`.

In: nodes as listed by the API, and the options for launches. Out: one outcome per check. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base.outside import plain
from gpuproof.base.redaction import redacted
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.records.outcome import Expectation, Judged, Outcome
from gpuproof.records.page import Fact
from gpuproof.verdict.check import stated_check
from gpuproof.verdict.facts import HostFacts

Node = Mapping[str, Any]
NODES_PAGE = "https://kubernetes.io/docs/concepts/architecture/nodes/#condition"
DEVICES_PAGE = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"
TAINTS_PAGE = "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"


def _name(node: Node) -> str:
    return str(node["metadata"]["name"])


def _amount(node: Node, which: str, resource: str) -> int:
    return int(node.get("status", {}).get(which, {}).get(resource, 0))


def _is_ready(node: Node) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return is_ready and not node.get("spec", {}).get("unschedulable", False)


def _offering(facts: HostFacts) -> list[Node]:
    """Return the nodes that are Ready and offer the type of GPU that launches request."""
    resource = facts["options"].gpu_resource
    return [x for x in facts["nodes"] if _amount(x, "allocatable", resource) > 0 and _is_ready(x)]


def facts_seen(facts: HostFacts, *, server: str) -> tuple[Fact, ...]:
    """Return these nodes' cluster and its resources, in the format that pages use for a source."""
    resource = facts["options"].gpu_resource
    amounts = [amount for node in facts["nodes"] if (amount := _amount(node, "capacity", resource))]
    device = f"{sum(amounts)} × {resource} on {len(amounts)} of {len(facts['nodes'])} nodes"
    nobody_says = "the API of a cluster does not report it; a run reports what a pod sees"
    return (
        Fact("cluster", redacted(plain(server))),
        Fact("device", device if amounts else None, f"no node has {resource}"),
        *(Fact(name, None, nobody_says) for name in ("driver", "CUDA or ROCm", "torch")),
    )


@stated_check(
    "nodes",
    "every node Ready and schedulable",
    NODES_PAGE,
    "`kubectl describe node` shows why; launches use the other nodes",
    responsible="administrator",
    otherwise="WARN",
)
def judge_nodes(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check whether the nodes are ready."""
    nodes: Sequence[Node] = facts["nodes"]
    bad = [_name(node) for node in nodes if not _is_ready(node)]
    share = f"{len(nodes) - len(bad)} of {len(nodes)}"
    return expected.judge(bool(nodes) and not bad, f"{share}; not {', '.join(bad)}" if bad else share)


@stated_check(
    "GPUs",
    "at least one Ready node that offers it",
    DEVICES_PAGE,
    "Install the vendor's device plug-in or GPU operator, or set gpu_resource",
    responsible="administrator",
)
def judge_gpus(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check whether any node offers GPUs."""
    ready, resource = _offering(facts), facts["options"].gpu_resource
    amounts = ", ".join(f"{_name(node)}: {_amount(node, 'allocatable', resource)}" for node in ready)
    return expected.judge(
        bool(ready), f"{resource} on {len(ready)} nodes{f' ({amounts})' if amounts else ''}"
    )


@stated_check(
    "healthy GPUs",
    "all GPUs of a node healthy: as many allocatable as installed",
    DEVICES_PAGE,
    "Look at the device plug-in's log on the node, and for Xid errors in dmesg",
    responsible="administrator",
    otherwise="WARN",
)
def judge_healthy(facts: HostFacts, expected: Expectation) -> Outcome | None:
    """Check whether all GPUs of the nodes are allocatable to launches."""
    nodes, resource = facts["nodes"], facts["options"].gpu_resource
    there = {_name(node): _amount(node, "capacity", resource) for node in nodes}
    usable = {_name(node): _amount(node, "allocatable", resource) for node in nodes}
    if not any(there.values()):
        return None
    bad = [f"{name}: {usable[name]} of {there[name]}" for name in there if usable[name] < there[name]]
    return expected.judge(not bad, "; ".join(bad) or f"{sum(usable.values())} of {sum(there.values())}")


@stated_check(
    "placement",
    "at least one GPU node whose labels and taints allow launches",
    TAINTS_PAGE,
    "Set node_selector and tolerations in the file of options",
)
def judge_placement(facts: HostFacts, expected: Expectation) -> Outcome | None:
    """Check whether launches may be scheduled on a node that offers GPUs."""
    ready = _offering(facts)
    if not ready:
        return None
    hindrances = {_name(node): _hindrance(node, facts["options"]) for node in ready}
    bad = [f"{name}: {why}" for name, why in hindrances.items() if why]
    return expected.judge(len(bad) < len(ready), "; ".join(bad) or f"all {len(ready)}")


def _hindrance(node: Node, options: KubernetesOptions) -> str | None:
    """Return what keeps launches off a node; None if nothing does."""
    labels = node["metadata"].get("labels", {})
    missing = [key for key, value in options.node_selector.items() if labels.get(key) != value]
    if missing:
        return f"does not have the label {missing[0]}={options.node_selector[missing[0]]}"
    taints = node.get("spec", {}).get("taints", ())
    binding = [taint for taint in taints if taint["effect"] != "PreferNoSchedule"]
    minded = [taint for taint in binding if not _is_tolerated(taint, options)]
    return f"has the taint {minded[0]['key']}:{minded[0]['effect']}" if minded else None


def _is_tolerated(taint: Mapping[str, Any], options: KubernetesOptions) -> bool:
    return any(
        rule.key in (None, taint["key"])
        and rule.effect in (None, taint["effect"])
        and (rule.operator == "Exists" or rule.value == taint.get("value", ""))
        for rule in options.tolerations
    )


@stated_check(
    "resources",
    "offered by a GPU node, as requested in the options",
    DEVICES_PAGE,
    "Set resources to what `kubectl describe node` lists; RDMA needs a separate device plug-in",
)
def judge_resources(facts: HostFacts, expected: Expectation) -> Iterator[Judged]:
    """For each other resource that launches request, check whether a node offers it."""
    for name in (name for name in facts["options"].resources if "/" in name):
        offering = [_name(node) for node in _offering(facts) if _amount(node, "allocatable", name) > 0]
        measured = f"on {', '.join(offering)}" if offering else "on none"
        yield Judged(name=name, outcome=expected.judge(bool(offering), measured))
