"""Which devices does this host have, across all vendors, and how does the framework number them?

Every vendor is queried. An absent vendor is reported with a reason, and a vendor with a driver that does not
respond joins once the driver does (`opening`). Devices are numbered in the order of their PCI addresses, MIG
instances after their GPU; devices that join late get the numbers reserved for them, or the next ones. The
environment and the root of sysfs are parameters; `GPUPROOF_FAKE_DEVICES`, `GPUPROOF_SIMGPU` and
`GPUPROOF_REPLAY_DEVICES` replace all vendors. Framework indices follow from the variables that hide and
reorder devices. From outside the process, CUDA's own order can only be determined if all GPUs are the same or
CUDA_DEVICE_ORDER is PCI_BUS_ID; otherwise a numeric choice yields a reason instead of a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuproof.devices import fake, intel, replay, simulated
from gpuproof.devices.amd import adapter as amd
from gpuproof.devices.amd.library import open_library
from gpuproof.devices.base import DeviceAdapter, VendorDevice
from gpuproof.devices.deadline import CallGuard
from gpuproof.devices.guard import GuardedDevices, OpenDevice
from gpuproof.devices.nvidia import adapter as nvidia
from gpuproof.devices.opening import Drivers, Listed, on_the_bus
from gpuproof.records.metrics import names
from gpuproof.records.readings import DeviceIdentity, FrameworkIndex, PhysicalIndex, Vendor

DEADLINE_S = 2.0
"""Deadline for a driver call, in seconds: longer than any call that eventually returns, but short enough to
lose only a tick or two."""
OPEN_DEADLINE_S = 8.0
"""Deadline for opening drivers, in seconds. On a host without persistence mode, opening wakes every GPU,
which takes seconds each; but no user should wait ten seconds to learn that a driver hangs."""
SLOWEST_DRIVER_S = 60.0
"""Time in seconds sufficient to open eight GPUs without persistence mode. Work that runs on a GPU has to wait
for its driver anyway."""

_NOT_NUMBERED = "no framework index is defined for this vendor"


def open_devices(
    env: Mapping[str, str],
    *,
    sysfs_root: Path = Path("/sys"),
    deadline_s: float = DEADLINE_S,
    open_deadline_s: float = OPEN_DEADLINE_S,
) -> GuardedDevices:
    """Open the devices of every vendor; if there are none, return a reason for each vendor.

    `open_deadline_s` limits the wait for all drivers together. `GuardedDevices.arrivals` adds devices later,
    when their drivers respond.

    Raises:
        UsageError: one of the variables that replace all vendors' devices cannot be read.
    """
    drivers = Drivers(_openers(env, sysfs_root), on_bus=partial(_on_bus, env=env, sysfs_root=sysfs_root))
    drivers.wait(open_deadline_s)
    places = _Places(env)

    def late() -> list[OpenDevice] | None:
        return places.placed(drivers) if drivers.late() else None

    return GuardedDevices(
        places.placed(drivers), absent=drivers.absent, guard=CallGuard(deadline_s), late=late
    )


def _on_bus(vendor: Vendor, *, env: Mapping[str, str], sysfs_root: Path) -> list[VendorDevice]:
    """List the devices of a driver that does not respond, without querying the driver."""
    if vendor == "fake":
        return fake.on_the_bus(env.get(fake.VARIABLE, ""))
    return on_the_bus(vendor, sysfs_root)


def _openers(env: Mapping[str, str], sysfs_root: Path) -> dict[Vendor, Callable[[], DeviceAdapter]]:
    if env.get(fake.VARIABLE):
        released = env.get(fake.RELEASE_VARIABLE)
        return {"fake": partial(fake.open_adapter, env[fake.VARIABLE], released_by=released)}
    if env.get(simulated.VARIABLE):
        return {"fake": partial(fake.open_twins, env[simulated.VARIABLE])}
    if env.get(replay.VARIABLE):
        return {"replay": partial(replay.open_adapter, Path(env[replay.VARIABLE]))}
    return {
        "nvidia": partial(nvidia.open_here, sysfs_root),
        "amd": partial(amd.open_adapter, sysfs_root, open_library=open_library),
        "intel": partial(intel.open_adapter, sysfs_root),
    }


class _Places:
    """The numbers of a host's devices, which stay the same when other devices join later."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._indices: dict[tuple[Vendor, object], PhysicalIndex] = {}

    def placed(self, drivers: Drivers) -> list[OpenDevice]:
        """Number the devices listed so far; return them in the order of their numbers."""
        listed = sorted((pair for pairs in drivers.listed.values() for pair in pairs), key=_place)
        for adapter, device in listed:
            self._indices.setdefault(_key(adapter, device), PhysicalIndex(len(self._indices)))
        candidates = [_candidate(self._indices[_key(*pair)], *pair, listed) for pair in listed]
        numbering = number(candidates, self._env)
        devices = [
            OpenDevice(identity=_identity(candidate, *pair, numbering), adapter=pair[0])
            for candidate, pair in zip(candidates, listed, strict=True)
        ]
        return sorted(devices, key=lambda device: device.physical_index)


