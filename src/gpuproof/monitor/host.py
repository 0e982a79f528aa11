"""Reads the host's activity and identity: CPU, memory, swap, disk, network.

Input: none. Output: values by the names below; `disk_*` and `net_*` are running totals since boot, so their
differences are exact at any sampling rate. psutil is used if available, else `/proc`. CPU usage needs two
readings: the first is taken when the reader is created, so that usage is never the 0 that a first call
returns.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuproof.processes.granted import cpus_allowed

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MIN_CPU_SPAN_S = 0.05
"""The kernel counts CPU time in ticks of 10 ms; usage over fewer than five ticks is meaningless."""

_CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr")
_VIRTUAL_LINKS = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "bond", "team")
_SECTOR_BYTES = 512  # unit of /proc/diskstats, regardless of the disk's sector size


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """CPU seconds since boot, with one entry per logical CPU."""

    busy_s: tuple[float, ...]
    iowait_s: tuple[float, ...]
    total_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTotals:
    """One reading of the operating system's counters; `values` are stored in samples unchanged."""

    cpu: CpuTimes
    values: dict[str, float]


TotalsSource = Callable[[], HostTotals]


class HostReader:
    """Reads the host; CPU usage covers the time since the last reading that returned it."""

    def __init__(self, source: TotalsSource | None = None) -> None:
        self.source_name = "given"
        if source is None:
            self.source_name, source = default_source()
        self._source = source
        self._before = source().cpu

    def read(self) -> dict[str, float]:
        """Read the host's current values. CPU usage is absent if too little time has passed."""
        totals = self._source()
        shares = cpu_shares(self._before, totals.cpu)
        if shares:
            self._before = totals.cpu
        return {**shares, "load_1min": os.getloadavg()[0], **totals.values}

    def facts(self) -> dict[str, Any]:
        """Return the identity of this machine, without user names or command lines."""
        return {
            "os": platform.platform(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "cpu_model": cpu_model(),
            "cpus_logical": os.cpu_count(),
            "cpus_allowed": cpus_allowed(),
            "host_source": self.source_name,
        }


def cpu_shares(before: CpuTimes, after: CpuTimes) -> dict[str, float]:
    """Return busy and disk-wait CPU time (all CPUs), and the busiest CPU's busy time, in percent.

    >>> before = CpuTimes(busy_s=(10.0, 10.0), iowait_s=(0.0, 0.0), total_s=(20.0, 20.0))
    >>> after = CpuTimes(busy_s=(11.0, 10.0), iowait_s=(0.0, 0.5), total_s=(21.0, 21.0))
    >>> cpu_shares(before, after)
    {'cpu_percent': 50.0, 'cpu_iowait_percent': 25.0, 'cpu_max_core_percent': 100.0}
    """
    spans = [late - early for early, late in zip(before.total_s, after.total_s, strict=False)]
    if not spans or min(spans) < MIN_CPU_SPAN_S:
        return {}
    busy = [late - early for early, late in zip(before.busy_s, after.busy_s, strict=False)]
    waited = sum(after.iowait_s) - sum(before.iowait_s)
    return {
        "cpu_percent": _percent(sum(busy), sum(spans)),
        "cpu_iowait_percent": _percent(waited, sum(spans)),
        "cpu_max_core_percent": max(_percent(part, span) for part, span in zip(busy, spans, strict=True)),
    }


def _percent(part: float, whole: float) -> float:
    # the kernel's own counters sometimes go backwards slightly
    return min(100.0, max(0.0, 100.0 * part / whole))


def default_source() -> tuple[str, TotalsSource]:
    """Choose psutil if it can be imported, else `/proc`; return its name and the source."""
    try:
        import psutil
    except ImportError:
        return "/proc", read_proc
    return f"psutil {psutil.__version__}", read_psutil


def read_psutil() -> HostTotals:
    """Read the totals through psutil."""
    import psutil

    per_cpu = psutil.cpu_times(percpu=True)
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    disks = [
        io for name, io in psutil.disk_io_counters(perdisk=True, nowrap=False).items() if is_whole_disk(name)
    ]
    links = [
        io for name, io in psutil.net_io_counters(pernic=True, nowrap=False).items() if is_real_link(name)
    ]
    return HostTotals(
        cpu=_cpu_times([[float(getattr(cpu, name, 0.0)) for name in _CPU_TIMES] for cpu in per_cpu]),
        values={
            "mem_used_bytes": float(memory.total - memory.available),
            "mem_available_bytes": float(memory.available),
            "swap_used_bytes": float(swap.used),
            "disk_read_bytes": float(sum(io.read_bytes for io in disks)),
            "disk_write_bytes": float(sum(io.write_bytes for io in disks)),
            "net_rx_bytes": float(sum(io.bytes_recv for io in links)),
            "net_tx_bytes": float(sum(io.bytes_sent for io in links)),
        },
    )


def read_proc(root: Path = Path("/proc")) -> HostTotals:
    """Read the totals from a Linux `/proc`."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    cpus = [
        [float(field) / ticks_per_s for field in line.split()[1:9]]
        for line in (root / "stat").read_text().splitlines()
        if line.startswith("cpu") and line[3].isdigit()
    ]
    return HostTotals(cpu=_cpu_times(cpus), values={**_memory(root), **_disks(root), **_links(root)})


def _cpu_times(cpus: list[list[float]]) -> CpuTimes:
    """Sum each CPU's `_CPU_TIMES`; guest time is already included in user."""
    totals = [sum(cpu) for cpu in cpus]
    return CpuTimes(
        busy_s=tuple(total - cpu[3] - cpu[4] for total, cpu in zip(totals, cpus, strict=True)),
        iowait_s=tuple(cpu[4] for cpu in cpus),
        total_s=tuple(totals),
    )


def _memory(root: Path) -> dict[str, float]:
    pairs = (line.split(":", 1) for line in (root / "meminfo").read_text().splitlines())
    size = {name: float(rest.split()[0]) * 1024 for name, rest in pairs}
    return {
        "mem_used_bytes": size["MemTotal"] - size["MemAvailable"],
        "mem_available_bytes": size["MemAvailable"],
        "swap_used_bytes": size["SwapTotal"] - size["SwapFree"],
    }


def _disks(root: Path) -> dict[str, float]:
    rows = [line.split() for line in (root / "diskstats").read_text().splitlines()]
    whole = [row for row in rows if is_whole_disk(row[2])]
    return {
        "disk_read_bytes": sum(float(row[5]) for row in whole) * _SECTOR_BYTES,
        "disk_write_bytes": sum(float(row[9]) for row in whole) * _SECTOR_BYTES,
    }


def is_real_link(name: str) -> bool:
    """Return whether a link counts bytes that no other link counts, unlike a bond or a VLAN on top of cards.

    >>> [name for name in ("eth0", "bond0", "eth0.100", "lo", "ib0") if is_real_link(name)]
    ['eth0', 'ib0']
    """
    is_vlan = "." in name and not name.startswith("ib")  # ib0 does not count its partitions (ib0.8001)
    return not name.startswith(_VIRTUAL_LINKS) and not is_vlan


def _links(root: Path) -> dict[str, float]:
    rows = [line.split(":", 1) for line in (root / "net" / "dev").read_text().splitlines()[2:]]
    counted = [rest.split() for name, rest in rows if is_real_link(name.strip())]
    return {
        "net_rx_bytes": sum(float(fields[0]) for fields in counted),
        "net_tx_bytes": sum(float(fields[8]) for fields in counted),
    }


@functools.cache
def is_whole_disk(name: str) -> bool:
    """Distinguish disks from partitions and composite devices, so that each byte is counted once."""
    if name.startswith(_VIRTUAL_DISKS):
        return False
    blocks = Path("/sys/block")
    return not blocks.is_dir() or (blocks / name).exists()


def boot_id() -> str | None:
    """Return the kernel's boot ID, or None if there is none (not Linux, or /proc is not accessible)."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


def cpu_model() -> str | None:
    """Return the CPU's name as reported by the kernel, or None."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name"))
    return next(names, None)
