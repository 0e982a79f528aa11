"""How much time and memory does it take to evaluate the load suite on a fleet, from its records?

Writes synthetic records of H hosts for the twelve tests, with readings of their GPUs ten times a second. Then
evaluates the run in one fresh process, and again with everything imported and in the page cache. Prints wall
and CPU seconds, also per launch, and peak resident memory; asserts nothing. The values in the records are
made up; only their amount matches real hosts. Budget: 2 s for 32 hosts, 35 s and 1 GB for 500. Usage: python
benchmarks/conclude_fleet.py [HOSTS] [GPUS] [READINGS]
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuproof.records.journal import encode
from gpuproof.store.run import RunDirectory
from gpuproof.suites.load.plan import TESTS

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the synthetic suite is from the tests

import load_by_hand as suite
import recordings as r

MEASURED = """
import json, resource, sys, time
from pathlib import Path
from gpuproof.campaign.conclude import conclude
from gpuproof.store.run import RunDirectory
run = RunDirectory.open(Path(sys.argv[1]))
times = []
for _ in range(2):
    start, cpu = time.monotonic(), time.process_time()
    conclude(run)
    times.append((time.monotonic() - start, time.process_time() - cpu))
print(json.dumps({"times": times, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def reading(tick: int, chance: random.Random) -> dict[str, float]:
    """The readings of one busy GPU."""
    return {
        "util_gpu_percent": float(chance.randint(88, 100)),
        "util_mem_ctrl_percent": float(chance.randint(30, 60)),
        "mem_used_bytes": 20.0 * r.GIB,
        "power_w": round(chance.gauss(640, 12), 3),
        "temp_gpu_c": float(chance.randint(60, 68)),
        "temp_mem_c": float(chance.randint(70, 80)),
        "clock_sm_mhz": 1980.0,
        "clock_mem_mhz": 2619.0,
        "energy_j": 64.0 * tick,
        **({"power_limit_w": 700.0, "pcie_gen": 5.0, "pcie_width": 16.0} if tick % 20 == 0 else {}),
    }


def recording(gpus: int, readings: int) -> str:
    """Return the lines of one launch's recording, which starts a second before its window."""
    chance = random.Random(0)
    lines: list[object] = [r.header([r.identity(gpu) for gpu in range(gpus)], fast_interval_s=0.1)]
    lines += [
        r.sample(
            tick / 10 + 0.05,
            {gpu: reading(tick, chance) for gpu in range(gpus)},
            reasons=dict.fromkeys(range(gpus), ()),
            host={"cpu_percent": chance.uniform(10, 60), "mem_used_bytes": 2e10},
        )
        for tick in range(readings)
    ]
    lines.append(r.end(readings / 10, samples=readings))
    return "".join(encode(line) + "\n" for line in lines)


def written(folder: Path, *, hosts: int, gpus: int, readings: int) -> RunDirectory:
    """Write a run with this many hosts."""
    tests = [suite.done(test) for test in TESTS]
    run = suite.on_fleet(folder, {f"node{host}": tests for host in range(hosts)})
    lines = recording(gpus, readings)
    for path in run.root.glob("cases/*/*/monitor-*.jsonl"):
        path.write_text(lines, encoding="utf-8")
    return run


def main() -> None:
    """Write, measure, print."""
    hosts, gpus, readings = (int(word) for word in [*sys.argv[1:4], *("32", "8", "60")[len(sys.argv) - 1 :]])
    launches = hosts * len(TESTS)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        run = written(Path(folder), hosts=hosts, gpus=gpus, readings=readings)
        print(
            f"{hosts} hosts × {len(TESTS)} tests, each with {readings} readings of {gpus} GPUs",
            end="",
        )
        print(f": written in {time.monotonic() - start:.1f} s")
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(run.root)], check=True, text=True, capture_output=True
        )
    result = json.loads(done.stdout)
    for name, (wall_s, cpu_s) in zip(("first time", "again"), result["times"], strict=True):
        print(f"{name:<10} {wall_s:6.2f} s, CPU time {cpu_s:6.2f} s: ", end="")
        print(f"{cpu_s / launches * 1e3:.1f} ms per launch")
    print(f"peak memory {result['peak_kib'] / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
