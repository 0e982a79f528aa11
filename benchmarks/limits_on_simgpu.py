"""Does a run report the limit that its simulated device was given?

Devices are drawn at random so that one thing limits them: GEMMs, memory passes, a power cap, the link between
two devices, or the host that launches kernels. Each is measured with the real command, and the first limit on
its page is compared with the declared one. *Unknown* is not a wrong answer, and is counted separately. If the
host is the limit, the maximum rate shown on the page is compared with the rate of the device without waiting,
where each kernel takes as long as declared. The number of kernels per step is measured on a device whose
kernels take so long that the host is never the limit. Requires the package `gpuproof-simgpu`; no result here
applies to any hardware.

    python benchmarks/limits_on_simgpu.py [--draws 20] [--beside 3]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pairing import machine_line

WINDOW = (
    *("--distributed.device=simgpu", "--run.repeats=1", "--run.run_id=run", "--run.save_dir=."),
    *("--run.experiment_name=limits", "--benchmark.measure_by=time", "--benchmark.warmup_steps=3"),
    *("--distributed.threads_per_rank=1", "--data.name=synthetic", "--training.precision=fp32"),
)
SHORT = "--benchmark.measure_seconds=1.5"
CEILINGS = "--profiling.ceilings=true"
SMALL_BYTES = 2**28
"""Size of the device memory; the buffers used to measure ceilings are correspondingly small."""
SLOW_KERNEL_S = 1e-3
AT_MOST = re.compile(r"at most about ([\d,]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A device, and the arguments of a run that has only one limit."""

    device: Mapping[str, Any]
    words: tuple[str, ...]
    batch_size: int = 1


def compute(rng: random.Random) -> Trial:
    """Matrix products on a device that multiplies slowly."""
    edge = rng.choice((1024, 1536, 2048))
    flops = 2 * edge**3 / rng.uniform(0.004, 0.01)
    device = {"flops_per_s": flops, "memory_bytes_per_s": 1e13, "launch_latency_s": 1e-5}
    return Trial(device=device, words=(*products(edge), SHORT, CEILINGS))


def memory(rng: random.Random) -> Trial:
    """Passes over a buffer on a device whose memory is slow."""
    buffer_bytes = rng.choice((4, 8)) * 2**20
    device = {"flops_per_s": 1e15, "memory_bytes_per_s": 3 * buffer_bytes / rng.uniform(0.02, 0.03)}
    options = f"--model.options={{buffer_bytes: {buffer_bytes}}}"
    return Trial(device=device, words=("--kind=inference", "--model.name=memory", options, SHORT, CEILINGS))


def power_cap(rng: random.Random) -> Trial:
    """Matrix products on a device whose power cap lowers its clock."""
    cap = {
        "period_s": rng.uniform(0.3, 1.0),
        "depth_percent": rng.uniform(8.0, 25.0),
        "settles_after_s": 1.0,
    }
    device = {"flops_per_s": 5e11, "memory_bytes_per_s": 1e13, "power_cap": cap}
    return Trial(
        device=device,
        words=(*products(1024), "--benchmark.measure_seconds=2", "--benchmark.power_cap_limit_s=2"),
    )


def link(rng: random.Random) -> Trial:
    """Training on two devices whose link is slow compared with their GEMMs."""
    device = {"devices": 2, "flops_per_s": 1e12, "peer_link_bytes_per_s": rng.uniform(1e7, 4e7)}
    words = ("--kind=training", "--model.name=medium", "--data.batch_size=32", "--distributed.nproc=2")
    return Trial(device=device, words=(*words, SHORT, "--profiling.breakdown=true"))


def host(rng: random.Random) -> Trial:
    """Small kernels on a device that finishes each before the host launches the next."""
    return small_kernels(rng.uniform(1e-6, 1e-5), batch_size=rng.choice((8, 16, 32)))


