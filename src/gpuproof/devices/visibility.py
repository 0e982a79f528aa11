"""Which number does the framework give each device, after the variables that hide and reorder devices?

Pure: in come the devices in PCI order and the environment, out come framework indices, and a reason for each
device that has none. CUDA's own order is only known from outside where all GPUs are alike or
CUDA_DEVICE_ORDER is PCI_BUS_ID; elsewhere a numeric choice is answered by a reason, never by a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.records.readings import FrameworkIndex, PhysicalIndex, Vendor

_NOT_NUMBERED = "no framework index is defined for this vendor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What visibility variables can name a device by."""

    physical_index: PhysicalIndex
    vendor: Vendor
    name: str
    uuid: str | None
    mig_parent_uuid: str | None
    static: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Framework indices, and why a device has none."""

    indices: dict[PhysicalIndex, FrameworkIndex]
    reasons: dict[PhysicalIndex, str]


def number(devices: Sequence[Candidate], env: Mapping[str, str]) -> Numbering:
    """Number all devices; NVIDIA and AMD each count from 0, as a framework is built for one of them."""
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
        return [], "CUDA's order of unlike GPUs is not known here; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    if by_number and len(whole) < len(devices):
        return [], "a GPU is in MIG mode; choose with CUDA_VISIBLE_DEVICES=MIG-…"
    if chosen is None:
        return whole, "hidden from CUDA"
    return _chosen(chosen, whole, devices), f"hidden by CUDA_VISIBLE_DEVICES={chosen}"


def _rocm(devices: Sequence[Candidate], env: Mapping[str, str]) -> tuple[list[Candidate], str]:
    """Apply ROCR_VISIBLE_DEVICES, then HIP's variable to what it left. ROCm's order is that of the KFD."""
    visible = sorted(devices, key=lambda device: (device.static.get("kfd_node", 0), device.physical_index))
    hidden_by = []
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        name = next((name for name in names if name in env), None)
        if name is not None:
            visible = _chosen(env[name], visible, visible)
            hidden_by.append(f"{name}={env[name]}")
    return visible, f"hidden by {' and '.join(hidden_by)}" if hidden_by else "hidden from ROCm"


def _chosen(value: str, numbered: Sequence[Candidate], named: Sequence[Candidate]) -> list[Candidate]:
    """Resolve a comma-separated choice as the runtimes do.

    The first entry that names nothing ends the list (so does -1), and a repeated one empties it.
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
    """Resolve `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`, the form of drivers before 470."""
    parent, _, instances = token.removeprefix("MIG-").partition("/")
    for device in named:
        static = device.static
        instance = f"{static.get('mig_gpu_instance_id')}/{static.get('mig_compute_instance_id')}"
        if device.uuid == token or (device.mig_parent_uuid == parent and instance == instances):
            return device
    return None
