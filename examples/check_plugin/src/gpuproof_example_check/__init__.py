"""Check whether the steps of a run are steady; a pure function from records to an outcome.

Steady means that the spread of rank 0's step times (interquartile range over median) is at most 10 % in every
launch. The limit is specific to this package, and the outcome says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import quantiles

from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Expectation, Outcome

LIMIT = 0.10
FEWEST_STEPS = 20
EXPECTED = Expectation(
    expected=f"{LIMIT:.0%} or less",
    source="gpuproof-example-check 1.0",
    next_step="Look at what gpuproof report says about other processes and clocks",
)


class Steady:
    """The object referenced by the entry point."""

    name = "steady"
    summary = "the step times of rank 0 spread by at most 10 % in every launch"

    def judge(self, launches: Sequence[CaseRecords]) -> Outcome:
        """Judge the launch whose steps vary most."""
        finished = [launch for launch in launches if launch.status == "done"]
        if not finished:
            return Outcome(
                status="ERROR", reason="no launch finished", next_step="Finish the run with --resume"
            )
        times = [launch.step_times_s(0) for launch in finished]
        if min(map(len, times)) < FEWEST_STEPS:
            return Outcome(
                status="SKIP",
                reason=f"a launch recorded {min(map(len, times))} step times, and {FEWEST_STEPS} are needed",
            )
        worst = max(map(spread, times))
        measured = f"{worst:.1%} in the launch that varies most"
        outcome = EXPECTED.judge(
            worst <= LIMIT, measured, measured_value=worst, expected_value=LIMIT, unit="1"
        )
        names = (f"{launch.case.case_id}/{launch.case.replicate}" for launch in finished)
        return replace(outcome, records=tuple(names))


def spread(times_s: Sequence[float]) -> float:
    """Return the interquartile range over the median.

    >>> spread([1.0, 2.0, 3.0])
    1.0
    """
    first, middle, third = quantiles(times_s, n=4)
    return (third - first) / middle


STEADY = Steady()
