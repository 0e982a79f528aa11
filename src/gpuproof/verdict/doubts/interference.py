"""Did other processes use the machine, or did a device throttle, while a window was measured?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.base.groups import grouped
from gpuproof.base.units import seconds
from gpuproof.launches.explanations import LaunchExplanation
from gpuproof.records.result import Doubt
from gpuproof.records.run import Window
from gpuproof.verdict.doubts.base import Measured, fewer_threads, suspect

FAULT = "device-fault"
"""The code of the warning about a device fault."""
NEIGHBOURS_CODE = "cpu-neighbours"
"""The code of the warning about other processes on the CPUs."""
NEIGHBOUR_CPUS = 0.25
"""Number of CPUs used by other processes above which those may affect results."""
RUN_QUEUE_SHARE = 0.02
"""They matter if this case's threads also waited for a CPU for more than this fraction of their working
time."""
FULL_HOST = 0.95
"""Threshold for the host's CPU utilisation, used instead if the waiting time is unknown."""
STEAL_SHARE = 0.02
WAITED, ALL_BUSY = "this case waited for them", "all CPUs of the host were busy"


def device_faults(explanation: LaunchExplanation) -> Iterator[Doubt]:
    """Find faults that devices reported in a window."""
    for fault in explanation.faults:
        yield suspect(
            FAULT,
            f"{fault} (launch {explanation.replicate + 1})",
            "Check cooling, power and the driver's log, and run it again",
        )


def shared_cpu(measured: Measured) -> Iterator[Doubt]:
    """Find other processes that used the CPUs."""
    by_host = grouped((window.host, window) for window in measured.launch.windows)
    for host, windows in by_host.items():
        others_cpus = _others_cpus(windows)
        starved = _starved(windows, is_at_work=measured.served is None)
        if others_cpus is not None and others_cpus > NEIGHBOUR_CPUS and starved:
            yield suspect(
                NEIGHBOURS_CODE,
                f"other processes on {host} kept {others_cpus:.1f} of {windows[0].load.num_cpus} "
                f"CPUs busy during the window, and {WAITED if _is_waiting_known(windows) else ALL_BUSY}",
                f"Run it again on a quiet machine{fewer_threads(measured.launch.setups)}",
            )
        steal = windows[0].load.steal_cpu_s
        if steal is not None and steal > STEAL_SHARE * _span_s(windows[0]) * windows[0].load.num_cpus:
            yield suspect(
                "cpu-steal",
                f"the hypervisor of {host} gave {seconds(steal)} of CPU time to other machines",
                "Run it again, or on a dedicated machine",
            )


def _others_cpus(windows: Sequence[Window]) -> float | None:
    busy = windows[0].load.busy_cpu_s
    if busy is None:
        return None
    others = (busy - sum(window.load.own_cpu_s for window in windows)) / _span_s(windows[0])
    return min(others, windows[0].load.num_cpus)


def _is_waiting_known(windows: Sequence[Window]) -> bool:
    """Return whether the kernel reported how long each rank waited for a CPU."""
    return all(window.load.run_queue_wait_s is not None for window in windows)


def _span_s(window: Window) -> float:
    """Return the time over which CPU time was summed; for older records the window, which is shorter."""
    return window.wall_s if window.load.span_s is None else window.load.span_s


def _starved(windows: Sequence[Window], *, is_at_work: bool) -> bool:
    """Return whether threads waited for CPUs for more than a fixed fraction of their working time.

    Each rank's steps are assumed to use at least one CPU throughout the window: a thread that feeds a GPU is
    busy for only a small part of it, but its waiting is still compared with the window. For requests, the
    working time is assumed to be the CPU time that they use.
    """
    waits = [window.load.run_queue_wait_s for window in windows]
    if None not in waits:
        waited = sum(wait for wait in waits if wait is not None)
        least = [window.wall_s if is_at_work else 0.0 for window in windows]
        launch_cpu_s = [window.load.own_cpu_s for window in windows]
        return waited > RUN_QUEUE_SHARE * (sum(map(max, least, launch_cpu_s)) + waited)
    load = windows[0].load
    return load.busy_cpu_s is not None and _is_full(load.busy_cpu_s / _span_s(windows[0]), load.num_cpus)


def fill_the_cpus(busy_cpus: float, launch_cpus: float, num_cpus: int) -> bool:
    """Check whether other processes shared fully busy CPUs, for records without our own waiting time."""
    return busy_cpus - launch_cpus > NEIGHBOUR_CPUS and _is_full(busy_cpus, num_cpus)


def _is_full(busy_cpus: float, num_cpus: int) -> bool:
    return busy_cpus > FULL_HOST * num_cpus


def shared_device(measured: Measured) -> Iterator[Doubt]:
    """Find other processes that used the devices."""
    windows, setups = measured.launch.windows, measured.launch.setups
    for window, setup in zip(windows, setups, strict=bool(setups)):
        others = window.neighbours.other_processes
        if others:
            yield suspect(
                "gpu-neighbours",
                f"{others} other {'process uses' if others == 1 else 'processes use'} "
                f"{setup.device.name} {setup.device.uuid or ''}".rstrip(),
                "Wait until they have finished, or choose other devices (distributed.devices)",
            )
