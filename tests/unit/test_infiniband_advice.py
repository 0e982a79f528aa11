"""What doctor says of InfiniBand's settings and of UCX, and where it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.doctor import network
from gpuproof.verdict.check import ask, checks_in
from gpuproof.verdict.facts import FleetFacts

ADVICE = (
    *("kinds of RDMA port", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT"),
    *("UCX_NET_DEVICES", "UCX of HPC-X"),
)
HPCX = ["/opt/hpcx/ucx/lib", "/opt/hpcx/ucc/lib"]


def port(device: str, kind: str = "InfiniBand", state: str = "ACTIVE") -> dict[str, Any]:
    return {"device": device, "port": "1", "state": state, "link_layer": kind}


def judged(*ports: dict[str, Any], **set_: str) -> dict[str, str]:
    return told_of({"variables": set_, "infiniband": list(ports)})


def told_of(fabric: dict[str, Any]) -> dict[str, str]:
    facts = FleetFacts(hosts={"": {"fabric": fabric}})
    advice = [check for check in checks_in(network) if check.name in ADVICE]
    return {told.name: told.outcome.status for told in ask(advice, facts)}


def test_a_host_without_rdma_and_hpcx_hears_nothing() -> None:
    assert judged() == {}
    assert judged(port("mlx5_0")) == {}
    assert judged(port("mlx5_0", "Ethernet", state="DOWN")) == {}


@pytest.mark.parametrize(("chosen", "status"), [({}, "WARN"), ({"NCCL_IB_HCA": "mlx5_0"}, "PASS")])
def test_ports_of_two_kinds_need_a_choice(chosen: dict[str, str], status: str) -> None:
    told = judged(port("mlx5_0"), port("mlx5_1", "Ethernet"), NCCL_IB_GID_INDEX="3", **chosen)
    assert told == {"kinds of RDMA port": status, "NCCL_IB_GID_INDEX": "PASS"}


def test_roce_without_a_gid_is_told_and_short_retries_too() -> None:
    told = judged(port("mlx5_0", "Ethernet"), NCCL_IB_TIMEOUT="14", NCCL_IB_RETRY_CNT="7")
    assert told == {"NCCL_IB_GID_INDEX": "WARN", "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT": "WARN"}
    enough = judged(port("mlx5_0"), NCCL_IB_TIMEOUT="23", NCCL_IB_RETRY_CNT="7")
    assert enough == {"NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT": "PASS"}


@pytest.mark.parametrize(("value", "status"), [("mlx5_0:1", "PASS"), ("mlx5_9:1", "FAIL"), ("eth0", "PASS")])
def test_ucx_is_given_adapters_that_are_there(value: str, status: str) -> None:
    assert judged(port("mlx5_0"), UCX_NET_DEVICES=value) == {"UCX_NET_DEVICES": status}


@pytest.mark.parametrize(
    ("path", "status"),
    [("", "WARN"), ("/usr/local/lib", "WARN"), (":".join([*HPCX, "/usr/local/lib"]), "PASS")],
)
def test_another_ucx_before_hpcx_s_is_told(path: str, status: str) -> None:
    fabric = {"variables": {}, "infiniband": [], "hpcx": HPCX, "library_path": path.split(":")}
    assert told_of(fabric) == {"UCX of HPC-X": status}
