"""The facts about a host that make a result comparable, or that explain why it is not.

Read by the first rank on each host, and by `probe`. Each value is a fact, or None.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuproof.devices.describe import describe_devices
from gpuproof.devices.discovery import OPEN_DEADLINE_S, SLOWEST_DRIVER_S
from gpuproof.monitor.host import cpu_model
from gpuproof.processes.granted import (
    THREADS_VARIABLE,
    cpu_quota,
    granted_gpus,
    memory_total_bytes,
    usable_cpus,
    users_threads,
)
from gpuproof.worker.host.fabric import describe_affinity, infiniband_ports, recorded_variables
from gpuproof.worker.host.settings import host_settings

if TYPE_CHECKING:
    from gpuproof.accelerators.base import Accelerator

PROCESSOR_PATIENCE_S = 0.8
"""Timeout for drivers of devices that the workload does not use."""


def describe_host(
    environment: Mapping[str, str] = os.environ,
    *,
    device: str = "auto",
    patience_s: float | None = None,
) -> dict[str, Any]:
    """Return the facts about this host as JSON: system, CPU, memory, devices, framework, variables.

    A device type that another package provides is looked for only if it was requested. If a driver does not
    answer within `patience_s`, torch is not queried for devices, since it would wait for that driver. If
    `patience_s` is None, the limits of a rank apply: a short one for CPU workloads, otherwise the limit of
    the slowest driver. In the latter case torch is always queried, since the workload waits for the driver as
    well.

    Nothing is cached for the next launch, since it could be out of date. Once torch is imported, reading
    everything took 45 ms on a host without a GPU. On an H100 it took about 0.5 s, including everything that
    CUDA itself needs.
    """
    import torch

    from gpuproof.accelerators.choose import CudaAccelerator, accelerators_here

    device_s = PROCESSOR_PATIENCE_S if device == "cpu" else SLOWEST_DRIVER_S
    facts = describe_system(environment, patience_s=device_s if patience_s is None else patience_s)
    is_awaited = patience_s is None and device != "cpu"
    is_silent = bool(facts["accelerators"]["silent"])
    present = () if is_silent and not is_awaited else accelerators_here(device)
    facts["cpu"]["vector"] = torch.backends.cpu.get_cpu_capability()
    return {
        **facts,
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        **CudaAccelerator().library_versions(),
        "devices": [_device(kind, index) for kind in present for index in range(kind.count())],
    }


def describe_system(
    environment: Mapping[str, str] = os.environ, *, patience_s: float = OPEN_DEADLINE_S
) -> dict[str, Any]:
    """Return the facts that need no framework: `describe_host` without devices and torch versions."""
    accelerators = describe_devices(dict(environment), patience_s=patience_s)
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": sys.version.split()[0],
        "cpu": {
            "name": cpu_model() or platform.processor() or None,
            "logical_cpus": os.cpu_count(),
            "usable_cpus": usable_cpus(),
            "quota_cpus": cpu_quota(),
            "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "vector": None,
        },
        "memory_total_bytes": memory_total_bytes(),
        "torch": None,
        "driver": _first_line("/proc/driver/nvidia/version"),
        "devices": [],
        "accelerators": accelerators,
        "granted_gpus": granted_gpus(environment),
        "infiniband": infiniband_ports(),
        "affinity": describe_affinity(
            device["pci_bus_id"] for device in accelerators["devices"] if device["pci_bus_id"]
        ),
        "environment": recorded_variables(_as_the_user_set_it(environment)),
        "settings": host_settings(environment, accelerators["devices"]),
    }


def _as_the_user_set_it(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Restore the user's thread count, which gpuproof or torchrun has overridden."""
    others = {name: value for name, value in environment.items() if name != THREADS_VARIABLE}
    users = users_threads()
    return others if users is None else {**others, THREADS_VARIABLE: str(users)}


def _device(accelerator: Accelerator, index: int) -> dict[str, Any]:
    import torch

    properties = accelerator.properties(torch.device(accelerator.type, index))
    capability = properties.compute_capability
    facts = {
        "index": index,
        "kind": accelerator.type,
        "name": properties.name,
        "uuid": properties.uuid,
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
        "multiprocessors": properties.multiprocessors,
        "memory_total_bytes": properties.memory_total_bytes,
    }
    facts["peer_access"] = _peer_access(accelerator, index)
    if not accelerator.simulated:
        return facts
    return {**facts, "simulated": True, "declared": dict(accelerator.declared_rates)}


def _peer_access(accelerator: Accelerator, index: int) -> list[int] | None:
    """List the devices that this one can copy to directly; None if unknown or if it is the only one."""
    import torch

    others = [other for other in range(accelerator.count()) if other != index]
    device = torch.device(accelerator.type, index)
    reachable = {
        other: accelerator.reaches(device, torch.device(accelerator.type, other)) for other in others
    }
    if not reachable or None in reachable.values():
        return None
    return [other for other, reaches in reachable.items() if reaches]


def _first_line(path: str) -> str | None:
    try:
        return next(iter(Path(path).read_text(encoding="utf-8", errors="replace").splitlines()), None)
    except OSError:
        return None
