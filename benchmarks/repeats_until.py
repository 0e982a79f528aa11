"""How often does an interval contain the truth if launching stops once it is narrow enough?

`run.target_precision` adds launches until the result's interval is within ± the target. Checking after each
launch favours intervals that happen to be narrow. Launches are drawn from a normal distribution, or from a
heavier-tailed one (Student's t with 3 degrees of freedom); the stopping rule is the product's own.

    python benchmarks/repeats_until.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.suites.recipe.plan import is_precise

TRUTH = 100.0
TARGET = 0.03
"""Target precision, as in the quick recipe."""
MOST = 12
"""Maximum number of launches within the quick recipe's time."""
Draw = Callable[[np.random.Generator, int], np.ndarray]
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, count: rng.standard_normal(count),
    "t(3)": lambda rng, count: rng.standard_t(3, count) / np.sqrt(3),
}


def main() -> None:
    """Simulate, and print coverage and launches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="200 runs")
    options = parser.parse_args()
    runs = 200 if options.quick else options.runs
    print(f"{runs} runs each; fraction of intervals that contain the truth, mean number of launches")
    for repeats in (3, 5):
        for shape, draw in SHAPES.items():
            for spread in (0.005, 0.01, 0.02, 0.03, 0.05):
                holds, launches = simulated(draw, repeats=repeats, spread=spread, runs=runs)
                print(
                    f"from {repeats} launches, {shape:6}, spread {spread:5.1%}: {holds:.3f}  {launches:.1f}"
                )


def simulated(draw: Draw, *, repeats: int, spread: float, runs: int) -> tuple[float, float]:
    """Return how often intervals contain the truth, and the number of launches."""
    rng = np.random.default_rng([repeats, int(spread * 1000), runs])
    holding = total = 0
    for _ in range(runs):
        values = list(TRUTH * (1 + spread * draw(rng, MOST)))
        number = next(n for n in range(repeats, MOST + 1) if n == MOST or is_precise(values[:n], TARGET))
        interval = interval_of_rates(values[:number])
        holding += isinstance(interval, Interval) and interval.low <= TRUTH <= interval.high
        total += number
    return holding / runs, total / runs


if __name__ == "__main__":
    main()
