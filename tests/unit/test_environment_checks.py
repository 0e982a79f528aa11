"""Checks of the environment: each finds its fault on the host or GPU that has it, and nothing on its twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet_by_hand import GEMM, PORT, gpu, host_facts, hosts, measured, statuses
from gpuproof.devices.amd import library
from gpuproof.devices.nvidia import nvml
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Setup, Start
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.registry import CHECKS
from gpuproof.verdict.facts import Announced, ExpectedGpus, FleetFacts
from gpuproof.verdict.rules import judge_rules, read_rules
from records_by_hand import case

ABC = hosts("a", "b", "c")
CPU: Mapping[str, Any] = {
    **{"os": "Linux-6.8", "torch": "2.9.1", "devices": [], "environment": {}, "infiniband": []},
    "accelerators": {"devices": [], "drivers": {}, "absent": {"nvidia": "no driver is loaded"}},
    "affinity": {
        "numa_nodes": {"0": "0-1"},
        "allowed_cpus": [0, 1],
        "device_numa_nodes": {},
        "peer_memory": None,
    },
}


def check(name: str, facts: FleetFacts) -> dict[str, str]:
    return statuses(ask([CHECKS[name]], facts))


def with_b(**other: Any) -> FleetFacts:
    """Return three hosts of which b is other."""
    return FleetFacts(measures=[], hosts={**ABC, "b": host_facts("b", **other)})


ON_HOST = "host/b"
ON_GPU = gpu("b", 0)
FAULTS: Mapping[str, tuple[FleetFacts, str, str]] = {
    "same driver": (with_b(driver="535.104"), ON_HOST, "FAIL"),
    "same torch": (with_b(torch="2.8.0"), ON_HOST, "FAIL"),
    "same CUDA": (with_b(torch_cuda="12.8"), ON_HOST, "FAIL"),
    "same NCCL": (with_b(nccl="2.26.2"), ON_HOST, "FAIL"),
    "same kernel": (with_b(os="Linux-5.15"), ON_HOST, "FAIL"),
    "same GPUs": (with_b(gpus=1), ON_HOST, "FAIL"),
    "same NCCL settings": (with_b(environment={"NCCL_ALGO": "Ring"}), ON_HOST, "FAIL"),
    "same firmware": (with_b(static={"vbios_version": "96.00.30"}), ON_GPU, "FAIL"),
    "same power limit": (with_b(static={"power_limit_w": 500.0}), ON_GPU, "FAIL"),
    "same memory size": (with_b(static={"mem_total_bytes": 1}), ON_GPU, "FAIL"),
    "same application clock": (with_b(static={"clock_sm_application_mhz": 1200.0}), ON_GPU, "FAIL"),
    "same ECC mode": (with_b(static={"ecc_mode": "disabled"}), ON_GPU, "FAIL"),
    "ecc": (with_b(static={"ecc_mode": "disabled"}), ON_GPU, "FAIL"),
    "mig": (with_b(static={"mig_mode": "enabled"}), ON_GPU, "FAIL"),
    "persistence": (with_b(static={"persistence_mode": "disabled"}), ON_GPU, "WARN"),
    "pcie": (with_b(state={"pcie_width": 8.0}), ON_GPU, "FAIL"),
    "clock policy": (with_b(static={"power_limit_w": 500.0}), ON_GPU, "FAIL"),
    "memory health": (with_b(state={"remapped_rows_failed": 1.0}), ON_GPU, "FAIL"),
    "nvlink": (with_b(state={"nvlink_links_active": 17.0}), ON_GPU, "FAIL"),
    "infiniband": (with_b(infiniband=[{**PORT, "state": "DOWN"}]), ON_HOST, "FAIL"),
    "network": (with_b(environment={"NCCL_IB_DISABLE": "1"}), ON_HOST, "FAIL"),
    "gpudirect": (with_b(environment={"NCCL_NET_GDR_LEVEL": "LOC"}), ON_HOST, "FAIL"),
    "peer to peer": (with_b(environment={"NCCL_P2P_DISABLE": "1"}), ON_HOST, "FAIL"),
    "numa": (
        with_b(affinity={**host_facts("b")["affinity"], "allowed_cpus": [0, 1]}),
        ON_HOST,
        "FAIL",
    ),
}


def _rated(*rates: str | None) -> dict[str, Any]:
    return {
        "infiniband": [
            {**PORT, "device": f"mlx5_{number}", "rate": rate} for number, rate in enumerate(rates)
        ]
    }


FAST, SLOW = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([(FAST, FAST), (FAST, FAST), (FAST, SLOW)], "PASS PASS FAIL"),
        ([(FAST, FAST), (SLOW, FAST)], "PASS FAIL"),
        ([(FAST, SLOW), (SLOW, FAST)], "PASS PASS"),  # the hosts number their ports differently
        ([(FAST, FAST), (FAST, FAST), (FAST,)], "PASS PASS FAIL"),
        ([(FAST,), (FAST,), (FAST, FAST)], "PASS PASS PASS"),
        ([(FAST,), ()], "PASS FAIL"),
        ([(FAST,), (None,)], "PASS ERROR"),
        ([(SLOW,)], "PASS"),
        ([(None,)], "PASS"),
        ([()], "NOT-APPLICABLE"),
    ],
)
def test_ports_are_as_many_and_as_fast_as_on_most_hosts(
    ports: Sequence[Sequence[str | None]], expected: str
) -> None:
    nodes = {f"n{number}": host_facts(f"n{number}", **_rated(*rates)) for number, rates in enumerate(ports)}
    found = check("infiniband", FleetFacts(measures=[], hosts=nodes))
    assert [found[f"host/{host}"] for host in nodes] == expected.split()


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_names_who_has_the_fault_and_passes_the_others(name: str) -> None:
    facts, subject, status = FAULTS[name]

    found = check(name, facts)
    assert found.pop(subject) == status
    assert set(found.values()) <= {"PASS"}

    assert set(check(name, FleetFacts(measures=[], hosts=ABC)).values()) == {"PASS"}


@pytest.mark.parametrize(
    "name",
    sorted(
        set(CHECKS)
        - {"same torch", "same kernel", "same GPUs", "same NCCL settings", "port errors", "host settings"}
    ),
)
def test_a_host_without_a_gpu_has_nothing_to_check_and_the_evidence_says_so(name: str) -> None:
    found = [item.outcome for item in ask([CHECKS[name]], FleetFacts(hosts={"a": CPU}))]

    assert {outcome.status for outcome in found} == {"NOT-APPLICABLE"}
    assert all(outcome.reason for outcome in found)


@pytest.mark.parametrize("name", sorted(set(CHECKS) - {"options have an effect"}))
def test_a_check_that_was_told_nothing_passes_nothing(name: str) -> None:
    assert "PASS" not in check(name, FleetFacts(measures=[])).values()


@pytest.mark.parametrize("name", CHECKS)
def test_a_run_of_an_older_version_passes_only_what_it_told(name: str) -> None:
    """Hosts told neither state nor ports nor memory nodes: an error where those are what is asked."""
    old = host_facts("a")
    for key in ("infiniband", "affinity"):
        del old[key]
    for device in old["accelerators"]["devices"]:
        del device["state"], device["state_unavailable"]
    facts = FleetFacts(measures=[], hosts={"a": old, "b": {**old, "host": "b"}})

    found = check(name, facts)

    if name in ("pcie", "memory health", "infiniband", "network", "numa", "nvlink"):
        assert set(found.values()) == {"ERROR"}


@pytest.mark.parametrize(("what", "key"), [("driver", "driver"), ("CUDA", "torch_cuda"), ("NCCL", "nccl")])
def test_two_hosts_with_gpus_that_told_nothing_are_not_the_same(what: str, key: str) -> None:
    silent = {name: host_facts(name) for name in ("a", "b")}
    for facts in silent.values():
        facts.pop(key, None)
        facts["accelerators"]["drivers"] = {}

    assert check(f"same {what}", FleetFacts(measures=[], hosts=silent)) == {
        "host/a": "ERROR",
        "host/b": "ERROR",
    }


def test_hosts_whose_torch_has_no_cuda_have_the_same() -> None:
    told = {name: host_facts(name, torch_cuda=None) for name in ("a", "b")}

    assert check("same CUDA", FleetFacts(measures=[], hosts=told)) == {"host/a": "PASS", "host/b": "PASS"}


def test_hosts_without_a_gpu_need_no_driver() -> None:
    hosts_of_cpu = {"a": CPU, "b": {**CPU, "host": "b"}}

    assert check("same CUDA", FleetFacts(measures=[], hosts=hosts_of_cpu)) == {"whole": "NOT-APPLICABLE"}


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("name", sorted(set(CHECKS) - {"same GPUs"}))
def test_hosts_that_tell_of_nothing_but_gpus_pass_nothing_else(name: str, is_listed: bool) -> None:
    silent: dict[str, Any] = {}
    for host in ("a", "b"):
        told = host_facts(host)
        listed = [{key: x[key] for key in ("name", "uuid")} for x in told["accelerators"]["devices"]]
        silent[host] = {"host": host, "devices": told["devices"]}
        silent[host] |= {"accelerators": {"devices": listed}} if is_listed else {}

    assert "PASS" not in check(name, FleetFacts(measures=[], hosts=silent)).values()


@pytest.mark.parametrize("changed", [{"allowed_cpus": None}, {"device_numa_nodes": {"0000:01:00.0": "-1"}}])
def test_processors_are_near_no_gpu_whose_node_nobody_names(changed: dict[str, Any]) -> None:
    told = host_facts("a")
    told["affinity"] |= changed

    assert "PASS" not in check("numa", FleetFacts(measures=[], hosts={"a": told})).values()


def test_where_all_differ_all_are_named() -> None:
    facts = FleetFacts(measures=[], hosts={n: host_facts(n, driver=d) for n, d in (("a", "1"), ("b", "2"))})

    assert check("same driver", facts) == {"host/a": "FAIL", "host/b": "FAIL"}


def test_who_alone_told_something_is_compared_with_nobody() -> None:
    """And so does not pass: of three hosts two told no version of torch."""
    facts = FleetFacts(hosts={**ABC, **{n: host_facts(n, torch=None) for n in ("b", "c")}})

    assert check("same torch", facts) == dict.fromkeys(("host/a", "host/b", "host/c"), "ERROR")


def test_gpus_of_two_types_are_not_compared() -> None:
    old = host_facts("b", name="NVIDIA A100-SXM4-80GB", static={"power_limit_w": 400.0}, gpus=1)
    facts = FleetFacts(measures=[], hosts={"a": host_facts("a"), "b": old})

    assert set(check("same power limit", facts).values()) == {"PASS", "NOT-APPLICABLE"}


def test_settings_of_gpus_are_shown_with_their_units() -> None:
    (limit,) = ask(
        [CHECKS["same power limit"]], FleetFacts(measures=[], hosts={"a": host_facts("a", gpus=1)})
    )
    (size,) = ask(
        [CHECKS["same memory size"]],
        FleetFacts(hosts={"a": host_facts("a", gpus=1, static={"mem_total_bytes": 85_520_809_984})}),
    )
    assert (limit.outcome.reason or "").endswith("its power limit is 700 W")
    assert (size.outcome.reason or "").endswith("its memory size is 85,520,809,984 B")


def test_a_board_without_links_has_none_to_check() -> None:
    pcie = host_facts("a", name="NVIDIA H100 PCIe")
    for device in pcie["accelerators"]["devices"]:
        del device["state"]["nvlink_links_active"]
        device["state_unavailable"] = {"nvlink_links_active": nvml.explain(3)}

    assert set(check("nvlink", FleetFacts(measures=[], hosts={"a": pcie})).values()) == {"NOT-APPLICABLE"}


def test_links_that_could_not_be_counted_are_neither_down_nor_absent() -> None:
    found = host_facts("a", gpus=3)
    devices = found["accelerators"]["devices"]
    for device in devices[1:]:
        del device["state"]["nvlink_links_active"]
        device["state_unavailable"] = {"nvlink_links_active": nvml.explain(10)}
    facts = FleetFacts(measures=[], hosts={"a": found})
    assert check("nvlink", facts) == {gpu("a", 0): "PASS", gpu("a", 1): "ERROR", gpu("a", 2): "ERROR"}
    devices[0] |= {"state": devices[1]["state"], "state_unavailable": devices[1]["state_unavailable"]}
    assert set(check("nvlink", facts).values()) == {"ERROR"}


def test_what_a_driver_announced_fails_its_gpu() -> None:
    off_the_bus = Announced(title="xid 79")
    facts = FleetFacts(measures=[], hosts=hosts("a"), events={gpu("a", 0): [], gpu("a", 1): [off_the_bus]})

    assert check("xid", facts) == {gpu("a", 0): "PASS", gpu("a", 1): "FAIL"}
    assert check("xid", replace(facts, events={gpu("a", 1): []}))[gpu("a", 0)] == "ERROR"
    assert check("xid", replace(facts, events=None)) == {"whole": "ERROR"}


# Ranks and backends, from launches


def launch(host: str, *, indices: tuple[int, ...], backend: str | None = "nccl") -> CaseRecords:
    records: list[Any] = []
    for rank, index in enumerate(indices):
        size = len(indices)
        records.append(
            Start(
                rank=rank,
                world_size=size,
                local_rank=rank,
                local_world_size=size,
                host=host,
                pid=1,
                start="exec",
                gpuproof_version="0",
                unix_s=0.0,
                monotonic_s=0.0,
            )
        )
        records.append(setup(rank, f"GPU-{host}-{index}", index, backend))
    return CaseRecords(case=case(), records=tuple(records))


def setup(rank: int, uuid: str, index: int, backend: str | None) -> Setup:
    device = Device(kind="cuda", index=index, name="NVIDIA H100 80GB HBM3", uuid=uuid, memory_total_bytes=1)
    return Setup(
        rank=rank,
        device=device,
        backend=backend,
        threads=1,
        num_parameters=1,
        items_per_step=1,
        item="sample",
        flops_per_step=None,
        precision="bf16",
        compiled=None,
        data="synthetic",
        pool_samples=1,
        not_applied=(),
        notes=(),
        monotonic_s=0.0,
    )


def test_gpus_that_ran_alone_or_not_at_all_are_named() -> None:
    facts = FleetFacts(
        measures=[], hosts=hosts("a", gpus=3), launches=[launch("a", indices=(0,), backend=None)]
    )

    others = {gpu("a", 1): "SKIP", gpu("a", 2): "SKIP"}  # of which nothing was measured
    assert check("all ranks", facts) == {gpu("a", 0): "FAIL", **others}
    together = replace(facts, launches=[launch("a", indices=(0, 1))])
    assert check("all ranks", together) == {gpu("a", 0): "PASS", gpu("a", 1): "PASS", gpu("a", 2): "SKIP"}


def test_one_gpu_alone_is_all_there_is() -> None:
    facts = FleetFacts(
        measures=[], hosts=hosts("a", gpus=1), launches=[launch("a", indices=(0,), backend=None)]
    )

    assert check("all ranks", facts) == {gpu("a", 0): "PASS"}


@pytest.mark.parametrize(("backend", "expected"), [("nccl", "PASS"), ("gloo", "FAIL")])
def test_gloo_on_a_host_with_gpus_is_a_fallback(backend: str, expected: str) -> None:
    facts = FleetFacts(measures=[], hosts=hosts("a"), launches=[launch("a", indices=(0, 1), backend=backend)])

    assert check("backend", facts) == {"host/a": expected}


# Options without an effect


@pytest.mark.parametrize(("fp8", "expected"), [(1.3e15, "PASS"), (7.05e14, "WARN"), (6e14, "WARN")])
def test_fp8_that_is_no_faster_than_bf16_is_said(fp8: float, expected: str) -> None:
    measures = [
        measured(gpu("a", 0), value, spread=0.01, labels={**GEMM, "dtype": dtype})
        for dtype, value in (("fp8", fp8), ("bf16", 7e14))
    ]

    assert check("options have an effect", FleetFacts(measures=measures)) == {gpu("a", 0): expected}


# How rules ask


def test_a_rule_asks_a_check_and_says_whether_it_is_required() -> None:
    facts = with_b(static={"ecc_mode": "disabled"})

    found = judge_rules(read_rules("rules: [{check: ecc, required: false}]", source="r.yaml"), facts)

    assert {item.name for item in found} == {"ecc"}
    assert not any(item.is_required for item in found)
    assert statuses(found)[ON_GPU] == "FAIL"


def test_the_names_of_interfaces_differ_between_hosts_that_are_alike() -> None:
    found = check("same NCCL settings", with_b(environment={"NCCL_SOCKET_IFNAME": "ens7"}))
    assert set(found.values()) == {"PASS"}


# Counted from both sides

OF_GPUS = ("ecc", "mig", "memory health", "pcie", "clock policy", "nvlink", "persistence", "same firmware")
OF_HOSTS = (
    "same driver",
    "same kernel",
    "infiniband",
    "network",
    "gpudirect",
    "peer to peer",
    "numa",
    "clocks",
)


@pytest.mark.parametrize("name", [*OF_GPUS, *OF_HOSTS, "all ranks", "lost packets"])
def test_a_host_that_told_nothing_passes_nothing(name: str) -> None:
    found = check(name, FleetFacts(measures=[], hosts=hosts("a", "b"), hosts_there=("a", "b", "c")))
    assert found["host/c"] == "ERROR"


@pytest.mark.parametrize("name", OF_GPUS)
def test_a_gpu_that_no_driver_lists_is_an_error_and_one_that_was_not_ours_is_not_judged(name: str) -> None:
    told = host_facts("a", gpus=3)
    del told["accelerators"]["devices"][1]
    facts = FleetFacts(measures=[], hosts={"a": told})
    assert check(name, facts)[gpu("a", 1)] == "ERROR"

    others = host_facts("a", gpus=4)
    for device in others["accelerators"]["devices"][2:]:
        device |= {"framework_index": None, "static": {}, "state": {}}
    others["devices"] = others["devices"][:2]
    granted = {"a": ExpectedGpus(number=2, source="SLURM_JOB_GPUS=0,1", is_granted=True)}
    narrow = FleetFacts(measures=[], hosts={"a": others}, expected_gpus=granted)
    assert check(name, narrow) == {gpu("a", 0): "PASS", gpu("a", 1): "PASS"}


def test_memory_passes_on_every_counter_that_it_names() -> None:
    told = host_facts("a", gpus=3)
    first, second, third = told["accelerators"]["devices"]
    del first["state"]["remapped_rows_failed"], first["state"]["remapped_rows_pending"]
    del second["state"]["remapped_rows_failed"]
    second["state_unavailable"] = {"remapped_rows_failed": "not supported by this device or its current mode"}
    del third["state"]["ecc_uncorrected_count"]
    third["state_unavailable"] = {"ecc_uncorrected_count": "the GPU is lost: it fell off the bus"}
    outcomes = {
        x.outcome.subject: x.outcome
        for x in ask([CHECKS["memory health"]], FleetFacts(measures=[], hosts={"a": told}))
    }
    assert [outcomes[gpu("a", place)].status for place in range(3)] == ["ERROR", "PASS", "ERROR"]
    assert "does not report its remapped_rows_failed: not supported" in str(outcomes[gpu("a", 1)].measured)


NVML_NEVER = (3, 13, 26)
"""Not supported, too old for it, no longer offered: the board, or its driver, never gives it."""
AMD_NEVER = {library.NOT_SUPPORTED, library.NOT_YET_IMPLEMENTED, library.NO_DATA, library.DRIVER_NOT_LOADED}


@pytest.mark.parametrize(
    "reason",
    [
        *(nvml.explain(code) for code in (*range(1, 31), 999) if code not in (*NVML_NEVER, 9, 12, 18)),
        *(text for code, text in library._CAUSES.items() if code not in AMD_NEVER),
        "a reason of a driver that nobody has seen yet",
    ],
)
def test_a_counter_that_could_not_be_read_is_none_that_a_board_lacks(reason: str) -> None:
    """Without a driver or its library there is no list; all that they say else is no PASS of the rest."""
    found = host_facts("a", gpus=1)
    device = found["accelerators"]["devices"][0]
    del device["state"]["ecc_uncorrected_count"]
    device["state_unavailable"] = {"ecc_uncorrected_count": reason}
    assert check("memory health", FleetFacts(measures=[], hosts={"a": found})) == {gpu("a", 0): "ERROR"}
    device["state_unavailable"] = {"ecc_uncorrected_count": nvml.explain(3)}
    assert check("memory health", FleetFacts(measures=[], hosts={"a": found})) == {gpu("a", 0): "PASS"}


def test_copies_between_gpus_are_judged_by_the_gpus_that_are_there_and_not_by_those_that_torch_sees() -> None:
    found = {**host_facts("a", environment={"NCCL_P2P_DISABLE": "1"}), "devices": []}
    assert check("peer to peer", FleetFacts(measures=[], hosts={"a": found})) == {"host/a": "FAIL"}
