"""How late does the load generator issue requests? Budget: p99 of 1 ms at 20,000 requests/s, two cores.

Runs `gpuproof run serving` against a no-op server at several rates, ascending and descending alternately,
with a few launches each. Each launch yields one p99 of issue time minus schedule, over all requests of its
window. Then it reports the highest rate up to which every rate is within the budget. Arrivals are Poisson,
and no sampler runs; the generator and the batcher that counts its requests are two processes. Before each
launch, a bare loop sleeps a thousand times for 1 ms: its wake-up lateness is what this machine imposes on any
generator.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from gpuproof.base.units import rate, seconds
from gpuproof.statistics.estimate import Unavailable
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.statistics.percentiles import percentile
from pairing import Finding, interval_text, machine_line
from timed_commands import gpuproof, timed

ASKED_PER_S = 20_000
BUDGET_S = 1e-3
RATES_PER_S = (5_000, 10_000, ASKED_PER_S, 40_000, 80_000)
QUICK_RATES_PER_S = (5_000, ASKED_PER_S, 80_000)
NUM_SLEEPS, SLEEP_S = 1_000, 1e-3
WORDS = (
    "--serving.target=noop",
    "--serving.min_requests=1000",
    "--monitoring.enabled=false",
    "--run.capture_env=false",
    "--run.repeats=1",
)


def main() -> None:
    """Run all rates and compare them with the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 rates, 2 launches of 1 s each")
    options = parser.parse_args()
    num_launches, window_s = (2, 1.0) if options.quick else (5, 5.0)
    rates_per_s = QUICK_RATES_PER_S if options.quick else RATES_PER_S
    print(machine_line())
    late_s: dict[int, list[float]] = {rate_per_s: [] for rate_per_s in rates_per_s}
    bare_s: list[float] = []
    with TemporaryDirectory() as folder:
        for launch in range(num_launches):
            for rate_per_s in rates_per_s if launch % 2 == 0 else reversed(rates_per_s):
                bare_s.append(bare_lateness_s())
                window = one_window(
                    Path(folder), rate_per_s, window_s=window_s, run_id=f"{launch}-{rate_per_s}"
                )
                late_s[rate_per_s].append(window["generator_lateness_s"]["value"])
    print("\n".join(lines_of(late_s, floor_s=median(bare_s))))


def bare_lateness_s() -> float:
    """Return the p99 wake-up lateness of a loop that only sleeps."""
    late_s = []
    for _ in range(NUM_SLEEPS):
        due_s = monotonic() + SLEEP_S
        sleep(SLEEP_S)
        late_s.append(monotonic() - due_s)
    value_s = percentile(late_s, 99).value
    assert value_s is not None  # a thousand values are enough for a p99
    return value_s


def one_window(folder: Path, rate_per_s: int, *, window_s: float, run_id: str) -> dict[str, Any]:
    """Run one launch; return its window from run_summary.json."""
    words = [*WORDS, f"--serving.rate_per_s={rate_per_s}", f"--serving.window_s={window_s}"]
    timed(gpuproof("run", "serving", *words, f"--run.run_id={run_id}"), cwd=folder)
    summary = json.loads((folder / "results" / "serving" / run_id / "run_summary.json").read_text())
    window: dict[str, Any] = summary["windows"][0]
    return window


def finding_of(late_s: Sequence[float], *, floor_s: float) -> Finding:
    """Compare the interval of a rate's launches with the budget, unless the machine alone exceeds it."""
    estimate = interval_of_launches(late_s)
    if not isinstance(estimate, Unavailable) and estimate.high <= BUDGET_S:
        return "within budget"
    if isinstance(estimate, Unavailable) or floor_s > BUDGET_S:
        return "not measurable here"
    return "over budget" if estimate.low > BUDGET_S else "not shown"


def sustained_per_s(late_s: Mapping[int, Sequence[float]], *, floor_s: float) -> int | None:
    """Return the highest rate up to which all rates are within the budget; None if the lowest is not.

    >>> sustained_per_s({10: [1e-4] * 2, 20: [2e-4] * 2, 40: [1.0] * 2, 80: [1e-4] * 2}, floor_s=1e-4)
    20
    """
    kept = None
    for rate_per_s in sorted(late_s):
        if finding_of(late_s[rate_per_s], floor_s=floor_s) != "within budget":
            break
        kept = rate_per_s
    return kept


def lines_of(late_s: Mapping[int, Sequence[float]], *, floor_s: float) -> list[str]:
    """Print the verdict at the requested rate, then every rate, then the sustained rate."""
    budget = f"p99 issue lateness at most {seconds(BUDGET_S)}"
    sustained = sustained_per_s(late_s, floor_s=floor_s)
    finding = finding_of(late_s[ASKED_PER_S], floor_s=floor_s)
    return [
        f"{budget} at {rate(ASKED_PER_S, 'requests')}: {finding.upper()}",
        f"  noise floor  a bare loop wakes {seconds(floor_s)} late at p99, median over the launches",
        *(
            f"  {rate(rate_per_s, 'requests'):>17}  p99 per launch {', '.join(map(seconds, values))}; "
            f"{_interval(values)}: {finding_of(values, floor_s=floor_s).upper()}"
            for rate_per_s, values in late_s.items()
        ),
        "sustained: none of the rates"
        if sustained is None
        else (
            f"sustained: {rate(sustained, 'requests')}, the highest up to which all rates are "
            "within the budget"
        ),
    ]


def _interval(values_s: Sequence[float]) -> str:
    estimate = interval_of_launches(values_s)
    if isinstance(estimate, Unavailable):
        return interval_text(estimate)
    low, high = seconds(estimate.low), seconds(estimate.high)
    return f"{seconds(estimate.centre)}, {estimate.confidence:.0%} interval {low} to {high}"


if __name__ == "__main__":
    main()
