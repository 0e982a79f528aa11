"""Describe this host's devices in text and numbers, for environment capture and `doctor`.

Opens every vendor's driver, reads each device's static facts, and closes everything. The output is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuproof.devices.base import DeviceProcess
from gpuproof.devices.discovery import OPEN_DEADLINE_S, open_devices
from gpuproof.devices.opening import SILENT_NAME, on_the_bus
from gpuproof.devices.other_processes import others_among
from gpuproof.records.codec import to_json
from gpuproof.records.readings import DeviceIdentity, PhysicalIndex

STATE = (
    "pcie_gen",
    "pcie_width",
    "nvlink_links_active",
    "remapped_rows_pending",
    "remapped_rows_failed",
    "ecc_uncorrected_count",
    "temp_gpu_c",
)
"""Metrics read from each device now: its connection, the health of its memory, and its temperature."""
_NOT_PROVIDED = "not supported by the driver"
_VERSIONS = {"version": "driver_version", "cuda": "cuda_version"}


def describe_devices(
    env: Mapping[str, str], *, sysfs_root: Path = Path("/sys"), patience_s: float = OPEN_DEADLINE_S
) -> dict[str, Any]:
    """Describe the host's devices and, for each vendor without devices, the reason.

    Each device has a `state` (metrics read now) and, in `state_unavailable`, the reason for each missing
    metric. `drivers` maps a vendor to its driver's version (and `cuda`, the newest CUDA it supports).
    `silent` lists devices whose driver does not respond within `patience_s`, with PCI address and reason.

    Raises:
        UsageError: GPUPROOF_FAKE_DEVICES or GPUPROOF_REPLAY_DEVICES cannot be read.
    """
    devices = open_devices(env, sysfs_root=sysfs_root, open_deadline_s=patience_s)
    try:
        states = devices.gather(STATE)
        return {
            "devices": [
                _device(identity, *states[PhysicalIndex(identity.physical_index)])
                for identity in devices.identities
                if identity.name != SILENT_NAME
            ],
            "silent": [
                {
                    "vendor": identity.vendor,
                    "pci_bus_id": identity.pci_bus_id,
                    "reason": devices.absent.get(identity.vendor, "its driver does not respond"),
                }
                for identity in devices.identities
                if identity.name == SILENT_NAME
            ],
            "undriven": [
                {"vendor": vendor, "pci_bus_id": device.pci_bus_id}
                for vendor in devices.absent
                for device in on_the_bus(vendor, sysfs_root)
            ],
            "drivers": _drivers(devices.identities),
            "absent": dict(devices.absent),
        }
    finally:
        devices.close()


def describe_users(env: Mapping[str, str], *, sysfs_root: Path = Path("/sys")) -> list[dict[str, Any]]:
    """List each device with the number of processes on it; the number may be None, with a reason.

    Raises:
        UsageError: as for `describe_devices`.
    """
    devices = open_devices(env, sysfs_root=sysfs_root)
    try:
        listed = devices.processes()
        return [
            _users(identity, listed[PhysicalIndex(identity.physical_index)])
            for identity in devices.identities
        ]
    finally:
        devices.close()


def _users(identity: DeviceIdentity, processes: tuple[DeviceProcess, ...] | str) -> dict[str, Any]:
    users = None if isinstance(processes, str) else others_among(processes)
    return {
        "name": identity.name,
        "uuid": identity.uuid,
        "framework_index": identity.framework_index,
        "physical_index": identity.physical_index,
        "processes": None if users is None else users.other_processes,
        "missing": processes if isinstance(processes, str) else None,
        "is_silent": identity.name == SILENT_NAME,
    }


def _device(identity: DeviceIdentity, state: Mapping[str, Any], missing: Mapping[str, str]) -> dict[str, Any]:
    unavailable = {name: missing.get(name, _NOT_PROVIDED) for name in STATE if name not in state}
    return {**to_json(identity), "state": dict(state), "state_unavailable": unavailable}


def _drivers(identities: Sequence[DeviceIdentity]) -> dict[str, dict[str, Any]]:
    drivers: dict[str, dict[str, Any]] = {}
    for identity in identities:
        versions = {
            name: identity.static[fact] for name, fact in _VERSIONS.items() if fact in identity.static
        }
        drivers.setdefault(identity.vendor, {}).update(versions)
    return drivers
