"""Checks whose answers contradicted their own words: who acts, what is expected, what a setting does."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_by_hand import host_facts
from gpuproof.doctor import host, network
from gpuproof.records.outcome import Outcome
from gpuproof.verdict.check import FactCheck, ask
from gpuproof.verdict.checks.registry import CHECKS
from gpuproof.verdict.facts import FleetFacts


def of_b(name: str, **other: Any) -> Outcome:
    """Return a check's outcome for the second of two hosts, which is other."""
    facts = FleetFacts(measures=[], hosts={"a": host_facts("a"), "b": host_facts("b", **other)})
    (found,) = (item.outcome for item in ask([CHECKS[name]], facts) if item.outcome.subject == "host/b")
    return found


def of_machine(check: FactCheck, **report: Any) -> Outcome:
    """Return a check's outcome for a machine with this report."""
    (found,) = ask([check], FleetFacts(hosts={"a": report}))
    return found.outcome


def test_a_setting_that_prevents_gpudirect_is_unset_by_the_user() -> None:
    found = of_b("gpudirect", environment={"NCCL_NET_GDR_LEVEL": "LOC"})
    assert (found.status, found.responsible) == ("FAIL", "user")
    assert found.next_step == "Unset NCCL_NET_GDR_LEVEL"


def test_a_host_that_did_not_report_its_ports_is_no_host_without_ports() -> None:
    assert of_b("gpudirect", infiniband=None).status == "ERROR"


def test_shared_memory_that_is_off_does_not_prevent_direct_copies() -> None:
    assert of_b("peer to peer", environment={"NCCL_SHM_DISABLE": "1"}).status == "PASS"
    assert of_b("peer to peer", environment={"NCCL_P2P_DISABLE": "1"}).status == "FAIL"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("mlx5_0", "PASS"),
        ("=mlx5_0:1", "PASS"),
        ("^mlx5_0:1", "FAIL"),
        ("^=mlx5_0", "FAIL"),
        ("^mlx5_1", "PASS"),
    ],
)
def test_an_exclusion_of_adapters_is_no_choice(value: str, status: str) -> None:
    ports = [{"device": "mlx5_0", "port": "1", "state": "ACTIVE"}]
    fabric = {"variables": {"NCCL_IB_HCA": value}, "infiniband": ports}
    assert of_machine(network.judge_adapters, fabric=fabric).status == status


def test_an_unknown_cpu_and_a_gpu_without_a_driver_are_said() -> None:
    cpu = {"name": None, "usable_cpus": 2, "logical_cpus": 2}
    assert of_machine(host.judge_cpu, cpu=cpu, memory_total_bytes=2**30).status == "WARN"
    found = {
        "devices": [{"name": "H100"}],
        "undriven": [{"vendor": "amd", "pci_bus_id": "0:1"}],
        "absent": {},
    }
    assert of_machine(host.judge_accelerators, accelerators=found).measured == "H100; not readable: amd 0:1"
