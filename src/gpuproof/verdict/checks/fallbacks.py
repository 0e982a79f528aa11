"""Did anything silently fall back to a slower path?

Examples: sockets despite InfiniBand, copies through the host, remote memory, ranks that ran alone, gloo
despite GPUs. A run that fell back finishes normally but measures something other than what was requested.
These checks detect this from the records of hosts and ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail, skipped
from gpuproof.records.run import Start
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import MUTE, RUN_AGAIN, host_check, no_gpu, of_hosts, unanswered
from gpuproof.verdict.facts import FleetFacts, HostFacts, port_rates, setups_on
from gpuproof.verdict.gpus import gpus_by_host
from gpuproof.verdict.nccl_settings import PAGE, SETTINGS

IB_PAGE = "https://docs.kernel.org/admin-guide/abi-stable.html"
GDR_PAGE = "https://docs.nvidia.com/cuda/gpudirect-rdma/"
BACKENDS_PAGE = "https://docs.pytorch.org/docs/stable/distributed.html#backends"
LOOK = "Check it with: gpuproof doctor --json"
NO_PORTS = "it did not report its ports: the run is from an older version"
NO_SETTINGS = "it did not report its environment variables"


def _ports(facts: HostFacts) -> list[Mapping[str, str]] | None:
    ports = facts.get("infiniband")
    return None if ports is None else list(ports)


def has_active_port(facts: HostFacts) -> bool:
    """Return whether a host has an active InfiniBand or RoCE port."""
    return any(port["state"] == "ACTIVE" for port in _ports(facts) or ())


def _hurting(facts: HostFacts, *names: str) -> list[str] | None:
    """Return which of these settings reduce speed, with values and effects; None without a report."""
    settings = facts.get("environment")
    if settings is None:
        return None
    return [
        f"{setting.variable}={settings[setting.variable]}: {setting.effect}"
        for setting in SETTINGS
        if setting.variable in names
        and setting.variable in settings
        and setting.hurts(settings[setting.variable])
    ]


@check("infiniband", "every port is active, and as fast as on other hosts")
def judge_ports(facts: FleetFacts) -> Sequence[Outcome]:
    """Check that InfiniBand and RoCE ports are active, and not fewer or slower than on most hosts."""
    times = Counter(tuple(rates) for node in facts.hosts.values() if (rates := port_rates(node)))
    usual = max(times, key=lambda rates: (times[rates], rates), default=())
    shown = " + ".join(f"{rate:g}" for rate in usual)
    as_usual = f", {shown} Gb/s as on {times[usual]} of {len(facts.hosts)} hosts"
    is_compared = bool(usual) and len(facts.hosts) > 1

    def judge(subject: str, node: HostFacts) -> Outcome:
        ports, rates = _ports(node), port_rates(node)
        if ports is None:
            return unanswered(subject, NO_PORTS, RUN_AGAIN)
        if not ports and not usual:
            return not_applicable("/sys/class/infiniband lists no port", subject)
        active = [port for port in ports if port["state"] == "ACTIVE"]
        if is_compared and len(rates) < len(active):
            return unanswered(subject, "the rate of an active port could not be read", RUN_AGAIN)
        is_slower = any(own < most for own, most in zip_longest(rates, usual, fillvalue=0.0))
        return pass_or_fail(
            subject,
            len(active) == len(ports) and not is_slower,
            ", ".join(f"{p['device']}:{p['port']} {p['state']} {p['rate']}" for p in ports) or "no port",
            expected=f"every port ACTIVE{as_usual if is_compared else ''}",
            source=IB_PAGE,
            next_step="Check cable, switch and subnet manager (ibstat)",
        )

    return of_hosts(facts, judge)


@host_check("network", "hosts communicate over InfiniBand if they have it", alone="nothing uses a network")
def judge_network(subject: str, node: HostFacts) -> Outcome:
    """Check whether a host with active ports was configured to use sockets."""
    if _ports(node) is None:
        return unanswered(subject, NO_PORTS, RUN_AGAIN)
    if not has_active_port(node):
        return not_applicable("/sys/class/infiniband lists no active port: there are only sockets", subject)
    reasons = _hurting(node, "NCCL_IB_DISABLE")
    if reasons is None:
        return unanswered(subject, NO_SETTINGS, RUN_AGAIN)
    if node["environment"].get("NCCL_NET", "").lower() == "socket":
        reasons.append("NCCL_NET=Socket: everything goes over IP sockets")
    return pass_or_fail(
        subject,
        not reasons,
        "; ".join(reasons) or "no setting prevents NCCL from using InfiniBand",
        expected="InfiniBand or RoCE, which this host has, in use",
        source=PAGE,
        next_step="Unset it; NCCL_DEBUG=INFO shows which network NCCL uses",
        responsible="user",
    )


@host_check("gpudirect", "network cards read GPU memory directly", alone="nothing uses a network")
def judge_gpudirect(subject: str, node: HostFacts) -> Outcome:
    """Check whether network cards are prevented from accessing GPU memory directly."""
    reasons = _hurting(node, "NCCL_NET_GDR_LEVEL")
    if _ports(node) is None or reasons is None:
        return unanswered(subject, NO_SETTINGS if reasons is None else NO_PORTS, RUN_AGAIN)
    if not has_active_port(node) or not node.get("devices"):
        return not_applicable("it has no active InfiniBand port together with a GPU", subject)
    listed = (node.get("accelerators") or {}).get("devices") or ()
    if not reasons and listed and all(device.get("vendor", "nvidia") != "nvidia" for device in listed):
        return not_applicable("only NVIDIA's GPUs need a module of their own for it", subject)
    has_module = (node.get("affinity") or {}).get("peer_memory")
    if not reasons and has_module is None:
        return unanswered(subject, "the loaded kernel modules could not be read", LOOK)
    way = "is loaded" if has_module else "is not loaded: only dma-buf is left"
    return pass_or_fail(
        subject,
        not reasons and bool(has_module),
        "; ".join([*reasons, f"nvidia_peermem {way}"]),
        expected="GPUDirect RDMA",
        source=GDR_PAGE,
        next_step="Unset NCCL_NET_GDR_LEVEL"
        if reasons
        else "modprobe nvidia-peermem; NCCL_DEBUG=INFO prints GDRDMA if it is used",
        warns=not reasons,
        responsible="user" if reasons else "administrator",
    )


@check("peer to peer", "GPUs of a host copy directly to each other")
def judge_peer_to_peer(facts: FleetFacts) -> Sequence[Outcome]:
    """Check whether GPUs in one host were prevented from copying directly to each other."""
    gpus = gpus_by_host(facts)

    def judge(subject: str, node: HostFacts) -> Outcome:
        num = len(gpus[subject.removeprefix("host/")].there)
        if num < 2:
            return not_applicable(
                f"it has {num} {'GPU' if num == 1 else 'GPUs'}: no other GPU to copy to", subject
            )
        reasons = _hurting(node, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
        if reasons is None:
            return unanswered(subject, NO_SETTINGS, RUN_AGAIN)
        return pass_or_fail(
            subject,
            not reasons,
            "; ".join(reasons) or "no setting prevents GPUs from copying directly",
            expected="direct copies between GPUs",
            source=PAGE,
            next_step="Unset it",
            responsible="user",
        )

    return of_hosts(facts, judge)


@host_check("numa", "processes may use the CPUs next to their GPUs")
def judge_numa(subject: str, node: HostFacts) -> Outcome:
    """Check whether processes may use a CPU on each GPU's NUMA node."""
    affinity = node.get("affinity")
    if affinity is None:
        return unanswered(subject, "it reported no NUMA nodes: the run is from an older version", RUN_AGAIN)
    nodes, devices = affinity["numa_nodes"], affinity["device_numa_nodes"]
    if len(nodes) < 2 or not devices:
        return not_applicable(f"NUMA nodes: {len(nodes)}; GPUs on PCI: {len(devices)}", subject)
    placed = {address: place for address, place in sorted(devices.items()) if place in nodes}
    if not placed:
        return not_applicable(f"the kernel reports no NUMA node for its {len(devices)} GPUs", subject)
    if affinity["allowed_cpus"] is None:
        return unanswered(subject, "it did not report which CPUs a process may use", LOOK)
    allowed = set(affinity["allowed_cpus"])
    far = [
        f"{address} is on node {place}"
        for address, place in placed.items()
        if not allowed & cpus_of(nodes[place] or "")
    ]
    near = f"some on the NUMA node of each of {len(placed)} GPUs"
    return pass_or_fail(
        subject,
        not far,
        f"{len(allowed)} CPUs allowed; {'; '.join(far) or near}",
        expected="CPUs on the NUMA node of each GPU",
        source="https://docs.kernel.org/admin-guide/mm/numa_memory_policy.html",
        next_step="Bind ranks to NUMA nodes (numactl, --cpu-bind, the container's cpuset)",
    )


