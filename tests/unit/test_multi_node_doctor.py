"""The rules of the doctor for several hosts, on facts as the probe prints them."""

from __future__ import annotations

import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.doctor import meeting, network
from gpuproof.doctor.meeting import Part
from gpuproof.doctor.network import selects
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.verdict import nccl_settings
from gpuproof.verdict.check import ask, checks_in
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.nccl_settings import SETTINGS
from gpuproof.worker.host.fabric import check_named_interfaces, describe_fabric, describe_interfaces


def interface(name: str, *addresses: str, up: bool = True, loopback: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "up": up,
        "running": up,
        "loopback": loopback,
        "mtu_bytes": 1500,
        "addresses": list(addresses),
    }


def port(device: str, state: str = "ACTIVE") -> dict[str, Any]:
    return {"device": device, "port": "1", "state": state, "rate": "400 Gb/sec (4X NDR)"}


LO = interface("lo", "127.0.0.1", loopback=True)
FABRIC: dict[str, Any] = {
    "interfaces": [LO, interface("eth0", "10.0.0.1")],
    "interfaces_missing": None,
    "variables": {},
    "memlock_bytes": None,
    "infiniband": [],
    "shared_memory": {"total_bytes": 2**34, "free_bytes": 2**34, "missing": None},
    "host_name_addresses": ["10.0.0.1"],
}


def ask_modules(*modules: ModuleType, **facts: Any) -> list[Judged]:
    return [item for module in modules for item in ask(checks_in(module), FleetFacts(hosts={"": facts}))]


def judged(**changes: Any) -> dict[str, Outcome]:
    judged = ask_modules(network, nccl_settings, fabric={**FABRIC, **changes})
    return {item.name: item.outcome for item in judged}


def test_a_host_with_one_network_needs_no_choice() -> None:
    found = judged()
    assert {name: outcome.status for name, outcome in found.items()} == {
        "interfaces": "PASS",
        "GLOO_SOCKET_IFNAME": "NOT-APPLICABLE",
        "NCCL_SOCKET_IFNAME": "NOT-APPLICABLE",
        "host name": "PASS",
        "InfiniBand": "NOT-APPLICABLE",
        "NCCL_IB_HCA": "NOT-APPLICABLE",
        "shared memory": "PASS",
        "locked memory": "NOT-APPLICABLE",
        "NCCL settings": "PASS",
    }


TWO = [LO, interface("eth0", "10.0.0.1"), interface("ib0", "10.1.0.1"), interface("eth1", up=False)]


@pytest.mark.parametrize(
    ("variables", "name", "status"),
    [
        ({}, "GLOO_SOCKET_IFNAME", "WARN"),
        ({}, "NCCL_SOCKET_IFNAME", "WARN"),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "GLOO_SOCKET_IFNAME", "PASS"),
        ({"GLOO_SOCKET_IFNAME": "ib"}, "GLOO_SOCKET_IFNAME", "FAIL"),  # gloo takes whole names
        ({"GLOO_SOCKET_IFNAME": "ib0,eth1"}, "GLOO_SOCKET_IFNAME", "FAIL"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, "NCCL_SOCKET_IFNAME", "PASS"),
        ({"NCCL_SOCKET_IFNAME": "=ib"}, "NCCL_SOCKET_IFNAME", "FAIL"),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, "NCCL_SOCKET_IFNAME", "FAIL"),  # there, and down
        ({"NCCL_SOCKET_IFNAME": "^eth,lo"}, "NCCL_SOCKET_IFNAME", "PASS"),
        ({"NCCL_SOCKET_IFNAME": "^eth,lo,ib"}, "NCCL_SOCKET_IFNAME", "FAIL"),
    ],
)
def test_the_choice_of_an_interface(variables: dict[str, str], name: str, status: str) -> None:
    assert judged(interfaces=TWO, variables=variables)[name].status == status


@pytest.mark.parametrize(
    ("choice", "name", "taken"),
    [
        ("eth", "eth0", True),
        ("=eth0,eth1", "eth1", True),
        ("^=docker0", "docker0", False),
        ("^do", "eth", True),
    ],
)
def test_nccls_way_of_choosing(choice: str, name: str, taken: bool) -> None:
    assert selects(choice, name) is taken