def small_kernels(kernel_s: float, *, batch_size: int) -> Trial:
    """Training on a device whose kernels each take this long and whose work takes no time."""
    device = {"flops_per_s": 1e18, "memory_bytes_per_s": 1e18, "launch_latency_s": kernel_s}
    words = ("--kind=training", "--model.name=medium", f"--data.batch_size={batch_size}", SHORT)
    return Trial(device=device, words=(*words, "--training.cuda_graphs=false"), batch_size=batch_size)


def products(edge: int) -> tuple[str, ...]:
    """Return the arguments of a plain GEMM run."""
    return ("--kind=inference", "--model.name=gemm", f"--model.options={{m: {edge}, n: {edge}, k: {edge}}}")


TRUTHS = {
    "compute": compute,
    "memory bandwidth": memory,
    "power cap": power_cap,
    "communication": link,
    "host": host,
}


def measures_of(trial: Trial) -> Sequence[Mapping[str, Any]]:
    """Measure, and return the contents of the result."""
    device = {"devices": 1, "zero_products": True, "memory_bytes": SMALL_BYTES, **trial.device}
    declared = json.dumps(device)
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "gpuproof", "run", "quick", *WINDOW, *trial.words],
            check=False,
            cwd=folder,
            env={**os.environ, "GPUPROOF_SIMGPU": declared},
            capture_output=True,
            text=True,
        )
        result = Path(folder) / "limits" / "run" / "result.json"
        if not result.is_file():
            raise SystemExit(f"no result: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return list(json.loads(result.read_text())["measures"])


def measure_named(name: str, measures: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a measure of the run."""
    return next(measure for measure in measures if measure["name"] == name)


def bound_over_truth(trial: Trial, limited_by: Mapping[str, Any], kernels_a_step: float) -> float | None:
    """Return the maximum rate shown, relative to what the device does without waiting."""
    at_most = AT_MOST.search(limited_by["detail"])
    alone_per_s = trial.batch_size / (kernels_a_step * trial.device["launch_latency_s"])
    return None if at_most is None else float(at_most[1].replace(",", "")) / alone_per_s


def kernels_of_a_step() -> float:
    """Return how many kernels per step the host launches, measured with slow kernels."""
    trial = small_kernels(SLOW_KERNEL_S, batch_size=8)
    rate = float(measure_named("throughput", measures_of(trial))["value"])
    return trial.batch_size / rate / SLOW_KERNEL_S


def report_bounds(bounds: Sequence[float]) -> None:
    """Print how the printed upper bounds compare with the device."""
    if bounds:
        held = sum(bound >= 1 for bound in bounds)
        print(
            f"maximum rate, if the host is the limit: no less than the device alone in {held} of "
            f"{len(bounds)}; ratio {min(bounds):.2f}–{max(bounds):.2f}, median "
            f"{median(bounds):.2f}"
        )


def report(truth: str, named: Sequence[str]) -> None:
    """Print how often the true limit was reported, and what was reported instead."""
    right = named.count(truth)
    others = ", ".join(f"{name} {times}" for name, times in Counter(named).items() if name != truth)
    print(f"{truth:<18}{right:>4} of {len(named)}" + (f"   ({others})" if others else ""), flush=True)


def main() -> None:
    """Draw the devices for each true limit and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20, help="devices of each kind")
    parser.add_argument("--beside", type=int, default=3, help="concurrent runs, which mostly wait")
    options = parser.parse_args()
    print(machine_line())
    began, rng, kernels, bounds = time.monotonic(), random.Random(41), kernels_of_a_step(), list[float]()
    for truth, draw in TRUTHS.items():
        trials = [draw(rng) for _ in range(options.draws)]
        with ThreadPoolExecutor(options.beside) as pool:
            limits = [measure_named("limited by", measures) for measures in pool.map(measures_of, trials)]
        report(truth, [str(limit["text"]) for limit in limits])
        if truth == "host":
            ratios = [bound_over_truth(*pair, kernels) for pair in zip(trials, limits, strict=True)]
            bounds += [ratio for ratio in ratios if ratio is not None]
    report_bounds(bounds)
    print(f"{kernels:.1f} kernels per step; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
