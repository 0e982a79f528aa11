"""How much space do a day's readings of eight GPUs take, and how long do `show`, `compare` and `plot` take?

Lets the sampler of `record` write the day with its own journal: every metric of the NVIDIA adapter, at one
reading per second, on a simulated clock that advances as fast as readings are written. Only the numbers are
made up: each gauge varies, one GPU is hot in the last third, energy and bytes grow. Then runs the commands,
each in a separate process; `compare` compares the day with a copy of itself. Prints disk space, CPU seconds
and peak resident memory; asserts nothing. Writing a day takes minutes: it is saved to FILE, or read from FILE
if saved earlier. Usage: python benchmarks/recording_24h.py [SECONDS] [GPUS] [FILE]
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuproof.devices.base import DeviceProcess, Readout
from gpuproof.devices.nvidia.fields import SOURCES
from gpuproof.monitor.host import HostReader
from gpuproof.monitor.kernel_log import KernelLog
from gpuproof.monitor.sampler import Clock, Sampler, SamplingPlan
from gpuproof.records.journal import Journal
from gpuproof.records.metrics import METRICS, names
from gpuproof.records.readings import DeviceIdentity, DeviceReading, DriverEvent, Lane, PhysicalIndex

GPM = ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent")
MEASURED_INSTEAD = {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
"""Metrics reported only if bytes are not counted."""
GIVEN = ({m for source in SOURCES for m in source.metrics if m in METRICS} | set(GPM)) - MEASURED_INSTEAD
STEADY = {
    "mem_reserved_bytes": 629_145_600, "pstate_level": 0, "power_limit_w": 700.0, "fan_percent": 0,
    "pcie_gen": 5, "pcie_width": 16, "nvlink_links_active": 18, "clock_mem_mhz": 2619,
}  # fmt: skip


class Machine:
    """A sampler's devices, listener and clock, advancing one second at a time."""

    exit_code: int | None = None
    bad_marks = 0

    def __init__(self, seconds: int, gpus: int) -> None:
        self.absent: Mapping[str, str] = {}
        self.events_unavailable: Mapping[PhysicalIndex, str] = {}
        self.now_s = 1000.0
        self._end_s = self.now_s + seconds
        self._hot_from_s = self.now_s + seconds * 2 / 3
        self._chance = random.Random(1)
        self.identities = tuple(map(_identity, range(gpus)))

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now_s, wall=lambda: 1.795e9 + self.now_s)

    def read(self, lane: Lane) -> dict[PhysicalIndex, Readout]:
        wanted = names(lane="fast") + (names(lane="slow") if lane == "slow" else ())
        return {PhysicalIndex(g): self._readout(g, wanted) for g in range(len(self.identities))}

    def counters(self) -> dict[PhysicalIndex, Readout]:
        return {
            PhysicalIndex(g): self._readout(g, names(kind="counter")) for g in range(len(self.identities))
        }

    def _readout(self, gpu: int, wanted: tuple[str, ...]) -> Readout:
        hot = gpu == 3 and self.now_s > self._hot_from_s
        values = {name: self._value(name, gpu, hot) for name in wanted if name in GIVEN}
        reading = DeviceReading(values=values, throttle_reasons=("thermal_software",) if hot else ())
        missing = {name: "not supported" for name in wanted if name not in GIVEN}
        return Readout(reading=reading, unavailable=missing)

    def _value(self, name: str, gpu: int, hot: bool) -> float:
        chance, age_s = self._chance, self.now_s - 1000.0
        if name in STEADY:
            return STEADY[name]
        if METRICS[name].kind == "counter":
            return self._total(name, gpu, age_s)
        moving: dict[str, Callable[[], float]] = {
            "mem_used_bytes": lambda: 60 * 2**30 + 2**20 * chance.randint(0, 255),
            "power_w": lambda: round(chance.gauss(520 if hot else 640, 12), 3),
            "power_instant_w": lambda: round(chance.gauss(520 if hot else 640, 30), 3),
            "temp_gpu_c": lambda: 86 if hot else chance.randint(60, 68),
            "temp_mem_c": lambda: chance.randint(70, 80),
            "temp_margin_c": lambda: 1 if hot else chance.randint(19, 27),
            "clock_sm_mhz": lambda: 1410 if hot else 1980 - 15 * chance.randint(0, 3),
            "util_gpu_percent": lambda: chance.randint(88, 100),
            "util_mem_ctrl_percent": lambda: chance.randint(30, 60),
        }
        if name in moving:
            return float(moving[name]())
        return chance.uniform(40.0, 90.0) if name in GPM else 0.0

    def _total(self, name: str, gpu: int, age_s: float) -> float:
        if name == "energy_j":
            return round(640.0 * age_s + 1e6 * gpu + self._chance.uniform(0, 5), 3)
        if name.endswith("_bytes"):
            return float(int(2.1e9 * age_s + 1e9 * gpu + self._chance.uniform(0, 1e8)))
        if name in ("throttle_time_thermal_s", "throttle_time_thermal_software_s") and gpu == 3:
            return max(0.0, self.now_s - self._hot_from_s)
        return 0.3 * age_s if name == "throttle_time_power_cap_s" else 0.0

    def arrivals(self) -> tuple[DeviceIdentity, ...]:
        return ()

    def processes(self) -> dict[PhysicalIndex, tuple[DeviceProcess, ...] | str]:
        user = DeviceProcess(pid=4242, mem_used_bytes=60 * 2**30, kind="compute")
        return {PhysicalIndex(g): (user,) for g in range(len(self.identities))}

    def poll_events(self) -> tuple[DriverEvent, ...]:
        return ()

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def stop_reason(self) -> str | None:
        return "SIGTERM" if self.now_s >= self._end_s else None

    def marks(self, now_s: float) -> list[tuple[float, dict[str, Any]]]:
        phase = "train" if int(now_s) // 600 % 4 else "evaluate"
        return [(now_s, {"phase": phase})] if int(now_s) % 600 == 0 else []

    def ready(self) -> None:
        pass


