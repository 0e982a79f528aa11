"""How long does a sweep case take outside its steps, with fork and exec? Budget: 0.25 s (fork).

A case is timed from when the campaign picks it up until its files are read back, with its sampler running as
in any run, minus its warm-up and window according to its own records. Forked cases run twice in each block,
for the noise floor. The server's start, including the first case that it forks, is printed separately.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from cases import SMALL
from gpuproof.base.units import seconds
from gpuproof.campaign.campaign import create_run, run_campaign
from gpuproof.config.load import load_config
from gpuproof.launchers.base import HostError
from gpuproof.launchers.local.site import LocalLauncher
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Phase, RankResult, Start
from gpuproof.statistics.launches import interval_of_launches
from pairing import Block, differences, interval_text, judge_differences, machine_line, palindromes, side_mean

BUDGET_S = 0.25
SIDES = {"fork": "fork", "exec": "exec", "fork again": "fork"}
WORDS = (
    *SMALL,
    "--model.name=medium",
    "--data.batch_size=32",
    "--benchmark.warmup_steps=5",
    "--benchmark.measure_by=steps",
    "--benchmark.measure_steps=100",
    "--run.capture_env=false",  # a sweep captures it only for its first case
)


class Stopwatch:
    """Listens to a campaign and records when its case starts and ends."""

    begin_s: float
    end_s: float
    records: CaseRecords

    def says(self, line: str) -> None:
        """Handle an event."""

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        self.begin_s = monotonic()

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        return

    def case_ends(self, records: CaseRecords) -> None:
        self.end_s = monotonic()
        self.records = records

    def host_failed(self, error: HostError) -> None:
        raise error

    @property
    def outside_s(self) -> float:
        """Seconds that the case spent outside its warm-up and window."""
        return self.end_s - self.begin_s - sum(parts_of(self.records)["steps"])


def parts_of(records: CaseRecords) -> dict[str, tuple[float, ...]]:
    """Return the times around a case's steps, from start to end, and the durations of its steps."""
    at = {(phase.name, phase.event): phase.monotonic_s for phase in records.of(Phase)}
    return {
        "began": (records.of(Start)[0].monotonic_s,),
        "prepared": (at["prepare", "end"],),
        "ended": (records.of(RankResult)[0].monotonic_s,),
        "steps": (
            at["warmup", "end"] - at["warmup", "begin"],
            at["measure", "end"] - at["measure", "begin"],
        ),
    }


def main() -> None:
    """Run the blocks and compare the result with the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 blocks instead of 12")
    options = parser.parse_args()
    print(machine_line())
    with TemporaryDirectory() as folder, closing(LocalLauncher()) as launcher:
        first = one_case(Path(folder), launcher, "fork")
        print(f"the server's start, with its first case: {seconds(first.outside_s)}")
        compare(Path(folder), launcher, num_blocks=2 if options.quick else 12)


def compare(folder: Path, launcher: LocalLauncher, *, num_blocks: int) -> None:
    blocks: list[Block] = []
    watches: dict[str, list[Stopwatch]] = {side: [] for side in SIDES}
    for order in palindromes(list(SIDES), num_blocks=num_blocks):
        block = []
        for side in order:
            watch = one_case(folder, launcher, SIDES[side])
            watches[side].append(watch)
            block.append((side, watch.outside_s))
        blocks.append(block)
    judgement = judge_differences(
        "a forked case outside its own steps",
        [side_mean(block, "fork") for block in blocks],
        noise_values_s=differences(blocks, "fork again", base="fork"),
        budget_s=BUDGET_S,
    )
    print("\n".join(judgement.lines()))
    by_exec = interval_of_launches([side_mean(block, "exec") for block in blocks])
    print(f"  by exec      {interval_text(by_exec, ' s')}")
    for side in ("fork", "exec"):
        print_parts(side, watches[side])


def one_case(folder: Path, launcher: LocalLauncher, start: str) -> Stopwatch:
    """Run one case to completion."""
    run_id = f"run-{len(list(folder.glob('runs/*')))}"
    words = [*WORDS, f"--run.start={start}", f"--run.save_dir='{folder}'", "--run.experiment_name=runs"]
    loaded = load_config("quick", [*words, f"--run.run_id={run_id}"])
    run = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
    watch = Stopwatch()
    run_campaign(run, launcher=launcher, progress=watch)
    return watch


def print_parts(side: str, watches: Sequence[Stopwatch]) -> None:
    """Print the median length of each part."""
    lengths: dict[str, list[float]] = {"until it begins": [], "prepare": [], "from its end on": []}
    for watch in watches:
        parts = parts_of(watch.records)
        lengths["until it begins"].append(parts["began"][0] - watch.begin_s)
        lengths["prepare"].append(parts["prepared"][0] - parts["began"][0])
        lengths["from its end on"].append(watch.end_s - parts["ended"][0])
    print(f"where a case's time goes with {side} (medians of {len(watches)})")
    for name, values_s in lengths.items():
        print(f"  {name:18} {seconds(median(values_s)):>8}")


if __name__ == "__main__":
    main()
