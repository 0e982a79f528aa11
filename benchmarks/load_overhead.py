"""How long does a load suite test take outside its own steps? Budget: 0.25 s, for any model.

The whole suite runs repeatedly, as `gpuproof load` runs it: forked tests, a sampler during each, a fresh
model for each. A test is timed from when the campaign picks it up until its files are read back, minus its
warm-up and window according to its own records; the kernels' inputs are checked in the first step of the
warm-up. The first test of a run starts the server: it is printed separately.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from case_overhead import BUDGET_S, Stopwatch
from gpuproof.base.units import seconds
from gpuproof.campaign.campaign import create_run, run_campaign
from gpuproof.config.load import load_config
from gpuproof.launchers.local.site import LocalLauncher
from gpuproof.records.collected import CaseRecords
from gpuproof.statistics.estimate import Unavailable
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.load.plan import TESTS
from pairing import interval_text, machine_line

WORDS = (
    "--distributed.device=cpu",
    "--distributed.threads_per_rank=1",
    "--load.num_epochs=1",
    "--load.num_batches=10",
    "--benchmark.warmup_steps=2",
    "--run.capture_env=false",  # captured only for the first test
)


class Suite(Stopwatch):
    """Listens to one run of the suite, and collects the seconds outside its steps, by test."""

    def __init__(self) -> None:
        self.outside_by_test: dict[str, float] = {}

    def case_ends(self, records: CaseRecords) -> None:
        super().case_ends(records)
        self.outside_by_test[records.case.case_id] = self.outside_s


def main() -> None:
    """Run the suite and compare the result with the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 runs of the suite instead of 12")
    options = parser.parse_args()
    print(machine_line())
    with TemporaryDirectory() as folder:
        suites = [one_suite(Path(folder), number) for number in range(2 if options.quick else 12)]
    first, *others = (test.name for test in TESTS)
    starts_s = [suite.outside_by_test[first] for suite in suites]
    print(f"the server's start, including the first test: {seconds(median(starts_s))}")
    judge(suites, others)
    for name in others:
        print(f"  {name:26} {seconds(median(s.outside_by_test[name] for s in suites)):>8}")


def one_suite(folder: Path, number: int) -> Suite:
    """Run the twelve tests with their own server: a run is the unit of replication."""
    words = [*WORDS, f"--run.save_dir='{folder}'", f"--run.run_id=run-{number}"]
    loaded = load_config("load", words)
    run = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
    suite = Suite()
    with closing(LocalLauncher()) as launcher:
        run_campaign(run, launcher=launcher, progress=suite)
    return suite


def judge(suites: Sequence[Suite], names: Sequence[str]) -> None:
    """Print the mean over tests with its interval over runs, compared with the budget."""
    means_s = [sum(suite.outside_by_test[name] for name in names) / len(names) for suite in suites]
    interval = interval_of_launches(means_s)
    print(f"a test outside its own steps, mean of {len(names)}: {interval_text(interval, ' s')}")
    if isinstance(interval, Unavailable):
        verdict = "NOT MEASURABLE HERE"
    elif interval.high <= BUDGET_S:
        verdict = "WITHIN BUDGET"
    else:
        verdict = "OVER BUDGET" if interval.low > BUDGET_S else "NOT SHOWN"
    print(f"  budget       {BUDGET_S:g} s: {verdict}")


if __name__ == "__main__":
    main()
