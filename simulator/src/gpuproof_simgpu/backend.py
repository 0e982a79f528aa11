"""Register the simulated devices with torch, once per process."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch.distributed.distributed_c10d import Backend
from torch.utils import backend_registration

from gpuproof.devices.simulated import VARIABLE, SimulatedDevices, read_declaration, readings_file
from gpuproof_simgpu import device_module
from gpuproof_simgpu.build import load_device

TYPE = "simgpu"
COLLECTIVES = "simccl"
_NS = 1e9


@cache
def activate() -> ModuleType:
    """Register the device `simgpu` and the collectives `simccl`; return the compiled module.

    The devices are those declared in GPUPROOF_SIMGPU; torch supports one out-of-tree device type per process.

    Raises:
        EnvironmentUnfitError: the C++ part cannot be compiled on this machine.
        UsageError: the declaration cannot be parsed.
    """
    declared = read_declaration(os.environ.get(VARIABLE, ""))
    device = load_device()
    readings_file(0).parent.mkdir(exist_ok=True)
    device.configure(
        [_settings(declared, index) for index in range(declared.devices)], declared.zero_products
    )
    device.register_hooks()
    backend_registration.rename_privateuse1_backend(TYPE)
    device_module.use(device, declared)
    torch._register_device_module(TYPE, device_module)  # torch has no public name for this
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    device.register_graphs()
    if torch.distributed.is_available():
        _register_collectives()
    return device


def _settings(declared: SimulatedDevices, index: int) -> dict[str, Any]:
    """Return the C++ part's arguments for one device: nanoseconds, factors, and -1 for never."""
    fault = declared.fault(index)
    after_s = fault.throttled_after_s
    cap = declared.power_cap
    slowdown, link_factor = declared.slowdown(index, "work"), declared.slowdown(index, "links")
    return {
        "flops_per_s": declared.flops_per_s,
        "flops_16bit_per_s": declared.flops_16bit_per_s,
        "memory_bytes_per_s": declared.memory_bytes_per_s,
        "host_link_bytes_per_s": declared.host_link_bytes_per_s / link_factor,
        "peer_link_bytes_per_s": declared.peer_link_bytes_per_s / link_factor,
        "launch_latency_ns": round(declared.launch_latency_s * _NS),
        "link_latency_ns": round(declared.link_latency_s * _NS),
        "queue_depth": declared.queue_depth,
        "memory_bytes": declared.memory_of(index),
        "readings_file": str(readings_file(index)),
        "cap_period_ns": 0 if cap is None else round(cap.period_s * _NS),
        "cap_after_ns": 0 if cap is None else round(cap.settles_after_s * _NS),
        "cap_depth": 0.0 if cap is None else cap.depth_percent / 100,
        "slowdown": slowdown,
        "throttled_after_ns": -1 if after_s is None else round(after_s * _NS),
        "throttled_slowdown": slowdown * (1 + fault.throttled_percent / 100),
        "wrong_product": -1 if fault.wrong_product is None else fault.wrong_product,
        "wrong_products_from": -1 if fault.wrong_products_from is None else fault.wrong_products_from,
        "wrong_copy": -1 if fault.wrong_copy is None else fault.wrong_copy,
        "stuck_byte": -1 if fault.stuck_byte is None else fault.stuck_byte,
        "hang_in_kernel": -1 if fault.hang_in_kernel is None else fault.hang_in_kernel,
    }


def _register_collectives() -> None:
    Backend.register_backend(COLLECTIVES, _make_group, devices=[TYPE])
    # torch 2.13 stores plug-ins in upper case, but looks up the plug-in for a group with several backends in
    # lower case.
    Backend._plugins = {COLLECTIVES: Backend._plugins[COLLECTIVES.upper()], **Backend._plugins}


def _make_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    gloo = torch.distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)
    return activate().backend_around(gloo)