def _identity(gpu: int) -> DeviceIdentity:
    return DeviceIdentity(
        physical_index=gpu,
        vendor="nvidia",
        vendor_index=gpu,
        framework_index=gpu,
        uuid=f"GPU-{gpu}",
        pci_bus_id=f"0000:{0x10 + gpu:02x}:00.0",
        name="Made-up GPU",
        static={"mem_total_bytes": 80 * 2**30, "clock_sm_max_mhz": 1980.0, "temp_slowdown_c": 87.0},
    )


def write_day(path: Path, *, seconds: int, gpus: int) -> None:
    """Record a day."""
    machine, journal = Machine(seconds, gpus), Journal(path)
    plan = SamplingPlan(interval_s=1.0, slow_interval_s=1.0, dither_seed=1)
    Sampler(
        machine,
        host=HostReader(),
        recorder=journal,
        listener=machine,
        plan=plan,
        clock=machine.clock(),
        kernel_log=KernelLog(Path(os.devnull)),
    ).run()
    journal.close()


def measured(*words: str) -> str:
    """Run a gpuproof command; report its cost."""
    begin_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpuproof", "monitor", *words], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words[0]} failed")
    cpu_s, wall_s = used.ru_utime + used.ru_stime, time.monotonic() - begin_s
    return f"{cpu_s:5.2f} s of CPU time, {wall_s:5.2f} s, peak {used.ru_maxrss / 1024:4.0f} MiB"


def main() -> None:
    """Write, measure, print."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 86_400
    gpus = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    with tempfile.TemporaryDirectory() as folder:
        day = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(folder) / "day.jsonl"
        if not day.exists():
            write_day(day, seconds=seconds, gpus=gpus)
        days = [day, Path(folder) / "copy.jsonl"]
        shutil.copyfile(*days)
        size = day.stat().st_size
        print(
            f"{seconds:,} samples of {gpus} GPUs: {size / 2**20:.0f} MiB, {size / seconds:,.0f} B per sample"
        )
        print(f"show     {measured('show', str(day))}")
        print(f"compare  {measured('compare', *map(str, days))}")
        picture = str(Path(folder) / "day.png")
        print(f"plot     {measured('plot', str(day), '--output', picture)}")


if __name__ == "__main__":
    main()
