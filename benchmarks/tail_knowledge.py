"""How often could any rule find a slow GPU or host among peers that may have long tails?

n GPUs, or hosts by the mean of their GPUs, are compared with each other by one result each. One of them is
slow by several standard deviations: 10 correspond to 5 % at a spread of 0.5 %, in one test or in fully
correlated tests; 24.5 correspond to the same in the mean over six independent tests; 69 to the same for a
host's eight independent GPUs. The frontier is the best that any rule could do that sees only how many
standard deviations the lowest result is below the mean of the others, and their L-skewness. The candidates
are all rules that accuse in at most a given fraction of healthy fleets, whether these follow Student's t (4
degrees of freedom), an exponential or a log-normal (sigma 0.8), and that also fail GPUs that are further off.
A linear program over the cells of a table finds the rule that names the slow GPU or host most often. Ours
(`statistics/dispersion.py`) also sees L-kurtosis; its alarm rate is that of the worst of these shapes, normal
included. Prints the fractions; asserts nothing. Promise: ours names the slow GPU or host at least 0.9 × as
often as the frontier at our alarm rate, which is at most 0.5 %. Usage: python benchmarks/tail_knowledge.py
[DRAWS]; 60,000 take about three minutes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from gpuproof.statistics.estimate import FloatArray
from gpuproof.statistics.prediction import (
    NORMAL_KURTOSIS,
    PER_KURTOSIS,
    PER_SKEWNESS,
    HealthyValue,
    tail_factor,
)
from rules_on_fleets import drawn

DRAWS = 60_000
MOST_FIGURES = 3_000_000
ERROR_RATE = 0.005
TAILS = ("t4", "slow tail", "longer tail")
CASES = (
    (5, 24.5),
    (7, 24.5),
    (8, 10.0),
    (8, 24.5),
    (8, 69.0),
    (16, 10.0),
    (16, 24.5),
    (64, 10.0),
    (64, 24.5),
    (256, 10.0),
)
DISTANCES = np.concatenate([[-np.inf], np.geomspace(2, 150, 60), [np.inf]])
SKEWNESSES = np.concatenate([[-np.inf], np.linspace(-0.3, 0.6, 19), [np.inf]])


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """The lowest result of each fleet, or the slow one, and statistics of the others."""

    num_others: int
    distance: FloatArray
    """Distance of the lowest result below the mean of the others, in their standard deviations."""
    skewness: FloatArray
    weight: FloatArray
    """Weight of the tails, as in `tail_weight`."""

    def cells(self) -> FloatArray:
        """Return how often each cell of the table occurs."""
        counts = np.histogram2d(self.distance, self.skewness, bins=(DISTANCES, SKEWNESSES))[0]
        return np.asarray(counts.ravel() / self.distance.size)

    def share_named(self, error_rate: float) -> float:
        """Return how often our limit flags the suspects."""
        factor, factor_of_one = (tail_factor(self.num_others, weight) for weight in (0.0, 1.0))
        limits = [
            HealthyValue(
                centre=0.0,
                day=0.0,
                chance=(1 + 1 / self.num_others) ** 0.5,
                degrees=self.num_others - 1,
                tail_factor=by,
            ).reach(error_rate / (self.num_others + 1))
            for by in (factor, factor_of_one)
        ]
        reach = limits[0] + (limits[1] - limits[0]) * self.weight
        return float(np.mean(self.distance > reach))


def suspects(shape: str, num: int, slow: float, *, draws: int) -> Suspects:
    """Draw fleets of this size; if nothing is slow, the lowest is the suspect."""
    figures = drawn(shape, (draws, num), np.random.default_rng(0))
    if slow:
        figures[:, 0] -= slow
    else:
        figures.sort(axis=1)
    others = np.sort(figures[:, 1:], axis=1)
    n = num - 1
    place = np.arange(n)
    mean = others.mean(axis=1)
    first = (others * place).sum(axis=1) / (n * (n - 1))
    second = (others * place * (place - 1)).sum(axis=1) / (n * (n - 1) * (n - 2))
    third = (others * place * (place - 1) * (place - 2)).sum(axis=1) / (n * (n - 1) * (n - 2) * (n - 3))
    scale = 2 * first - mean
    skewness = -(6 * second - 6 * first + mean) / scale
    kurtosis = (20 * third - 30 * second + 12 * first - mean) / scale
    return Suspects(
        num_others=n,
        distance=np.asarray((mean - figures[:, 0]) / others.std(axis=1, ddof=1)),
        skewness=np.asarray(skewness),
        weight=np.asarray(
            PER_SKEWNESS * abs(skewness) + PER_KURTOSIS * np.maximum(0, kurtosis - NORMAL_KURTOSIS)
        ),
    )


def frontier(slow: Suspects, healthy: list[Suspects], error_rate: float) -> float:
    """Return the fraction of slow GPUs or hosts named by the best rule."""
    wrong = csr_array(np.array([of_shape.cells() for of_shape in healthy]))
    cells = np.arange(wrong.shape[1]).reshape(len(DISTANCES) - 1, len(SKEWNESSES) - 1)
    nearer, farther = cells[:-1].ravel(), cells[1:].ravel()
    rows = np.arange(nearer.size)
    ordered = coo_array(
        (np.r_[np.ones(rows.size), -np.ones(rows.size)], (np.r_[rows, rows], np.r_[nearer, farther])),
        shape=(rows.size, cells.size),
    )
    bounds = np.r_[np.full(len(healthy), error_rate), np.zeros(rows.size)]
    best = linprog(-slow.cells(), A_ub=vstack([wrong, ordered]).tocsr(), b_ub=bounds, bounds=(0, 1))
    return float(-best.fun)


def main() -> None:
    """Print the fractions."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS
    for num, distance in CASES:
        draws = min(most, MOST_FIGURES // num)
        slow = suspects("normal", num, distance, draws=draws)
        healthy = {shape: suspects(shape, num, 0.0, draws=draws) for shape in ("normal", *TAILS)}
        alarms = max(of_shape.share_named(ERROR_RATE) for of_shape in healthy.values())
        tailed = [healthy[shape] for shape in TAILS]
        ours, best = slow.share_named(ERROR_RATE), frontier(slow, tailed, alarms)
        print(
            f"one of {num} slow by {distance:g} deviations: ours names {ours:.1%} at {alarms:.2%} alarms; "
            f"the frontier there {best:.1%} (ours is {ours / best:.2f} of it), "
            f"at {ERROR_RATE:.1%} {frontier(slow, tailed, ERROR_RATE):.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
