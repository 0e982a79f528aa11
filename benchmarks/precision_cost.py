"""What does ±1 % cost by target precision or with 50 × 100 steps? Simulated and recorded.

Both sides are studies of fresh launches with ten warm-up steps each. *Fixed*: 50 launches of 100 steps. *By
precision*: five launches whose windows end by `measure_by: precision` at 1 %, then as many more as their
spread requires (`required_launches`). Prints the half-width of fixed studies, the device time by precision
relative to that of fixed studies (promised if fixed studies overshoot ±1 %: a third), in how many studies ±1
% was reached, and how often each interval contained the truth. A third of the launches suffices for ±1 % only
if 50 launches reach ±0.53 % (Student's t of 16 and of 50 launches). Otherwise, no plan can keep the promise,
and the output line says so. Windows have a limit of 200 steps (at least 100 are always measured, however long
a step takes), or the default limit of 60 s (with a minimum of 15 s, unless 325 steps or more rule out a drift
earlier). Recorded steps are those of launches in tests/replay, drawn in blocks. Asserts nothing. Usage:
python benchmarks/precision_cost.py [--quick]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuproof.statistics.estimate import FloatArray, Interval
from gpuproof.statistics.launches import interval_of_launches, required_launches
from gpuproof.worker.engine.stopping import PrecisionLimit

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the shapes are from the tests

from shapes import Shape, autoregressive, log_normal, noisy, quantised, rare

QUICK = "--quick" in sys.argv[1:]
NUM_STUDIES = 4 if QUICK else 400
"""Number of studies for fixed windows and for a limit of 200 steps; a quarter of it for 60 s."""
TARGET, PILOT, MOST = 0.01, 5, 200
FIXED_LAUNCHES, FIXED_STEPS, WARMUP_STEPS = 50, 100, 10
CHUNK = 25
STEPS_S = (0.001, 0.01, 0.1)
OVERSHOOT = 0.0053
"""Half-width of 50 launches if a third of them, 16, reach ±1 %."""
RECORDED = Path(__file__).resolve().parents[1] / "tests/replay/runs"
LAUNCHES = {
    "recorded inference, launch 1": "inference_latency/run/cases/main/0",
    "recorded inference, launch 2": "inference_latency/run/cases/main/1",
    "recorded training, launch 1": "training/run/cases/main/0",
    "recorded training, launch 2": "training/run/cases/main/1",
    "recorded training, launch 3": "training/run/cases/main/2",
}
"""All launches with over a hundred recorded steps, on a CPU that was busy during the first and last."""
BLOCK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The result of a study: its number of steps, and its interval of the mean step relative to the truth."""

    interval: Interval
    num_steps: int

    @property
    def half_width(self) -> float:
        return self.interval.relative_half_width or 0.0

    @property
    def held(self) -> bool:
        return self.interval.low <= 1.0 <= self.interval.high


