"""Does the sampler slow the work beside it? The ratio of step times with and without it, with an interval.

    python benchmarks/monitor_slowdown.py [--pairs 10] [--seconds 3] [--interval 0.1] [--gpus 8]

The work is numpy on one processor, to which it is bound; the sampler may use the others. Blocks of work with
and without a sampler follow one another in pairs, the order changing from pair to pair, so that drift of the
machine cancels. As many pairs without a sampler in either block tell the noise floor: where the upper bound
of those is above 1.01 too, the question cannot be answered on this machine now, and that is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scipy import stats

from gpuproof.own_process import own_command

LIMIT = 1.01
WORK = """
import os, statistics, sys, time
import numpy as np
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
a = np.random.default_rng(0).standard_normal((192, 192))
def step():
    begin = time.perf_counter()
    a @ a @ a
    return time.perf_counter() - begin
for _ in range(200):
    step()
end, times = time.perf_counter() + float(sys.argv[1]), []
while time.perf_counter() < end:
    times.append(step())
print(statistics.fmean(times))
"""


def main() -> None:
    """Measure both kinds of pairs and print the ratios."""
    options = _options()
    cpus = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cpus} CPUs, load {os.getloadavg()[0]:.2f}, {options.pairs} pairs of")
    print(f"{options.seconds:g} s; {options.gpus} fake devices every {options.interval:g} s")
    if cpus < 2:
        sys.exit("needs a processor that is left free")
    noise = _interval([_ratio(place, options, sampled=False) for place in range(options.pairs)])
    monitored = _interval([_ratio(place, options, sampled=True) for place in range(options.pairs)])
    _print("without a sampler in either", noise)
    _print("with a sampler", monitored)
    if noise[2] > LIMIT:
        print(f"not measurable here: the noise alone reaches {noise[2]:.4f}")
    else:
        print(f"95 % upper bound {monitored[2]:.4f}, wanted at most {LIMIT}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the sampler costs the work beside it.")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--interval", type=float, default=0.1)
    parser.add_argument("--gpus", type=int, default=8)
    return parser.parse_args()


def _ratio(place: int, options: argparse.Namespace, *, sampled: bool) -> float:
    """Mean step time of the second kind of block over that of the first."""
    order = (True, False) if place % 2 else (False, True)
    step_s = {}
    for second_kind in order:
        with _sampler(options) if sampled and second_kind else contextlib.nullcontext():
            step_s[second_kind] = _mean_step_s(options.seconds)
    return step_s[True] / step_s[False]


def _mean_step_s(seconds: float) -> float:
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(seconds)],
        env={**os.environ, **threads},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


@contextlib.contextmanager
def _sampler(options: argparse.Namespace) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        command = [*own_command("gpuproof.worker.sample"), f"--out={Path(folder) / 'r.jsonl'}"]
        process = subprocess.Popen(
            [*command, f"--interval={options.interval}"],
            env={**os.environ, "GPUPROOF_FAKE_DEVICES": str(options.gpus)},
        )
        try:
            yield
        finally:
            process.terminate()
            if process.wait() != 0:
                sys.exit(f"the sampler failed with {process.returncode}")


def _interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the ratios and its 95 % interval by Student's t on their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    centre = statistics.fmean(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def _print(label: str, interval: tuple[float, float, float]) -> None:
    print(f"  {label:28} {interval[0]:.4f} ({interval[1]:.4f} to {interval[2]:.4f})")


if __name__ == "__main__":
    main()
