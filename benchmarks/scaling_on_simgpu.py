"""Does a scaling study find what a timeline says? 1, 2, 4 and 8 simulated devices, against figures by hand.

The devices are declared: products take their FLOPs at 0.5 GFLOP/s, a kernel's launch 100 µs, an all-reduce
20 µs and 2 (n - 1) / n of its bytes at 200 MB/s each way. `large` sends two buckets: the first one is carried
while the rest of the backward pass is computed, the second one after it. So by hand of a step on n devices:
exposed (and the difference with and without the average of gradients) is the second all-reduce, less the time
in which the first bucket is copied back meanwhile; overlapped is the rest of both; all-reduces by themselves
are both; and the step is longer than one device's by what is exposed and by the copies of gradients into
buckets and back. It needs the package `gpuproof-simgpu`, and some 25 minutes on two processors that are busy.

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
"""Times are recorded to the nanosecond."""
WORDS = (
    *("--model", "large", "--device", "simgpu", "--max-devices", "8", "--gpu-mode", "multi"),
    *("--batch-sizes", "16", "--scaling", "weak", "--runs", "3", "--benchmark.own_compute=false"),
    *("--benchmark.measure_steps=15", "--benchmark.warmup_steps=3"),
)


def all_reduce_ms(size_bytes: float, num_devices: int) -> float:
    """Return what the timeline takes for an all-reduce."""
    sent = 2 * (num_devices - 1) / num_devices * size_bytes
    return 1e3 * (LINK_LATENCY_S + sent / LINK_BYTES_PER_S)


def copies_ms(num_tensors: int, size_bytes: float) -> float:
    """Return what copies of gradients into a bucket, or back, take: launches, and bytes read and written."""
    return 1e3 * (num_tensors * LAUNCH_S + 2 * size_bytes / MEMORY_BYTES_PER_S)


def by_hand(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures of communication of a point, in milliseconds a step."""
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
    """Yield a line for each figure: by hand, measured, and whether its interval holds the one by hand.

    A step of one device is its phases, which are queued before they run, so that no host is in them. Mean
    steps hold the first one of the window, in which ranks wait for each other's hosts; beside the median step
    stand the least and the greatest of the launches.
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
    """Return the mean step of the launches in milliseconds, and its interval, from that of the rate."""
    samples = record["samples_per_device"] * record["num_devices"]
    return 1e3 * samples / record["mean_samples_per_sec"], [
        1e3 * samples / rate for rate in record["confidence_interval_95"]
    ]


def speed_ups_of(result: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the study's own speed-ups, with the intervals that allow for both sides, by devices."""
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
    """Run the study, or take one that was run, and print what it found beside what is so by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="the folder of a study that was run by these words")
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
