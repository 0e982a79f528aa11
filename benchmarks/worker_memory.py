"""Does a worker's memory stay flat over a million short steps?

A process runs the engine with the worker's step, clock and recorder, and checks its own resident memory at
ten points of the window. Anything retained by mistake, such as every step's time, grows by tens of bytes per
step. The interval of the slope is computed from three fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory

from cases import small_case
from gpuproof.base.units import memory
from gpuproof.statistics.launches import interval_of_launches
from pairing import interval_text, machine_line
from timed_commands import python, timed

NUM_POINTS = 10
BYTES_OF_A_FLOAT = 32
"""A Python float (24 bytes) and the list's pointer to it (8): the cost of one stored step time."""
Point = tuple[int, int]
"""Steps completed and resident bytes."""


def main() -> None:
    """Print the points and the slope."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="300,000 steps instead of 1,000,000")
    parser.add_argument("--launch", type=int, metavar="STEPS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        print(json.dumps(resident_over_steps(options.launch)))
        return
    print(machine_line())
    num_steps = 300_000 if options.quick else 1_000_000
    command = python(__file__, "--launch", str(num_steps))
    launches: list[list[Point]] = [json.loads(timed(command).output) for _ in range(3)]
    for points in launches:
        print(f"resident  {'  '.join(memory(size_bytes) for _, size_bytes in points)}")
    growth = [memory(points[-1][1] - points[1][1]) for points in launches]
    print(f"growth from the 2nd point to the last: {', '.join(growth)}, over {num_steps:,} steps")
    slopes = interval_of_launches([slope_of(points[1:]) for points in launches])
    print(f"slope  {interval_text(slopes, ' bytes a step')}")
    print(f"       storing every step's time would cost {BYTES_OF_A_FLOAT} bytes per step")


def slope_of(points: Sequence[Point]) -> float:
    """Return the least-squares slope in bytes per step."""
    steps, sizes = zip(*points, strict=True)
    return linear_regression(steps, sizes).slope


def resident_over_steps(num_steps: int) -> list[Point]:
    """Run a window of short steps in this process; return its resident memory at `NUM_POINTS` points."""
    from gpuproof.worker.engine.loop import FixedSteps, run_window
    from gpuproof.worker.rank.identity import identity_from
    from gpuproof.worker.rank.recorder import Recorder, StepTimesWriter
    from gpuproof.worker.rank.watchdog import Heartbeat
    from gpuproof.worker.step.preparation import prepare

    case = small_case("dense", "--kind=inference", "--data.batch_size=1", "--model.options.width=8")
    points: list[Point] = []
    with TemporaryDirectory() as folder:
        prepared = prepare(case, identity=identity_from(os.environ), run_folder=Path(folder))
        recorder = Recorder(Path(folder, "rank-0.jsonl"), rank=0, heartbeat=Heartbeat())
        writer = StepTimesWriter(recorder, "measure", keep_times=True)
        done = 0

        def sink(times: Sequence[float]) -> None:
            nonlocal done
            writer(times)
            done += len(times)
            if done * NUM_POINTS >= num_steps * (len(points) + 1):
                points.append((done, resident_bytes()))

        run_window(prepared.step, prepared.clock, FixedSteps(num_steps), sink)
        recorder.close()
    return points


def resident_bytes() -> int:
    """Return this process's resident memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
