"""Can a cluster run GPU launches? The checks behind `gpuproof kubernetes verify`.

In: nodes as the API lists them, and the options that launches have. Out: an outcome each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.records.outcome import Expectation, Judged, Outcome

Node = Mapping[str, Any]
NODES_PAGE = "https://kubernetes.io/docs/concepts/architecture/nodes/#condition"
DEVICES_PAGE = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"
TAINTS_PAGE = "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"
READY = Expectation(
    "every node Ready",
    NODES_PAGE,
    "`kubectl describe node` says why; launches go to the others",
    responsible="administrator",
    otherwise="WARN",
)
PLUGIN = Expectation(
    "one Ready node at least that offers it",
    DEVICES_PAGE,
    "Install the vendor's device plug-in or GPU operator, or set gpu_resource",
    responsible="administrator",
)
WHOLE = Expectation(
    "all GPUs of a node healthy: as many allocatable as there are",
    DEVICES_PAGE,
    "Look at the device plug-in's log on the node, and for Xid errors in dmesg",
    responsible="administrator",
    otherwise="WARN",
)
REACHABLE = Expectation(
    "one GPU node at least whose labels and taints let launches on",
    TAINTS_PAGE,
    "Set node_selector and tolerations in the file of options",
)
EXTENDED = Expectation(
    "offered by a GPU node, as the options ask for it",
    DEVICES_PAGE,
    "Set resources to what `kubectl describe node` lists; RDMA needs a device plug-in of its own",
)


def judge_cluster(nodes: Sequence[Node], options: KubernetesOptions) -> list[Judged]:
    """Judge what the nodes of a cluster offer to launches with these options."""
    gpu_nodes = [node for node in nodes if _amount(node, "allocatable", options.gpu_resource) > 0]
    ready = [node for node in gpu_nodes if _is_ready(node)]
    outcomes = {
        "nodes": _ready(nodes),
        "GPUs": _plugin(ready, options.gpu_resource),
        "healthy GPUs": _healthy(nodes, options.gpu_resource),
        "placement": _reachable(ready, options),
        **{name: _extended(ready, name) for name in options.resources if "/" in name},
    }
    return [Judged(name=name, outcome=outcome) for name, outcome in outcomes.items() if outcome is not None]


def _name(node: Node) -> str:
    return str(node["metadata"]["name"])


def _amount(node: Node, which: str, resource: str) -> int:
    return int(node.get("status", {}).get(which, {}).get(resource, 0))


def _is_ready(node: Node) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return is_ready and not node.get("spec", {}).get("unschedulable", False)


def _ready(nodes: Sequence[Node]) -> Outcome:
    bad = [_name(node) for node in nodes if not _is_ready(node)]
    share = f"{len(nodes) - len(bad)} of {len(nodes)}"
    return READY.judge(bool(nodes) and not bad, f"{share}; not {', '.join(bad)}" if bad else share)


def _plugin(ready: Sequence[Node], resource: str) -> Outcome:
    amounts = ", ".join(f"{_name(node)}: {_amount(node, 'allocatable', resource)}" for node in ready)
    return PLUGIN.judge(bool(ready), f"{resource} on {len(ready)} nodes{f' ({amounts})' if amounts else ''}")


def _healthy(nodes: Sequence[Node], resource: str) -> Outcome | None:
    there = {_name(node): _amount(node, "capacity", resource) for node in nodes}
    usable = {_name(node): _amount(node, "allocatable", resource) for node in nodes}
    if not any(there.values()):
        return None
    bad = [f"{name}: {usable[name]} of {there[name]}" for name in there if usable[name] < there[name]]
    return WHOLE.judge(not bad, "; ".join(bad) or f"{sum(usable.values())} of {sum(there.values())}")


def _reachable(ready: Sequence[Node], options: KubernetesOptions) -> Outcome | None:
    if not ready:
        return None
    hindrances = {_name(node): _hindrance(node, options) for node in ready}
    bad = [f"{name}: {why}" for name, why in hindrances.items() if why]
    return REACHABLE.judge(len(bad) < len(ready), "; ".join(bad) or f"all {len(ready)}")


def _hindrance(node: Node, options: KubernetesOptions) -> str | None:
    """Say what keeps launches off a node; None where nothing does."""
    labels = node["metadata"].get("labels", {})
    missing = [key for key, value in options.node_selector.items() if labels.get(key) != value]
    if missing:
        return f"has not the label {missing[0]}={options.node_selector[missing[0]]}"
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


def _extended(ready: Sequence[Node], name: str) -> Outcome:
    offering = [_name(node) for node in ready if _amount(node, "allocatable", name) > 0]
    return EXTENDED.judge(bool(offering), f"on {', '.join(offering)}" if offering else "on none")
