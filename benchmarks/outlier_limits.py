"""Which modified Z-score makes a host an outlier? Computes the table in `statistics/outliers.py`.

Treats a fleet's hosts as independent draws from one distribution. Computes the limit c that the largest
|modified Z| of n of them exceeds with a given chance. By symmetry that chance is 2·n times the chance that
the last host is the farthest one, above the median, and beyond c. If it is, it counts in the ranks as if it
were infinitely far: the median m and MAD of all n follow from the other n − 1, and it is the farthest and
beyond c exactly when it exceeds m + max(c·MAD/0.6745, D), where D is the distance of the farthest other host.
So, exactly,

    P(c) = 2·n·E[ 1 − F(m + max(c·MAD/0.6745, D)) ]

with the mean taken over draws of the other n − 1. Nothing in the tail is simulated, so the rare limits for
many tests cost no more than the limit for one. F is the normal distribution, and Student's t with 4 degrees
of freedom, whose tails are heavier; the larger of the two probabilities is used.

For 3 and 4 hosts the spread is assumed known: c is in standard deviations from the median of the others, and
P(c) = 2·n·E[1 − F(m + c)] over draws of the others is an upper bound (two hosts may both be beyond c).

Prints the table as it appears in the code, how far the two tables differ, and how far off interpolated values
between its columns and rows are. Takes about five minutes, or a quarter of a minute with --quick, with
rougher results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr, stdtr

from gpuproof.statistics import outliers as table
from gpuproof.statistics.dispersion import NORMAL_MAD
from gpuproof.statistics.estimate import FloatArray

DRAWS = 3_000_000
"""Number of fleets drawn for 5 hosts; with more hosts, fewer fleets with as many values in total."""
QUICK_DRAWS = 40_000
FEWEST_DRAWS = 5_000
VALUES_AT_ONCE = 4_000_000
T_SD = 2**0.5
"""Standard deviation of Student's t with 4 degrees of freedom."""
LIMITS = np.geomspace(2.0, 1000.0, 80)
"""Limits at which probabilities are computed; they are interpolated in between."""
Tail = Callable[[FloatArray], FloatArray]


def tails() -> list[tuple[Callable[[np.random.Generator, tuple[int, int]], FloatArray], Tail]]:
    """Return how to sample each distribution, and its upper tail, both with a standard deviation of 1."""
    return [
        (lambda rng, size: rng.standard_normal(size), lambda x: np.asarray(ndtr(-x))),
        (lambda rng, size: rng.standard_t(4, size) / T_SD, lambda x: np.asarray(stdtr(4, -x * T_SD))),
    ]


def chances(num_hosts: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Return for each of `LIMITS` the larger probability over both distributions that a host exceeds it."""
    found = []
    for draw, tail in tails():
        total = np.zeros(LIMITS.size)
        for size in _pieces(draws, num_hosts):
            others = draw(rng, (size, num_hosts - 1))
            middle, mad, farthest = _with_one_far_out(others)
            for place, limit in enumerate(LIMITS):
                total[place] += tail(middle + np.maximum(limit * mad / NORMAL_MAD, farthest)).sum()
        found.append(2 * num_hosts * total / draws)
    return np.asarray(np.max(found, axis=0))


def _with_one_far_out(others: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return median and MAD of each row with one additional value at +∞, and the farthest finite distance."""
    far = np.full((len(others), 1), np.inf)
    middle = np.median(np.hstack([others, far]), axis=1)
    distances = np.abs(others - middle[:, np.newaxis])
    return middle, np.median(np.hstack([distances, far]), axis=1), distances.max(axis=1)


def few_chances(num_hosts: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Bound the probability that one of 3 or 4 hosts is this many standard deviations off."""
    found = []
    for draw, tail in tails():
        middle = np.median(draw(rng, (draws, num_hosts - 1)), axis=1)
        found.append(np.array([2 * num_hosts * tail(middle + limit).mean() for limit in LIMITS]))
    return np.asarray(np.max(found, axis=0))


def _pieces(draws: int, num_hosts: int) -> list[int]:
    size = max(1, VALUES_AT_ONCE // num_hosts)
    return [min(size, draws - done) for done in range(0, draws, size)]


def limits(found: FloatArray, error_rates: Sequence[float]) -> list[float]:
    """Return the limits that are exceeded with the given probabilities."""
    return [float(np.exp(np.interp(-np.log(rate), -np.log(found), np.log(LIMITS)))) for rate in error_rates]


def main() -> None:
    """Compute, print, compare."""
    draws = QUICK_DRAWS if "--quick" in sys.argv[1:] else DRAWS
    rng = np.random.default_rng(1)
    worst = 0.0
    for num_hosts in table.FEW_HOSTS:
        row = limits(few_chances(num_hosts, draws // 10, rng), table.ERROR_RATES)
        worst = max(worst, _told(num_hosts, row, table.FEW_LIMITS.get(num_hosts)))
    for num_hosts in table.NUM_HOSTS:
        size = max(FEWEST_DRAWS, draws * 5 // num_hosts)
        row = limits(chances(num_hosts, size, rng), table.ERROR_RATES)
        worst = max(worst, _told(num_hosts, row, table.LIMITS.get(num_hosts)))
    print(f"largest deviation from the table in the code: {worst:.1%}")
    print(f"largest deviation between its rows and columns: {_between(draws, rng):.1%}")


def _told(num_hosts: int, row: Sequence[float], known: Sequence[float] | None) -> float:
    print(f"    {num_hosts}: ({', '.join(f'{limit:.4g}' for limit in row)}),")
    return max(abs(a / b - 1) for a, b in zip(row, known, strict=True)) if known else 1.0


def _between(draws: int, rng: np.random.Generator) -> float:
    """Return how far off the code's limits are where it interpolates."""
    rates = (0.035, 0.0035, 0.00035)
    off = 0.0
    for num_hosts in (21, 27, 40, 80, 200):
        exact = limits(chances(num_hosts, max(FEWEST_DRAWS, draws * 5 // num_hosts), rng), rates)
        for rate, limit in zip(rates, exact, strict=True):
            off = max(off, abs(table.z_limit(num_hosts, rate) / limit - 1))
    return off


if __name__ == "__main__":
    main()
