"""What does gpuproof add to a step? Budgets: 1.02 × a bare loop for steps of 10 ms, 1.05 × for 0.2 ms.

Each launch is a fresh process that runs all sides (see `step_sides`) interleaved, leaving one core free. Its
value is the median wall-time ratio over blocks. Then a model that sleeps 20 ms per step goes through the
whole `gpuproof run`, which must report 50 steps/s.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from cases import SMALL, small_case
from gpuproof.base.units import seconds
from gpuproof.records.case import Case
from pairing import Block, judge_ratios, launch_ratios, machine_line, palindromes
from timed_commands import gpuproof, python, timed

SLEEP_S = 0.02
CALIBRATION_TRIES = 12
CALIBRATED_WITHIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """A step of a target length: a model whose batch size is calibrated to it."""

    model: str
    step_s: float
    first_batch: int
    budget: float


SIZES = (
    StepSize(model="medium", step_s=0.01, first_batch=512, budget=1.02),
    StepSize(model="dense", step_s=0.0002, first_batch=8, budget=1.05),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Durations and numbers of repeats."""

    launches: int
    blocks: int
    segment_s: float
    sleep_steps: int


FULL = Effort(launches=8, blocks=8, segment_s=0.25, sleep_steps=300)
QUICK = Effort(launches=2, blocks=2, segment_s=0.1, sleep_steps=50)


def main() -> None:
    """Measure both step sizes and the sleeping model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 short launches")
    parser.add_argument(
        "--launch", nargs=4, metavar=("MODEL", "BATCH", "STEP_S", "EFFORT"), help=argparse.SUPPRESS
    )
    parser.add_argument("--calibrate", nargs=3, metavar=("MODEL", "STEP_S", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        model, batch, step_s, effort = options.launch
        case = small_case(model, f"--data.batch_size={batch}")
        print(json.dumps(launch(case, step_s=float(step_s), effort=Effort(**json.loads(effort)))))
    elif options.calibrate:
        model, step_s, batch = options.calibrate
        print(json.dumps(calibrated(model, step_s=float(step_s), batch=int(batch))))
    else:
        measure_all(QUICK if options.quick else FULL)


def measure_all(effort: Effort) -> None:
    """Print all results."""
    print(machine_line())
    if len(os.sched_getaffinity(0)) < 2:
        print("only one CPU: none can be left free, and every result includes the work of other processes")
    for size in SIZES:
        measure_steps(size, effort)
    measure_sleep(effort)


def measure_steps(size: StepSize, effort: Effort) -> None:
    """Print the ratios of the engine and the whole worker to the bare loop."""
    own = python(__file__)
    calibrate = [*own, "--calibrate", size.model, str(size.step_s), str(size.first_batch)]
    batch, step_s = json.loads(timed(calibrate).output)
    print(f"\nstep of {seconds(size.step_s)}: {size.model} at batch {batch}, {seconds(step_s)} bare")
    command = [*own, "--launch", size.model, str(batch), str(step_s), json.dumps(asdict(effort))]
    launches: list[list[Block]] = [json.loads(timed(command).output) for _ in range(effort.launches)]
    noise = launch_ratios(launches, "bare again", base="bare")
    for side, what in (("engine", "engine alone"), ("worker", "whole worker step")):
        values = launch_ratios(launches, side, base="bare")
        label = f"{what} relative to a bare loop, {seconds(size.step_s)}"
        judgement = judge_ratios(label, values, noise_values=noise, budget=size.budget)
        print("\n".join(judgement.lines()))


def launch(case: Case, *, step_s: float, effort: Effort) -> list[Block]:
    """Run all sides in this process; return the seconds per step for each segment, block by block."""
    leave_a_core()
    from step_sides import SIDES, segments_of

    num_steps = max(1, round(effort.segment_s / step_s))
    with TemporaryDirectory() as folder:
        segments = segments_of(case, Path(folder))
        for segment in segments.values():
            segment(num_steps)  # warm-up
        return [
            [(side, segments[side](num_steps) / num_steps) for side in order]
            for order in palindromes(SIDES, num_blocks=effort.blocks)
        ]


def calibrated(model: str, *, step_s: float, batch: int) -> tuple[int, float]:
    """Find the batch size whose bare step takes about `step_s`; return it with its step time."""
    leave_a_core()
    found_s = bare_step_s(model, batch)
    for _ in range(CALIBRATION_TRIES):
        if abs(found_s / step_s - 1) < CALIBRATED_WITHIN:
            break
        wanted = max(1, round(batch * min(4.0, max(0.25, step_s / found_s))))
        if wanted == batch:
            break
        batch, found_s = wanted, bare_step_s(model, wanted)
    return batch, found_s


def bare_step_s(model: str, batch: int) -> float:
    """Return the duration of one bare step in seconds, the fastest of five short segments."""
    from step_sides import segments_of

    with TemporaryDirectory() as folder:
        segment = segments_of(small_case(model, f"--data.batch_size={batch}"), Path(folder))["bare"]
        first_s = segment(10) / 10
        num_steps = max(5, round(0.05 / first_s))
        return min(segment(num_steps) for _ in range(5)) / num_steps


def leave_a_core() -> None:
    """Leave the first CPU free for everything else that runs here."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, usable[1:] or usable)


def measure_sleep(effort: Effort) -> None:
    """Print the steps/s that a whole run reports for a sleeping model, next to the known value."""
    settings = [
        *SMALL,
        "--kind=inference",
        "--model.name=sleep",
        f"--model.options.sleep_s={SLEEP_S}",
        "--data.batch_size=1",
        "--benchmark.measure_by=steps",
        f"--benchmark.measure_steps={effort.sleep_steps}",
    ]
    with TemporaryDirectory() as folder:
        output = timed(gpuproof("run", "quick", *settings, f"--run.save_dir={folder}", "--json")).output
    result = json.loads(output)
    (steps,) = [measure["value"] for measure in result["measures"] if measure["name"] == "steps"]
    (launch,) = result["measures"][0]["launches"]
    print(f"\na model that sleeps {seconds(SLEEP_S)} per step, through the whole gpuproof run")
    print(f"  reported     {launch['value']:.2f} steps/s over {steps} steps")
    print(f"  expected     {1 / SLEEP_S:.2f} steps/s, if sleep were exact")
    print(f"  bare sleeps  {bare_sleeps_per_s(effort.sleep_steps):.2f} steps/s here, now")


def bare_sleeps_per_s(num_steps: int) -> float:
    """Return how many 20 ms sleeps per second this machine completes in a loop that only sleeps."""
    begin_s = perf_counter()
    for _ in range(num_steps):
        sleep(SLEEP_S)
    return num_steps / (perf_counter() - begin_s)


if __name__ == "__main__":
    main()
