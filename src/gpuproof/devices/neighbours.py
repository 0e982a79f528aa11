"""Who else uses this rank's device? Asked outside the measured window, at its two ends.

In come the device's UUID, as NVML or as torch writes it, and the process ids of the launch; out comes how
many other processes hold a context and how much memory, or why that cannot be known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from gpuproof.devices.base import DeviceError, DeviceProcess
from gpuproof.devices.deadline import CallGuard
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.nvidia.handles import list_processes
from gpuproof.records.run import DeviceNeighbours

DEADLINE_S = 5.0
"""Starting NVML beside a running framework takes well under a second; a driver that hangs must not hold up
the case."""


def other_users(
    device_uuid: str | None, own_pids: Collection[int], *, deadline_s: float = DEADLINE_S
) -> DeviceNeighbours:
    """Count the processes on a device that are not among `own_pids`, and their memory.

    In a container, NVML's process ids may be those of the host: where none of `own_pids` is listed, the
    answer is unknown, not that all others are foreign.
    """
    if device_uuid is None:
        return _unknown("the device has no UUID")
    guard = CallGuard(deadline_s)
    try:
        processes = guard.call("neighbours", partial(_processes, device_uuid))
    except DeviceError as error:
        return _unknown(error.cause)
    finally:
        guard.close()
    return _judged(processes, own_pids)


def most_users(begin: DeviceNeighbours, end: DeviceNeighbours) -> DeviceNeighbours:
    """Join what was seen at the two ends of a window: more users count, and a known number over an unknown.

    >>> most_users(_unknown("no context yet"), _unknown("the driver hangs")).missing
    'the driver hangs'
    """
    known = [seen for seen in (end, begin) if seen.other_processes is not None]
    return max(known, key=lambda seen: seen.other_processes or 0, default=end)


def _judged(processes: Sequence[DeviceProcess], own_pids: Collection[int]) -> DeviceNeighbours:
    others = [process for process in processes if process.pid not in own_pids]
    if own_pids and len(others) == len(processes):
        return _unknown(
            "the driver lists none of this launch's processes: it sees another PID namespace, or they hold "
            "no context"
        )
    sizes = [process.mem_used_bytes for process in others]
    known = [size for size in sizes if size is not None]
    complete = len(known) == len(sizes)
    return DeviceNeighbours(
        other_processes=len(others),
        other_memory_bytes=sum(known) if complete else None,
        missing=None if complete else "the driver does not tell every process's memory",
    )


def _processes(device_uuid: str) -> tuple[DeviceProcess, ...]:
    nvml = nvml_border.load_binding()
    nvml_border.initialise(nvml)
    try:
        return nvml_border.ask(nvml, lambda: list_processes(nvml, _handle(nvml, device_uuid)))
    finally:
        nvml_border.shut_down(nvml)


def _handle(nvml: Any, device_uuid: str) -> Any:
    """Look up a UUID, which torch writes without saying whether it is a GPU's or a MIG instance's."""
    if device_uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(device_uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{device_uuid}")
    except nvml.NVMLError as error:
        if nvml_border.error_code(error) != nvml_border.NOT_FOUND:
            raise
    return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{device_uuid}")


def _unknown(reason: str) -> DeviceNeighbours:
    return DeviceNeighbours(other_processes=None, other_memory_bytes=None, missing=reason)
