"""How long and how much memory do a day's readings of eight GPUs take to load, summarise and draw?

Writes a synthetic recording of 24 h at one reading a second, then measures each step in one fresh
process. Prints wall and processor seconds and the peak of resident memory; asserts nothing. The numbers
are made up, only their amount is that of a real machine.
Usage: python benchmarks/recording_24h.py [SECONDS] [GPUS]
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuproof.records import readings as r
from gpuproof.records.journal import encode


def header(gpus: int) -> r.Recording:
    """Open the recording of so many devices."""
    devices = tuple(
        r.DeviceIdentity(
            physical_index=g,
            vendor="fake",
            vendor_index=g,
            framework_index=g,
            uuid=f"GPU-{g}",
            pci_bus_id=None,
            name="Synthetic GPU",
            static={"mem_total_bytes": 80 * 2**30, "clock_sm_max_mhz": 1980.0, "temp_slowdown_c": 87.0},
        )
        for g in range(gpus)
    )
    return r.Recording(
        host="synthetic",
        pid=1,
        boot_id=None,
        gpuproof_version="0",
        unix_s=1.795e9,
        monotonic_s=0.0,
        fast_interval_s=1.0,
        slow_interval_s=5.0,
        devices=devices,
        host_facts={},
    )


def lines(seconds: int, gpus: int) -> Iterator[str]:
    """Give the lines of a recording, a mark each ten minutes, one GPU hot in the last third."""
    chance = random.Random(0)
    yield encode(header(gpus))
    for t in range(seconds):
        if t % 600 == 0:
            phase = "train" if t // 600 % 4 else "evaluate"
            yield encode(r.Mark(monotonic_s=float(t), metadata={"phase": phase}))
        yield json.dumps(
            {
                "kind": "sample",
                "v": 1,
                "monotonic_s": t + chance.uniform(0, 0.01),
                "unix_s": 1.795e9 + t,
                "lane": "slow" if t % 5 == 0 else "fast",
                "devices": {str(g): reading(t, g, seconds, chance) for g in range(gpus)},
                "host": {"cpu_percent": chance.uniform(10, 60), "mem_used_bytes": 2e10},
            },
            separators=(",", ":"),
        )


def reading(t: int, gpu: int, seconds: int, chance: random.Random) -> dict[str, object]:
    """Make one device's reading."""
    hot = gpu == 3 and t > seconds * 2 // 3
    values = {
        "util_gpu_percent": chance.randint(88, 100),
        "util_mem_ctrl_percent": chance.randint(30, 60),
        "mem_used_bytes": 60 * 2**30 + chance.randint(0, 2**28),
        "mem_reserved_bytes": 600 * 2**20,
        "power_w": round(chance.gauss(520 if hot else 640, 12), 3),
        "power_instant_w": round(chance.gauss(520 if hot else 640, 30), 3),
        "temp_gpu_c": 86 if hot else chance.randint(60, 68),
        "temp_mem_c": chance.randint(70, 80),
        "clock_sm_mhz": 1410 if hot else 1980,
        "clock_mem_mhz": 2619,
        "energy_j": round(640.0 * t + gpu, 3),
    }
    if t % 5 == 0:
        values |= {"power_limit_w": 700.0, "pcie_gen": 5, "pcie_width": 16, "pcie_replay_count": 0}
    return {"values": values, "throttle_reasons": ["thermal_software"] if hot else []}


MEASURED = """
import json, resource, sys, time
from pathlib import Path
times = {}
def step(name, work):
    start, cpu = time.monotonic(), time.process_time()
    result = work()
    times[name] = (time.monotonic() - start, time.process_time() - cpu)
    return result
def imported():
    import gpuproof.readings.recording, gpuproof.observe.text
    import gpuproof.observe.plots, matplotlib.figure
step("import", imported)
from gpuproof.readings.recording import load_recording
from gpuproof.readings.summary import summarise
from gpuproof.observe.text import render_summary
from gpuproof.observe.plots import plot_recording
path = Path(sys.argv[1])
recording = step("load", lambda: load_recording(path))
text = step("summarise", lambda: render_summary(summarise(recording)))
step("plot", lambda: plot_recording(recording, path.with_suffix(".png")))
print(json.dumps({"times": times, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def main() -> None:
    """Write, measure, print."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 86_400
    gpus = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        start = time.monotonic()
        with path.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines(seconds, gpus))
        size = path.stat().st_size
        print(f"written: {seconds:,} samples of {gpus} GPUs, {size / 2**20:.0f} MiB, ", end="")
        print(f"{size / seconds:,.0f} B a sample, in {time.monotonic() - start:.1f} s")
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(path)], check=True, text=True, capture_output=True
        )
        result = json.loads(done.stdout)
    together = [sum(column) for column in zip(*result["times"].values(), strict=True)]
    times = result["times"] | {"together": together}
    for name, (wall_s, cpu_s) in times.items():
        print(f"{name:<10} {wall_s:6.2f} s, of processor time {cpu_s:6.2f} s")
    print(f"peak memory {result['peak_kib'] / 1024:.0f} MiB")
    own_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"(this writer itself: {own_mib:.0f} MiB)")


if __name__ == "__main__":
    main()