def cpus_of(written: str) -> set[int]:
    """Expand CPU lists as written by the kernel.

    >>> sorted(cpus_of("0-2,8"))
    [0, 1, 2, 8]
    """
    ends = (part.partition("-") for part in written.split(",") if part)
    return {cpu for low, _, high in ends for cpu in range(int(low), int(high or low) + 1)}


@check("all ranks", "every GPU took part in a job with other GPUs")
def judge_ranks(facts: FleetFacts) -> Sequence[Outcome]:
    """Check whether every GPU took part in a launch, and did so together with other GPUs."""
    there = gpus_by_host(facts).values()
    mute = [
        unanswered(f"host/{gpus_there.host}", MUTE, RUN_AGAIN) for gpus_there in there if gpus_there.is_mute
    ]
    gpus = [subject for gpus_there in there for subject in gpus_there.subjects if subject in gpus_there.there]
    if not gpus:
        return mute or [no_gpu(facts)]
    used: dict[str, int] = {}
    for launch in facts.launches:
        sizes = {start.rank: start.world_size for start in launch.of(Start)}
        for host, setup in setups_on(launch):
            where = f"host/{host}/gpu/{setup.device.uuid or setup.device.index}"
            used[where] = max(used.get(where, 0), sizes[setup.rank])
    return [*mute, *(_took_part(subject, used.get(subject, 0), len(gpus)) for subject in gpus)]


