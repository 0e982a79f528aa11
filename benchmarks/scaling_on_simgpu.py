"""Does a scaling study match its timeline? Checked by hand on 1 to 8 simulated devices.

The devices have declared speeds: GEMMs run at 0.5 GFLOP/s, a kernel launch takes 100 µs, an all-reduce 20 µs
plus 2 (n - 1) / n of its bytes at 200 MB/s per direction. `large` sends two buckets: the first one during the
rest of the backward pass, the second one after it. For a step on n devices, this gives the following values
by hand. Exposed time (and the difference between runs with and without gradient averaging) is the second
all-reduce, minus the time in which the first bucket is copied back meanwhile. Overlapped time is the rest of
both all-reduces. All-reduces without other work take the sum of both. The step is longer than that of one
device by the exposed time and the copies of gradients into buckets and back. Requires the package
`gpuproof-simgpu`, and about 25 minutes on two busy CPUs.

    python benchmarks/scaling_on_simgpu.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

LINK_BYTES_PER_S, LINK_LATENCY_S, LAUNCH_S, MEMORY_BYTES_PER_S = 2e8, 2e-5, 1e-4, 1e10
DECLARED = {
    "devices": 8,
    "flops_per_s": 5e8,
    "peer_link_bytes_per_s": LINK_BYTES_PER_S,
    "zero_products": True,
}
NUM_TENSORS, NUM_IN_FIRST, NUM_PARAMETERS = 12, 6, 2_021_379
ROUNDING_MS = 1e-5
"""Rounding error in milliseconds: times are recorded to the nanosecond."""
WORDS = (
    *("--model", "large", "--device", "simgpu", "--max-devices", "8", "--gpu-mode", "multi"),
    *("--batch-sizes", "16", "--scaling", "weak", "--runs", "3", "--benchmark.own_compute=false"),
    *("--benchmark.measure_steps=15", "--benchmark.warmup_steps=3"),
)


def all_reduce_ms(size_bytes: float, num_devices: int) -> float:
    """Return the time of an all-reduce on the timeline."""
    sent = 2 * (num_devices - 1) / num_devices * size_bytes
    return 1e3 * (LINK_LATENCY_S + sent / LINK_BYTES_PER_S)


def copies_ms(num_tensors: int, size_bytes: float) -> float:
    """Return the time to copy gradients into a bucket or back: launches, and bytes read and written."""
    return 1e3 * (num_tensors * LAUNCH_S + 2 * size_bytes / MEMORY_BYTES_PER_S)


def by_hand(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a point's communication measures, in milliseconds per step."""
    first, second = (all_reduce_ms(size, record["num_devices"]) for size in record["bucket_bytes"])
    meanwhile = copies_ms(NUM_IN_FIRST, record["bucket_bytes"][0])
    return {
        "sync_difference_ms": second - meanwhile,
        "exposed_ms": second - meanwhile,
        "overlapped_ms": first + meanwhile,
        "standalone_ms": first + second,
    }


def lines(
    single: Mapping[str, Any],
    several: Sequence[Mapping[str, Any]],
    speed_ups: Mapping[int, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield a line per result: computed by hand, measured, and whether the interval contains it.

    A step on one device is the sum of its phases, which are queued before they run, so that no host time is
    included. Mean steps include the first step of the window, in which ranks wait for each other's hosts; the
    median step is shown with the minimum and maximum over launches.
    """
    yield f"{'devices':>7}  {'':22} {'by hand':>10} {'measured':>10}  interval"
    alone_ms = sum(single["phases_ms"][name] for name in ("data", "forward", "backward", "optimizer"))
    for record in several:
        number, expected = record["num_devices"], by_hand(record)
        for name, value in expected.items():
            found = record["communication"][name]
            yield _line(number, name, value, found["mean"], found["confidence_interval_95"])
        longer_ms = 2 * copies_ms(NUM_TENSORS, 4 * NUM_PARAMETERS) + expected["exposed_ms"]
        step_ms = alone_ms + longer_ms
        yield _line(number, "phase of communication", longer_ms, record["phases_ms"]["communication"], None)
        yield _line(number, "mean_step_ms", step_ms, *_steps(record))
        medians = [run["median_step_ms"] for run in record["detailed_runs"]]
        yield _line(number, "median_step_ms", step_ms, fmean(medians), medians)
        found = speed_ups[number]
        interval = [found["interval"]["low"], found["interval"]["high"]]
        yield _line(number, "speed-up", number * alone_ms / step_ms, found["value"], interval)


def _steps(record: Mapping[str, Any]) -> tuple[float, list[float]]:
    """Return the mean step of the launches in milliseconds, and its interval, derived from the rate."""
    samples = record["samples_per_device"] * record["num_devices"]
    return 1e3 * samples / record["mean_samples_per_sec"], [
        1e3 * samples / rate for rate in record["confidence_interval_95"]
    ]


def speed_ups_of(result: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the study's speed-ups by devices, with intervals that cover both sides' uncertainty."""
    measures = [x for x in result["measures"] if x["name"].startswith("weak speed-up")]
    return {measure["labels"]["num_devices"]: measure for measure in measures}


def _line(number: int, name: str, hand: float, measured: float, interval: Sequence[float] | None) -> str:
    told = "no interval"
    if interval is not None:
        low, high = min(interval), max(interval)
        is_held = low - ROUNDING_MS <= hand <= high + ROUNDING_MS
        told = f"{low:.3f} to {high:.3f}: {'holds it' if is_held else 'does not hold it'}"
    return f"{number:7}  {name:22} {hand:10.3f} {measured:10.3f}  {told}"


def main() -> int:
    """Run the study, or load an existing study, and print its results next to those computed by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="the folder of a study that was run with these arguments")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = asked.run or Path(folder)
        if asked.run is None:
            environment = {**os.environ, "GPUPROOF_SIMGPU": json.dumps(DECLARED)}
            words = [sys.executable, "-m", "gpuproof", "scale", *WORDS, "--output-dir", str(root)]
            subprocess.run(words, env=environment, check=True)
        single, several = (
            json.loads((root / f"benchmark_large_{side}_gpu.json").read_text())
            for side in ("single", "multi")
        )
        result = json.loads(next(root.glob("**/result.json")).read_text())
    sys.stdout.write("\n".join(lines(single[0], several, speed_ups_of(result))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
