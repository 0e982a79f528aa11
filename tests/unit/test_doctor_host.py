"""What doctor says of a host's GPUs: none is no fault, one without its driver is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuproof.devices.describe import describe_devices
from gpuproof.doctor.host import judge_accelerators
from gpuproof.records.outcome import Outcome
from gpuproof.verdict.check import ask
from gpuproof.verdict.facts import FleetFacts


def outcome(accelerators: dict[str, Any]) -> Outcome:
    hosts = {"here": {"accelerators": accelerators}}
    (judged,) = ask([judge_accelerators], FleetFacts(measures=[], hosts=hosts))
    return judged.outcome


def host_with(folder: Path, **pci: tuple[str, str]) -> dict[str, Any]:
    for address, (vendor, kind) in pci.items():
        device = folder / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor)
        (device / "class").write_text(kind)
    return describe_devices({}, sysfs_root=folder, patience_s=5.0)


def test_a_machine_without_a_gpu_passes_and_says_what_runs_use(tmp_path: Path) -> None:
    said = outcome(host_with(tmp_path, network=("0x15b3", "0x020000")))
    assert said.status == "PASS"
    assert said.summary.startswith("no GPU found; runs use the CPU")


@pytest.mark.parametrize("vendor", ["0x10de", "0x1002"])
def test_a_gpu_on_the_bus_that_no_driver_lists_is_no_machine_without_one(tmp_path: Path, vendor: str) -> None:
    said = outcome(host_with(tmp_path, gpu=(vendor, "0x030200")))
    assert said.status == "WARN"
    assert "on the PCI bus, but not readable" in said.summary