def recorded(launch: str) -> Shape:
    """Return a recorded launch's steps, drawn in blocks of consecutive steps, with a mean of 1."""
    lines = (RECORDED / launch / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [
        r["durations_s"] for r in map(json.loads, lines) if r.get("phase") == "measure" and "durations_s" in r
    ]
    known = np.concatenate(steps)
    known /= known.mean()

    def draw(rng: np.random.Generator, windows: int, steps: int) -> FloatArray:
        starts = rng.integers(0, len(known) - BLOCK, size=(windows, -(-steps // BLOCK)))
        drawn = known[starts[..., None] + np.arange(BLOCK)].reshape(windows, -1)
        return np.asarray(drawn[:, :steps])

    return Shape(draw=draw, mean=float(draw(np.random.default_rng(0), 200, 5000).mean()))


def cases() -> Iterator[tuple[str, Shape, float]]:
    """Yield shapes of steps, and how much launches differ."""
    yield "normal, 0.2 %; launches 0.2%", noisy(0.002), 0.002
    for process in (0.002, 0.01, 0.03):
        yield f"normal, 1 %; launches {process:.1%}", noisy(0.01), process
    yield "AR(1) 0.9, 2 %; launches 0.5%", noisy(0.02, autoregressive(0.9)), 0.005
    yield "1 % of steps × 3; launches 0.5%", rare(0.01, 3), 0.005
    yield "log-normal 0.5, AR(1) 0.6; launches 0.5%", log_normal(0.5, 0.03, 0.6), 0.005
    yield "counted in 1 %; launches 0.5%", quantised(0.003, unit=0.01), 0.005
    for name, launch in LAUNCHES.items():
        yield f"{name}; launches 0.5%", recorded(launch), 0.005


def fixed(rng: np.random.Generator, shape: Shape, process: float) -> Study:
    """Run 50 launches of 100 steps."""
    means = shape.draw(rng, FIXED_LAUNCHES, FIXED_STEPS).mean(axis=1) / shape.mean
    found = interval_of_launches(means * np.exp(process * rng.standard_normal(FIXED_LAUNCHES)))
    assert isinstance(found, Interval)
    return Study(interval=found, num_steps=FIXED_LAUNCHES * (FIXED_STEPS + WARMUP_STEPS))


def by_precision(
    rng: np.random.Generator, shape: Shape, process: float, *, step_s: float, limit_s: float
) -> Study:
    """Run launches by target precision: five, then as many as their spread requires."""
    means: list[float] = []
    num_steps, wanted = 0, PILOT
    while len(means) < wanted:
        mean, steps = window(rng, shape, step_s=step_s, limit_s=limit_s)
        means.append(mean * float(np.exp(process * rng.standard_normal())))
        num_steps += steps + WARMUP_STEPS
        if len(means) == PILOT:
            needed = required_launches(means, relative_half_width=TARGET)
            wanted = min(MOST, max(PILOT, needed if isinstance(needed, int) else MOST))
    found = interval_of_launches(means)
    assert isinstance(found, Interval)
    return Study(interval=found, num_steps=num_steps)


def window(rng: np.random.Generator, shape: Shape, *, step_s: float, limit_s: float) -> tuple[float, int]:
    """Run one window; return its mean step, relative to a truth of 1, and its steps."""
    plan = PrecisionLimit(TARGET, min_steps=100, limit_s=limit_s, agree=int, step_s=step_s)
    capacity = max(CHUNK, int(limit_s / step_s)) + 2 * CHUNK
    times = shape.draw(rng, 1, capacity)[0] / shape.mean
    done, elapsed_s = 0, 0.0
    while steps := plan.next_steps(done=done, elapsed_s=elapsed_s, capacity=CHUNK):
        chunk = times[done : done + steps]
        if not len(chunk):
            break
        plan.take(chunk.tolist())
        done += len(chunk)
        elapsed_s += step_s * float(chunk.sum())
    return float(times[:done].mean()), done


def main() -> None:
    """Simulate and print."""
    print(
        f"{NUM_STUDIES} studies each; device time by precision is relative to that of 50 × (10 + 100) steps"
    )
    for name, shape, process in cases():
        rng = np.random.default_rng(3)
        plain = [fixed(rng, shape, process) for _ in range(NUM_STUDIES)]
        half = float(np.median([study.half_width for study in plain]))
        possible = "" if half <= OVERSHOOT else ": a third is not enough"
        print(f"{name}: fixed ±{half:.2%}, held {np.mean([study.held for study in plain]):.1%}{possible}")
        print(f"  limit of 200 steps: {told(shape, process, 0.01, 2.0, NUM_STUDIES)}", flush=True)
        for step_s in STEPS_S:
            number = NUM_STUDIES // (40 if step_s == 0.001 else 4)
            of_time = told(shape, process, step_s, 60.0, max(4, number))
            print(f"  limit of 60 s, steps of {step_s * 1e3:g} ms: {of_time}", flush=True)


def told(shape: Shape, process: float, step_s: float, limit_s: float, number: int) -> str:
    """Summarise this many studies by target precision."""
    rng = np.random.default_rng(4)
    found = [by_precision(rng, shape, process, step_s=step_s, limit_s=limit_s) for _ in range(number)]
    cost = np.array([study.num_steps for study in found]) / (FIXED_LAUNCHES * (FIXED_STEPS + WARMUP_STEPS))
    reached = np.mean([study.half_width <= TARGET for study in found])
    held = np.mean([study.held for study in found])
    return (
        f"device time × {np.median(cost):.2f} (95 % of studies × {np.quantile(cost, 0.95):.2f}), "
        f"±1 % reached in {reached:.0%}, truth contained in {held:.1%} of {number}"
    )


if __name__ == "__main__":
    main()
