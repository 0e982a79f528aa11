"""`gpuproof validate` over hosts in network namespaces, each with simulated devices of its own inside."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.devices.simulated import VARIABLE
from hosts import Host, hosts_on_a_switch
from running import TIMEOUT_S, clean_environment
from simulating import needs_simulator
from ssh_hosts import hosts_in
from sshd import can_serve, ssh_world

WHY_NOT = can_serve()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), needs_simulator]
DEVICES = 2
SLOW = {"1": {"slower_percent": 100}}
WRONG = {"1": {"wrong_products_from": 1}}
WORDS = (
    *("--recipe=quick", "--model=medium", "--device=simgpu", "--validate.blame=never"),
    *("--validate.stages=[fingerprint, gemm]", "--validate.gemm_size=256", "--validate.window_s=2"),
    "--monitoring.enabled=false",
    "--validate.probes={fingerprint: {rounds: 2, heat_s: 0.1, time_limit_s: 0.5, edge: 256}}",
)


def python_of(folder: Path, host: Host, faults: Mapping[str, Any]) -> str:
    """Write the Python of a host, in which its devices are declared."""
    declared = json.dumps({"devices": DEVICES, "flops_per_s": 4e8, "faults": faults})
    path = folder / f"python-{host.name}"
    path.write_text(
        f'#!/bin/sh\n{VARIABLE}={shlex.quote(declared)} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.long
def test_the_slow_and_the_wrong_device_are_named_and_the_healthy_pass(tmp_path: Path) -> None:
    with (
        hosts_on_a_switch(tmp_path / "hosts", num_hosts=2) as links,
        ssh_world(tmp_path / "ssh", []) as world,
    ):
        for link in links:
            world.add(link.address, port=22, prefix=link.within)
        for link in links:
            link.wait_until_it_listens()
        inventory = tmp_path / "hosts.json"
        reach = hosts_in(world).write_inventory(inventory, world.servers)
        content = json.loads(inventory.read_text())
        for entry, link, faults in zip(content["hosts"], links, (SLOW, WRONG), strict=True):
            python = python_of(tmp_path, link, faults)
            entry |= {"name": link.name, "interface": link.interface, "gpus": DEVICES, "python": python}
        inventory.write_text(json.dumps(content))
        result = subprocess.run(
            [*links[0].controller, sys.executable, "-m", "gpuproof", "validate", *reach, *WORDS],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert result.returncode == ExitCode.FAILED, result.stdout + result.stderr
    (found,) = (tmp_path / "results").glob("**/result.json")
    outcomes = json.loads(found.read_text())["outcomes"]
    told = {(x["outcome"]["subject"], x["name"], x["outcome"]["status"]) for x in outcomes}
    assert {(subject, name) for subject, name, status in told if status == "FAIL" and "/gpu/" in subject} == {
        ("host/node0/gpu/SIM-0001", "matrix products of each device, alike"),
        ("host/node1/gpu/SIM-0001", "fingerprint"),
        ("host/node1/gpu/SIM-0001", "gemm-fp32-device1, wrong values"),
        ("host/node1/gpu/SIM-0001", "gemm-fp32-all, wrong values"),
    }
    for host in ("node0", "node1"):
        for name in ("fingerprint", "matrix products of each device, alike"):
            assert (f"host/{host}/gpu/SIM-0000", name, "PASS") in told
