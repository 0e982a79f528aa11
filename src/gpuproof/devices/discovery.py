"""Which devices does this host have, over all vendors at once, and what does the framework call them?

Every vendor is asked; one that is absent leaves its reason. Devices are numbered in the order of their PCI
addresses, MIG instances after their GPU. The environment and the root of sysfs come in as parameters.
`GPUPROOF_FAKE_DEVICES`, `GPUPROOF_SIMGPU` and `GPUPROOF_REPLAY_DEVICES` replace all vendors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpuproof.devices import fake, replay, simulated
from gpuproof.devices.amd import adapter as amd
from gpuproof.devices.amd.library import open_library
from gpuproof.devices.base import DeviceAdapter, DeviceError, VendorDevice
from gpuproof.devices.deadline import CallGuard
from gpuproof.devices.guard import GuardedDevices, OpenDevice
from gpuproof.devices.intel import adapter as intel
from gpuproof.devices.nvidia import adapter as nvidia
from gpuproof.devices.visibility import Candidate, Numbering, number
from gpuproof.records.metrics import names
from gpuproof.records.readings import DeviceIdentity, PhysicalIndex

DEADLINE_S = 2.0
"""Longer than a driver call that is going to return, short enough to lose a tick or two only."""
OPEN_DEADLINE_S = 60.0
"""Opening wakes every GPU of a host without persistence mode, which takes seconds each."""

_NOT_OFFERED = "the vendor's interface has no such fact"

_Listed = tuple[DeviceAdapter, VendorDevice]


def open_devices(
    env: Mapping[str, str],
    *,
    sysfs_root: Path = Path("/sys"),
    deadline_s: float = DEADLINE_S,
    open_deadline_s: float = OPEN_DEADLINE_S,
) -> GuardedDevices:
    """Open every vendor's devices; without any, the answer has no device and a reason for each vendor.

    Raises:
        UsageError: one of those variables cannot be read.
    """
    guard = CallGuard(open_deadline_s)
    listed: list[_Listed] = []
    absent: dict[str, str] = {}
    for vendor, opener in _openers(env, sysfs_root).items():
        found = _opened(guard, vendor, opener)
        if isinstance(found, str):
            absent[vendor] = found
        else:
            listed += found
    guard.deadline_s = deadline_s
    return GuardedDevices(_placed(listed, env), absent=absent, guard=guard)


def _openers(env: Mapping[str, str], sysfs_root: Path) -> dict[str, Callable[[], DeviceAdapter]]:
    if env.get(fake.VARIABLE):
        return {"fake": partial(fake.open_adapter, env[fake.VARIABLE])}
    if env.get(simulated.VARIABLE):
        return {"fake": partial(fake.open_twins, env[simulated.VARIABLE])}
    if env.get(replay.VARIABLE):
        return {"replay": partial(replay.open_adapter, Path(env[replay.VARIABLE]))}
    return {
        "nvidia": nvidia.open_adapter,
        "amd": partial(amd.open_adapter, sysfs_root, open_library=open_library),
        "intel": partial(intel.open_adapter, sysfs_root),
    }


def _opened(guard: CallGuard, vendor: str, opener: Callable[[], DeviceAdapter]) -> list[_Listed] | str:
    try:
        adapter = guard.call(f"open {vendor}", opener)
        devices = guard.call(f"list {vendor}", adapter.identities)
    except DeviceError as error:
        return error.cause
    return [(adapter, device) for device in devices]


def _placed(listed: list[_Listed], env: Mapping[str, str]) -> list[OpenDevice]:
    ordered = sorted(listed, key=_place)
    candidates = [_candidate(PhysicalIndex(i), *pair, listed) for i, pair in enumerate(ordered)]
    numbering = number(candidates, env)
    return [
        OpenDevice(identity=_identity(candidate, *pair, numbering), adapter=pair[0])
        for candidate, pair in zip(candidates, ordered, strict=True)
    ]


def _place(listed: _Listed) -> tuple[bool, list[int], bool, str, int]:
    """Order by PCI address, devices without one last, a MIG instance after its GPU."""
    adapter, device = listed
    address = (device.pci_bus_id or "").replace(".", ":").split(":")
    numbers = [int(part, 16) for part in address if part]
    return not numbers, numbers, device.mig_parent is not None, adapter.vendor, device.vendor_index


def _candidate(
    index: PhysicalIndex, adapter: DeviceAdapter, device: VendorDevice, listed: list[_Listed]
) -> Candidate:
    parents = [
        other.uuid
        for owner, other in listed
        if owner is adapter and device.mig_parent is not None and other.vendor_index == device.mig_parent
    ]
    return Candidate(
        physical_index=index,
        vendor=adapter.vendor,
        name=device.name,
        uuid=device.uuid,
        mig_parent_uuid=(parents[0] or "unknown") if parents else None,
        static=device.static,
    )


def _identity(
    candidate: Candidate, adapter: DeviceAdapter, device: VendorDevice, numbering: Numbering
) -> DeviceIdentity:
    index = candidate.physical_index
    static: dict[str, Any] = dict(device.static)
    if candidate.mig_parent_uuid is not None:
        static["mig_parent_uuid"] = candidate.mig_parent_uuid
    unavailable = {name: _NOT_OFFERED for name in names(kind="static") if name not in static}
    unavailable |= device.unavailable
    if index in numbering.reasons:
        unavailable["framework_index"] = numbering.reasons[index]
    return DeviceIdentity(
        physical_index=index,
        vendor=adapter.vendor,
        vendor_index=device.vendor_index,
        framework_index=numbering.indices.get(index),
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        name=device.name,
        static=static,
        unavailable=unavailable,
    )
