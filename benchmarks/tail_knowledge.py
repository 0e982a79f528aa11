"""How often could any rule fail a GPU that is 5 % slow, where healthy ones may have a long tail?

A rule sees how many standard deviations a figure is under the mean of n healthy GPUs, and their L-skewness
(one figure a GPU, or several that are alike). Eight GPUs are judged, which differ by 0.5 %. Among all rules
by these numbers that fail anybody in at most 0.5 % of healthy fleets, whether these are of Student's t (4
degrees of freedom), exponential or log-normal (sigma 0.8), the one that fails the slow GPU most often, of
normal ones, is a linear program over the cells of a table. Prints that share; asserts nothing. No promise: it
is the bound that `rules_on_fleets.py` is to be held against.
Usage: python benchmarks/tail_knowledge.py [DRAWS]; 60,000 take about 10 seconds.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.optimize import linprog

from gpuproof.statistics.estimate import FloatArray
from rules_on_fleets import drawn

DRAWS = 60_000
JUDGED = 8
SLOW = 10.0
"""Standard deviations: 5 % where GPUs differ by 0.5 %."""
ERROR_RATE = 0.005
TAILS = ("t4", "slow tail", "longer tail")
DISTANCES = np.concatenate([[-np.inf], np.geomspace(2, 60, 45), [np.inf]])
SKEWNESSES = np.concatenate([[-np.inf], np.linspace(-0.3, 0.6, 31), [np.inf]])


def skewness_below(figures: FloatArray) -> FloatArray:
    """Return the L-skewness of each row towards low figures."""
    ordered, n = np.sort(figures, axis=1), figures.shape[1]
    place = np.arange(n)
    mean = ordered.mean(axis=1)
    first = (ordered * place).sum(axis=1) / (n * (n - 1))
    second = (ordered * place * (place - 1)).sum(axis=1) / (n * (n - 1) * (n - 2))
    return np.asarray(-(6 * second - 6 * first + mean) / (2 * first - mean))


def table(shape: str, num: int, slow: float, *, with_run: bool, draws: int) -> FloatArray:
    """Return how often each cell comes about for the slow one, or the lowest where nobody is slow.

    `with_run`: the other judged GPUs are known, too, beside the `num` of the baseline.
    """
    rng = np.random.default_rng(0)
    known, judged = (drawn(shape, (draws, size), rng) for size in (num, JUDGED))
    judged = judged if slow else np.sort(judged, axis=1)
    suspect, others = judged[:, 0] - slow, judged[:, 1:]
    known = np.concatenate([known, others], axis=1) if with_run else known
    distance = (known.mean(axis=1) - suspect) / known.std(axis=1, ddof=1)
    cells = np.histogram2d(distance, skewness_below(known), bins=(DISTANCES, SKEWNESSES))[0]
    return np.asarray(cells.ravel() / draws)


def most_found(num: int, *, with_run: bool, draws: int) -> float:
    """Return the share of slow GPUs that the best rule fails."""
    found = table("normal", num, SLOW, with_run=with_run, draws=draws)
    wrong = np.array([table(shape, num, 0.0, with_run=with_run, draws=draws) for shape in TAILS])
    best = linprog(-found, A_ub=wrong, b_ub=np.full(len(TAILS), ERROR_RATE), bounds=(0, 1))
    return float(-best.fun)


def main() -> None:
    """Print the shares."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS
    for with_run in (False, True):
        who = " and of the seven others of the run" if with_run else ""
        for num in (8, 16, 32, 64):
            share = most_found(num, with_run=with_run, draws=draws)
            print(f"figures of {num} GPUs{who}: {share:.1%} at most")


if __name__ == "__main__":
    main()