@pytest.mark.parametrize(
    ("changes", "name", "status", "words"),
    [
        ({"interfaces": [LO]}, "interfaces", "FAIL", "none except loopback"),
        ({"interfaces": None, "interfaces_missing": "no netlink"}, "interfaces", "ERROR", "no netlink"),
        ({"host_name_addresses": ["127.0.1.1"]}, "host name", "WARN", "127.0.1.1"),
        ({"host_name_addresses": []}, "host name", "WARN", "no address"),
        ({"infiniband": [port("mlx5_0")]}, "InfiniBand", "PASS", "mlx5_0/1 ACTIVE, 400 Gb/sec"),
        ({"infiniband": [port("mlx5_0", "DOWN")]}, "InfiniBand", "WARN", "mlx5_0/1 DOWN"),
        ({"infiniband": [port("mlx5_0")], "memlock_bytes": 65_536}, "locked memory", "WARN", "64.0 KiB"),
        (
            {"infiniband": [port("mlx5_0")], "variables": {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}},
            "NCCL_IB_HCA",
            "PASS",
            "mlx5_0:1",
        ),
        (
            {"infiniband": [port("mlx5_2")], "variables": {"NCCL_IB_HCA": "=mlx5_0"}},
            "NCCL_IB_HCA",
            "FAIL",
            "no active port",
        ),
        (
            {"shared_memory": {"total_bytes": 2**26, "free_bytes": 2**26, "missing": None}},
            "shared memory",
            "WARN",
            "64.0 MiB",
        ),
    ],
)
def test_what_a_host_lacks(changes: dict[str, Any], name: str, status: str, words: str) -> None:
    outcome = judged(**changes)[name]
    assert outcome.status == status
    assert words in f"{outcome.measured} {outcome.reason}"


def test_settings_that_cost_speed_are_named_with_their_page() -> None:
    costly = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"}
    found = ask_modules(nccl_settings, fabric={"variables": costly})
    assert [item.name for item in found] == ["NCCL_P2P_DISABLE", "NCCL_ALGO", "NCCL_DEBUG"]
    assert {item.outcome.status for item in found} == {"WARN"}
    assert (found[0].outcome.source or "").endswith("env.html#nccl-p2p-disable")
    cheap = {"NCCL_SHM_DISABLE": "0", "NCCL_SOCKET_IFNAME": "eth"}
    (fine,) = ask_modules(nccl_settings, fabric={"variables": cheap})
    others = "set: NCCL_SHM_DISABLE, NCCL_SOCKET_IFNAME"
    assert fine.outcome.measured == (
        f"none of the {len(SETTINGS)} settings that cost speed or print output is set; {others}"
    )


def test_a_loopback_address_is_no_meeting_place_of_two_hosts() -> None:
    part = Part(master="127.0.0.1", port=29500, node_rank=1, num_nodes=2)
    found = {"addresses": ["127.0.0.1"], "unresolved": None, "outcome": "refused"}
    judged = ask_modules(meeting, fabric=FABRIC, meeting=found, part=part)
    outcomes = {item.name: item.outcome for item in judged}
    assert outcomes["MASTER_ADDR"].status == "FAIL"
    assert "the loopback address of each host" in (outcomes["MASTER_ADDR"].measured or "")


def test_what_is_seen_of_this_host(tmp_path: Path) -> None:
    ports = tmp_path / "class/infiniband/mlx5_0/ports/1"
    ports.mkdir(parents=True)
    for name, text in {"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "400 Gb/sec\n"}.items():
        (ports / name).write_text(text)
    environment = {"NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "x", "HOME": "/root"}
    facts = describe_fabric(environment, sysfs=tmp_path, shared_memory=tmp_path / "none")
    assert facts["variables"] == {"GLOO_SOCKET_IFNAME": "x", "NCCL_ALGO": "Tree"}
    assert facts["infiniband"] == [
        {
            "device": "mlx5_0",
            "port": "1",
            "state": "ACTIVE",
            "physical_state": "LinkUp",
            "rate": "400 Gb/sec",
            "link_layer": None,
        }
    ]
    assert facts["shared_memory"]["total_bytes"] is None
    assert "none" in facts["shared_memory"]["missing"]


def test_the_interfaces_are_those_that_the_system_names() -> None:
    found = {interface["name"]: interface for interface in describe_interfaces()}
    assert set(found) == {name for _, name in socket.if_nameindex()}
    assert found["lo"]["loopback"] is True
    assert "127.0.0.1" in found["lo"]["addresses"]


def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    check_named_interfaces({})
    check_named_interfaces({"GLOO_SOCKET_IFNAME": "lo"})
    with pytest.raises(
        EnvironmentUnfitError, match=r"eth9 is not an interface.*with an address on this host: .*lo"
    ):
        check_named_interfaces({"GLOO_SOCKET_IFNAME": "lo,eth9"})
