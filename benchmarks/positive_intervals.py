"""How should the interval of a time or rate be shown if it reaches 0? Simulated coverage of each way.

Launches of one configuration have values above 0; their Student's t interval may extend below 0, which is
impossible for a time. Three intervals are compared with the true mean: the interval cut off at 0 (used by
gpuproof in result.json, while pages show "not measured well enough" instead), Student's t on logarithms, and
the interval of a log-normal mean (Olsson 2005, https://doi.org/10.1080/10691898.2005.11910638). Only
intervals that reach 0 differ. Prints, for each shape and number of launches: how often the interval reaches
0, how often each of the three then contains the mean, and the median ratio of the ends of the third interval,
which shows how useful it would be to a reader. Asserts nothing. Promise: if launches scatter like steps on a
busy machine (log-normal up to sigma 0.6), intervals that are cut off at 0 contain the mean at least as often
as their nominal 95 %. Usage: python benchmarks/positive_intervals.py [DRAWS]; 20,000 take about five seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from scipy.special import stdtrit

from gpuproof.statistics.estimate import FloatArray

DRAWS = 20_000
LAUNCHES = (2, 3, 5, 8, 15)
LEAST = 50
"""Minimum number of intervals that reach 0 for printing a fraction of them."""
Draw = Callable[[np.random.Generator, tuple[int, int]], FloatArray]
SHAPES: Mapping[str, tuple[Draw, float]] = {
    **{
        f"log-normal {sigma:g}": (
            lambda rng, size, sigma=sigma: rng.lognormal(0.0, sigma, size),  # type: ignore[misc]
            float(np.exp(sigma**2 / 2)),
        )
        for sigma in (0.3, 0.6, 1.0, 1.5)
    },
    "exponential": (lambda rng, size: rng.exponential(1.0, size), 1.0),
    "uniform": (lambda rng, size: rng.uniform(0.01, 1.99, size), 1.0),
    "one in five × 10": (
        lambda rng, size: np.where(rng.random(size) < 0.2, 10.0, 1.0) * rng.lognormal(0.0, 0.05, size),
        2.8 * float(np.exp(0.05**2 / 2)),
    ),
}


def ways(values: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield the lower and upper ends by each method: Student's t, t on logarithms, log-normal mean."""
    num = values.shape[1]
    quantile = float(stdtrit(num - 1, 0.975))
    logs = np.log(values)
    for centre, half in (
        (values.mean(axis=1), quantile * values.std(axis=1, ddof=1) / np.sqrt(num)),
        (logs.mean(axis=1), quantile * logs.std(axis=1, ddof=1) / np.sqrt(num)),
    ):
        yield centre - half, centre + half
    variance = logs.var(axis=1, ddof=1)
    centre = logs.mean(axis=1) + variance / 2
    half = quantile * np.sqrt(variance / num + variance**2 / (2 * (num - 1)))
    yield centre - half, centre + half


def main() -> None:
    """Print a line for each shape and number of launches."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS
    rng = np.random.default_rng(0)
    print(f"{draws:,} draws; of intervals that reach 0: fraction that contains the mean")
    print(f"{'launches':<18} n  reach 0   cut at 0   t on logs   log-normal mean (its ends apart)")
    for name, (draw, mean) in SHAPES.items():
        for num in LAUNCHES:
            (low, high), (low_log, high_log), (low_mean, high_mean) = ways(draw(rng, (draws, num)))
            reaches = low <= 0
            if reaches.sum() < LEAST:
                continue
            log_mean = np.log(mean)
            cut = (mean <= high)[reaches].mean()
            logs = ((low_log <= log_mean) & (log_mean <= high_log))[reaches].mean()
            third = ((low_mean <= log_mean) & (log_mean <= high_mean))[reaches].mean()
            decades = float(np.median((high_mean - low_mean)[reaches])) / float(np.log(10))
            shares = f"{cut:9.1%}   {logs:9.1%}   {third:9.1%} (10^{decades:.1f})"
            print(f"{name:<18}{num:>2}  {reaches.mean():7.1%}  {shares}")


if __name__ == "__main__":
    main()
