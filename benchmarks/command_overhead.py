"""How much slower is `gpuproof run` than a bare script with the same steps? Budget: 0.8 s.

Runs fresh processes, interleaved, with the bare script twice for the noise floor. Also shows where the time
goes, part by part, according to the runs' records, and the CPU time of the command itself, without its
worker, at two window lengths. These two CPU times differ only if the command busy-waits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from cases import SMALL
from gpuproof.base.units import seconds
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Phase, RankResult, Start
from gpuproof.store.run import RunDirectory
from pairing import Block, differences, judge_differences, machine_line, palindromes
from timed_commands import HERE, TimedCommand, gpuproof, python, timed

BUDGET_S = 0.8
BATCH, WARMUP, STEPS = 32, 20, 500
RUN = (
    *SMALL,
    "--model.name=medium",
    f"--data.batch_size={BATCH}",
    f"--benchmark.warmup_steps={WARMUP}",
    "--run.save_dir=.",
    "--run.experiment_name=runs",
)
BY_STEPS = ("--benchmark.measure_by=steps", f"--benchmark.measure_steps={STEPS}")
BARE = python(
    *(str(HERE / "bare_run.py"), "--batch", str(BATCH), "--warmup", str(WARMUP), "--steps", str(STEPS))
)
OWN_CPU = """
import atexit, resource, sys
def report():
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime)
atexit.register(report)
from gpuproof.cli.main import main
main()
"""
Parts = dict[str, float]
OF_LAUNCH = ("import torch and worker", "prepare", "count FLOPs", "finish the worker's records")


def main() -> None:
    """Time both sides, interleaved, and report where the time went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 blocks instead of 10")
    options = parser.parse_args()
    print(machine_line())
    with TemporaryDirectory() as folder:
        compare(2 if options.quick else 10, Path(folder))
        print_own_cpu(Path(folder), windows_s=(1, 3) if options.quick else (1, 21))


def compare(num_blocks: int, folder: Path) -> None:
    """Run the blocks; print the difference in wall time and the parts of both sides."""
    parts: dict[str, list[Parts]] = {"bare": [], "gpuproof": [], "bare again": []}
    blocks: list[Block] = []
    for order in palindromes(list(parts), num_blocks=num_blocks):
        block = []
        for side in order:
            wall_s, side_parts = run_gpuproof(folder) if side == "gpuproof" else run_bare(folder)
            block.append((side, wall_s))
            parts[side].append(side_parts)
        blocks.append(block)
    added_s = differences(blocks, "gpuproof", base="bare")
    judgement = judge_differences(
        "gpuproof run minus a bare script",
        added_s,
        noise_values_s=differences(blocks, "bare again", base="bare"),
        budget_s=BUDGET_S,
    )
    print("\n".join(judgement.lines()))
    print(f"  median       {median(added_s):.4f} s over {len(added_s)} blocks")
    for side in ("bare", "gpuproof"):
        print_parts(side, parts[side])
    print_launch(parts["gpuproof"], bare=[*parts["bare"], *parts["bare again"]])


def run_bare(folder: Path) -> tuple[float, Parts]:
    """Run the bare script; return its wall time in seconds, in total and by part."""
    command = timed(BARE, cwd=folder)
    marks_s: Parts = json.loads(command.output.splitlines()[-1])["marks_s"]
    return command.wall_s, parts_between(command, marks_s)


def run_gpuproof(folder: Path) -> tuple[float, Parts]:
    """Run the command; return its wall time in seconds, in total and by part, from its own records."""
    run_id = f"run-{len(list(folder.glob('runs/*')))}"
    command = timed(gpuproof("run", "quick", *RUN, *BY_STEPS, f"--run.run_id={run_id}"), cwd=folder)
    (records,) = RunDirectory.open(folder / "runs" / run_id).cases()
    return command.wall_s, parts_between(command, marks_of(records))


def marks_of(records: CaseRecords) -> Parts:
    """Return when each part of a run ended, on the monotonic clock."""
    ended = {(phase.name, phase.event): phase.monotonic_s for phase in records.of(Phase)}
    return {
        "until the worker starts": records.of(Start)[0].monotonic_s,
        "import torch and worker": ended["prepare", "begin"],
        "prepare": ended["prepare", "end"],
        "count FLOPs": ended["count", "end"],
        "steps": ended["measure", "end"],
        "finish the worker's records": records.of(RankResult)[0].monotonic_s,
    }


def parts_between(command: TimedCommand, marks_s: Parts) -> Parts:
    """Convert timestamps to durations, from the start of the process to its exit."""
    moments = [command.begin_s, *marks_s.values(), command.end_s]
    names = [*marks_s, "until the process ends"]
    return {name: end - begin for name, begin, end in zip(names, moments[:-1], moments[1:], strict=True)}


def print_parts(side: str, parts: list[Parts]) -> None:
    """Print the median length of each part."""
    print(f"where the time of {side} goes (medians of {len(parts)})")
    for name in parts[0]:
        print(f"  {name:28} {seconds(median(part[name] for part in parts)):>8}")


def print_launch(launches: list[Parts], *, bare: list[Parts]) -> None:
    """Print a launch's time outside its steps, from process start, relative to the script's."""
    own = median(sum(part[name] for name in OF_LAUNCH) for part in launches)
    scripts = median(part["import torch"] + part["prepare"] for part in bare)
    print(
        f"a launch excluding its steps: {seconds(own)}, {own / scripts:.2f} times the bare script (goal 1.1)"
    )


def print_own_cpu(folder: Path, windows_s: tuple[int, int]) -> None:
    """Print the command's CPU time excluding its worker, for a short and a long window."""
    short, long = (own_cpu_s(folder, window_s) for window_s in windows_s)
    waited_s = windows_s[1] - windows_s[0]
    print("CPU time of the command itself, without its worker")
    print(f"  window of {windows_s[0]} s  {seconds(short)}")
    print(f"  window of {windows_s[1]} s  {seconds(long)}")
    print(f"  per second of waiting  {(long - short) / waited_s * 1e3:.1f} ms")


def own_cpu_s(folder: Path, window_s: int) -> float:
    """Return the user and system time of one run's controlling process, in seconds."""
    words = ["--benchmark.measure_by=time", f"--benchmark.measure_seconds={window_s}"]
    words += [f"--run.run_id=own-cpu-{window_s}", "--benchmark.log_step_times=false"]
    output = timed(python("-c", OWN_CPU, "run", "quick", *RUN, *words), cwd=folder).output
    return float(output.splitlines()[-1])


if __name__ == "__main__":
    main()