def _took_part(subject: str, ranks: int, num_gpus: int) -> Outcome:
    step = "Start one rank per GPU (--nproc); check CUDA_VISIBLE_DEVICES and the launcher"
    if not ranks:
        reason = "it did not take part in any launch: nothing was measured on it"
        return skipped(reason, step, subject, responsible="user")
    alone = "only in launches with one rank: none of its links were used"
    seen = alone if ranks == 1 else f"in a launch of {ranks} ranks"
    return pass_or_fail(
        subject,
        ranks > 1 or (ranks == 1 and num_gpus == 1),
        f"it took part {seen}",
        expected="a launch with others" if num_gpus > 1 else "a launch",
        source="the GPUs that its host has",
        next_step=step,
        responsible="user",
    )


@check("backend", "GPUs communicate over a GPU backend")
def judge_backend(facts: FleetFacts) -> Sequence[Outcome]:
    """Check whether ranks communicated over a CPU backend although their host has GPUs."""
    with_gpus = {host for host, gpus in gpus_by_host(facts).items() if gpus.there}
    if not with_gpus:
        return [no_gpu(facts)]
    backends: dict[str, set[str]] = {}
    for launch in facts.launches:
        for host, setup in setups_on(launch):
            if setup.backend is not None:
                backends.setdefault(host, set()).add(setup.backend)
    of_hosts = {host: names for host, names in backends.items() if host in with_gpus}
    if not of_hosts:
        return [not_applicable("no launch had several ranks on a host with GPUs")]
    return [
        pass_or_fail(
            f"host/{host}",
            "gloo" not in names,
            f"ranks communicated over {', '.join(sorted(names))}",
            expected="nccl, or another GPU backend",
            source=BACKENDS_PAGE,
            next_step="Set distributed.backend to auto and distributed.device to cuda; check torch's build",
            responsible="user",
        )
        for host, names in of_hosts.items()
    ]
