"""Which other processes use this rank's device? Checked before and after the window.

Input: the device's UUID, in the format of NVML or torch, and the process ids of the launch. Output: how many
other processes hold a context and how much memory they use, or why that is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuproof.devices.base import DeviceError, DeviceProcess
from gpuproof.devices.deadline import CallGuard
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.nvidia.handles import list_processes
from gpuproof.records.readings import spellings
from gpuproof.records.run import DeviceSharing

DEADLINE_S = 5.0
"""Deadline in seconds. Starting NVML next to a running framework takes well under a second; if the driver
hangs, it must not block the case."""
DISPLAY_SERVERS = frozenset(
    (
        *("X", "Xorg", "Xorg.bin", "Xwayland", "Xvnc", "gnome-shell", "gnome-remote-de", "mutter"),
        *("mutter-x11-fram", "kwin_x11", "kwin_wayland", "plasmashell", "ksmserver", "xfwm4", "marco"),
        *("cinnamon", "compiz", "sway", "weston", "Hyprland", "wayfire", "labwc", "river", "gamescope"),
        *("cosmic-comp", "gdm-x-session", "sddm"),
    )
)
"""X servers, Wayland compositors and window managers that use a GPU for drawing, by their names in /proc."""


def other_users(
    device_uuid: str | None,
    our_pids: Collection[int],
    *,
    deadline_s: float = DEADLINE_S,
    proc: Path = Path("/proc"),
) -> DeviceSharing:
    """Return how many processes on a device are not in `our_pids`, and how much memory they use.

    Display servers are listed separately and not counted: on a workstation, the desktop that shows the
    progress always runs on the GPU.

    In a container, NVML may report the host's process ids: if none of `our_pids` is listed, the answer is
    unknown, rather than that all processes are foreign.
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
    return others_among(processes, our_pids, proc)


def most_users(begin: DeviceSharing, end: DeviceSharing) -> DeviceSharing:
    """Combine the checks at a window's start and end: the higher count, ignoring unknown counts.

    >>> most_users(_unknown("no context yet"), _unknown("the driver hangs")).missing
    'the driver hangs'
    """
    readable = [seen for seen in (end, begin) if seen.other_processes is not None]
    return max(readable, key=lambda seen: seen.other_processes or 0, default=end)


def others_among(
    processes: Sequence[DeviceProcess], our_pids: Collection[int] = (), proc: Path = Path("/proc")
) -> DeviceSharing:
    """Return how many processes are neither in `our_pids` nor a display server."""
    foreign = [process for process in processes if process.pid not in our_pids]
    if our_pids and len(foreign) == len(processes):
        return _unknown(
            "the driver lists none of this launch's processes: it sees another PID namespace, or "
            "they have no context"
        )
    names = {process.pid: _process_name(process.pid, proc) for process in foreign}
    others = [process for process in foreign if names[process.pid] not in DISPLAY_SERVERS]
    sizes = [process.mem_used_bytes for process in others]
    sizes_bytes = [size for size in sizes if size is not None]
    complete = len(sizes_bytes) == len(sizes)
    return DeviceSharing(
        other_processes=len(others),
        other_memory_bytes=sum(sizes_bytes) if complete else None,
        missing=None if complete else "the driver does not report the memory of every process",
        display_servers=tuple(sorted({name for name in names.values() if name in DISPLAY_SERVERS})),
    )


def _processes(device_uuid: str) -> tuple[DeviceProcess, ...]:
    nvml = nvml_border.load_binding()
    nvml_border.initialise(nvml)
    try:
        return nvml_border.ask(nvml, lambda: list_processes(nvml, _handle(nvml, device_uuid)))
    finally:
        nvml_border.shut_down(nvml)


def _handle(nvml: Any, device_uuid: str) -> Any:
    """Look up a device by UUID; torch writes it without the GPU or MIG prefix."""
    *others, last = spellings(device_uuid)
    for spelling in others:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(spelling)
        except nvml.NVMLError as error:  # noqa: PERF203  # two spellings, once a window
            if nvml_border.error_code(error) != nvml_border.NOT_FOUND:
                raise
    return nvml.nvmlDeviceGetHandleByUUID(last)


def _process_name(pid: int, proc: Path) -> str | None:
    """Return the kernel's name for a process, truncated to 15 characters; None if it has exited."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _unknown(reason: str) -> DeviceSharing:
    return DeviceSharing(other_processes=None, other_memory_bytes=None, missing=reason)