def _key(adapter: DeviceAdapter, device: VendorDevice) -> tuple[Vendor, object]:
    """Identify a device by its address, known before its driver responds; MIG instances by name."""
    by_address = device.pci_bus_id is not None and device.mig_parent is None
    return adapter.vendor, device.pci_bus_id if by_address else (device.vendor_index, device.uuid)


def _place(listed: Listed) -> tuple[bool, list[int], bool, str, int]:
    """Order by PCI address; devices without an address come last, and MIG instances follow their GPU."""
    adapter, device = listed
    address = (device.pci_bus_id or "").replace(".", ":").split(":")
    numbers = [int(part, 16) for part in address if part]
    return not numbers, numbers, device.mig_parent is not None, adapter.vendor, device.vendor_index


def _candidate(
    index: PhysicalIndex, adapter: DeviceAdapter, device: VendorDevice, listed: list[Listed]
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
    unavailable = {
        name: "not supported by the vendor's interface" for name in names(kind="static") if name not in static
    }
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """How visibility variables can identify a device."""

    physical_index: PhysicalIndex
    vendor: Vendor
    name: str
    uuid: str | None
    mig_parent_uuid: str | None
    static: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Framework indices, and the reason why a device has none."""

    indices: dict[PhysicalIndex, FrameworkIndex]
    reasons: dict[PhysicalIndex, str]


def number(devices: Sequence[Candidate], env: Mapping[str, str]) -> Numbering:
    """Number all devices; NVIDIA and AMD each start from 0, since a framework build supports only one."""
    numbering = Numbering({}, {})
    nvidia = [device for device in devices if device.vendor == "nvidia"]
    amd = [device for device in devices if device.vendor == "amd"]
    _record(numbering, nvidia, *_cuda(nvidia, env))
    _record(numbering, amd, *_rocm(amd, env))
    for vendor in ("fake", "replay"):
        same = [device for device in devices if device.vendor == vendor]
        _record(numbering, same, same, "")
    _record(numbering, [device for device in devices if device.vendor == "intel"], [], _NOT_NUMBERED)
    return numbering


def _record(
    numbering: Numbering, devices: Sequence[Candidate], visible: Sequence[Candidate], reason: str
) -> None:
    for place, device in enumerate(visible):
        numbering.indices[device.physical_index] = FrameworkIndex(place)
    for device in devices:
        if device not in visible:
            numbering.reasons[device.physical_index] = reason


def _cuda(devices: Sequence[Candidate], env: Mapping[str, str]) -> tuple[list[Candidate], str]:
    whole = [device for device in devices if device.mig_parent_uuid is None]
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    is_ordered = env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({d.name for d in whole}) <= 1
    by_number = chosen is None or any(token.strip().isdigit() for token in chosen.split(","))
    if by_number and not is_ordered:
        return [], "CUDA's order of different GPUs is not known here; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    if by_number and len(whole) < len(devices):
        return [], "a GPU is in MIG mode; choose with CUDA_VISIBLE_DEVICES=MIG-…"
    if chosen is None:
        return whole, "hidden from CUDA"
    return _chosen(chosen, whole, devices), f"hidden by CUDA_VISIBLE_DEVICES={chosen}"


def _rocm(devices: Sequence[Candidate], env: Mapping[str, str]) -> tuple[list[Candidate], str]:
    """Apply ROCR_VISIBLE_DEVICES, then HIP's variable to the rest. ROCm uses the KFD's order."""
    visible = sorted(devices, key=lambda device: (device.static.get("kfd_node", 0), device.physical_index))
    hidden_by = []
    for variables in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        name = next((name for name in variables if name in env), None)
        if name is not None:
            visible = _chosen(env[name], visible, visible)
            hidden_by.append(f"{name}={env[name]}")
    return visible, f"hidden by {' and '.join(hidden_by)}" if hidden_by else "hidden from ROCm"


def _chosen(value: str, numbered: Sequence[Candidate], named: Sequence[Candidate]) -> list[Candidate]:
    """Resolve a comma-separated list of devices the way the runtimes do.

    The first invalid entry ends the list (as does -1), and a repeated entry empties it.
    """
    chosen: list[Candidate] = []
    for token in value.split(","):
        device = _named(token.strip(), numbered, named)
        if device is None:
            break
        if device in chosen:
            return []
        chosen.append(device)
    return chosen


def _named(token: str, numbered: Sequence[Candidate], named: Sequence[Candidate]) -> Candidate | None:
    if token.isdigit():
        return numbered[int(token)] if int(token) < len(numbered) else None
    if token.startswith("MIG-GPU-"):
        return _legacy_mig(token, named)
    if not token.startswith(("GPU-", "MIG-")):
        return None
    matches = [device for device in named if device.uuid is not None and device.uuid.startswith(token)]
    return matches[0] if len(matches) == 1 else None


def _legacy_mig(token: str, named: Sequence[Candidate]) -> Candidate | None:
    """Resolve `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`, the format before driver 470."""
    parent, _, instances = token.removeprefix("MIG-").partition("/")
    for device in named:
        static = device.static
        instance = f"{static.get('mig_gpu_instance_id')}/{static.get('mig_compute_instance_id')}"
        if device.uuid == token or (device.mig_parent_uuid == parent and instance == instances):
            return device
    return None
