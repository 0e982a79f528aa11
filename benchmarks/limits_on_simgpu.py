"""Is the limit that a run names the one that its simulated device was given?

Devices are drawn at random so that one thing limits them: products, passes over memory, a power cap, the link
between two devices, or the host that launches kernels. Each is measured by the real command, and the limit
that stands first on its page is held against the one that was declared. *Unknown* is no wrong answer, and is
counted apart. It needs the package `gpuproof-simgpu`; nothing here is a figure of any hardware.

    python benchmarks/limits_on_simgpu.py [--draws 20]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pairing import machine_line

WINDOW = (
    *("--distributed.device=simgpu", "--run.repeats=1", "--run.run_id=run", "--run.save_dir=."),
    *("--run.experiment_name=limits", "--benchmark.measure_by=time", "--benchmark.warmup_steps=3"),
    *("--distributed.threads_per_rank=1", "--data.name=synthetic", "--training.precision=fp32"),
)
SHORT = "--benchmark.measure_seconds=4"
CEILINGS = "--profiling.ceilings=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A device, and the words of a run that one thing limits on it."""

    device: Mapping[str, Any]
    words: tuple[str, ...]


def compute(rng: random.Random) -> Trial:
    """Products of matrices on a device that multiplies slowly."""
    edge = rng.choice((1024, 1536, 2048))
    flops = 2 * edge**3 / rng.uniform(0.004, 0.01)
    device = {"flops_per_s": flops, "memory_bytes_per_s": 1e13, "launch_latency_s": 1e-5}
    return Trial(device=device, words=(*products(edge), SHORT, CEILINGS))


def memory(rng: random.Random) -> Trial:
    """Passes over a buffer on a device whose memory is slow."""
    buffer_bytes = rng.choice((2, 4, 8)) * 2**20
    device = {"flops_per_s": 1e15, "memory_bytes_per_s": 3 * buffer_bytes / rng.uniform(0.02, 0.04)}
    options = f"--model.options={{buffer_bytes: {buffer_bytes}}}"
    return Trial(device=device, words=("--kind=inference", "--model.name=memory", options, SHORT, CEILINGS))


def power_cap(rng: random.Random) -> Trial:
    """Products on a device whose power cap turns its clock down."""
    cap = {
        "period_s": rng.uniform(0.3, 1.0),
        "depth_percent": rng.uniform(8.0, 25.0),
        "settles_after_s": 1.0,
    }
    device = {"flops_per_s": 5e11, "memory_bytes_per_s": 1e13, "power_cap": cap}
    return Trial(device=device, words=(*products(1024), "--benchmark.measure_seconds=8"))


def link(rng: random.Random) -> Trial:
    """Training on two devices whose link is slow against their products."""
    device = {"devices": 2, "flops_per_s": 1e12, "peer_link_bytes_per_s": rng.uniform(1e7, 4e7)}
    words = ("--kind=training", "--model.name=medium", "--data.batch_size=32", "--distributed.nproc=2")
    return Trial(device=device, words=(*words, SHORT, "--profiling.breakdown=true"))


def host(rng: random.Random) -> Trial:
    """Small kernels on a device that is done with each before the host launches the next."""
    device = {"flops_per_s": rng.uniform(1e13, 1e15), "memory_bytes_per_s": 1e13, "launch_latency_s": 1e-6}
    words = ("--kind=training", "--model.name=medium", f"--data.batch_size={rng.choice((8, 16, 32))}")
    return Trial(device=device, words=(*words, SHORT, "--training.cuda_graphs=false"))


def products(edge: int) -> tuple[str, ...]:
    """Return the words of a run of plain products."""
    return ("--kind=inference", "--model.name=gemm", f"--model.options={{m: {edge}, n: {edge}, k: {edge}}}")


TRUTHS = {
    "compute": compute,
    "memory bandwidth": memory,
    "power cap": power_cap,
    "communication": link,
    "host": host,
}


def named_limit(trial: Trial) -> str:
    """Measure, and return the limit that the page names first."""
    declared = json.dumps({"devices": 1, "zero_products": True, **trial.device})
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
            return f"no result: {done.stderr.strip().splitlines()[-1:]}"
        measures = json.loads(result.read_text())["measures"]
    return next((str(m["text"]) for m in measures if m["name"] == "limited by"), "nothing")


def report(truth: str, named: Sequence[str]) -> None:
    """Print how often the truth was named, and what was named in its place."""
    right = named.count(truth)
    others = ", ".join(f"{name} {times}" for name, times in Counter(named).items() if name != truth)
    print(f"{truth:<18}{right:>4} of {len(named)}" + (f"   ({others})" if others else ""), flush=True)


def main() -> None:
    """Draw the devices of each truth and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20, help="devices of each kind")
    options = parser.parse_args()
    print(machine_line())
    rng = random.Random(41)
    for truth, draw in TRUTHS.items():
        report(truth, [named_limit(draw(rng)) for _ in range(options.draws)])


if __name__ == "__main__":
    main()
