"""How often does a matrix report a wrong best configuration? Simulated on misleading shapes.

Each matrix has k configurations of n seeds, all truly equal. Reporting any of them as best is wrong; with one
error rate over all configurations, this should happen in under 5 % of matrices. Then one configuration is
better by some standard deviations, and the benchmark counts how often it is reported as best.

    python benchmarks/matrix_best.py [--matrices N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cases_by_hand import cases_of
from gpuproof.suites.matrix.compare import configurations, rank_configurations

Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]
MEAN, SD = 0.95, 0.004


def normal(rng: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    return rng.normal(MEAN, SD, size=(k, n))


def quantised(rng: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    """Accuracies over 360 samples: quantisation steps nearly as wide as the scatter."""
    return np.asarray(np.round(normal(rng, k, n) * 360) / 360, dtype=np.float64)


def heavy_tails(rng: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = MEAN + SD * rng.standard_t(4, size=(k, n)) / np.sqrt(2)
    return drawn


def unlike_scatter(rng: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    """Every second configuration has five times the scatter."""
    scale = np.where(np.arange(k) % 2, 5.0, 1.0)[:, None]
    drawn: NDArray[np.float64] = MEAN + SD * scale * rng.normal(size=(k, n))
    return drawn


def collapsing(rng: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    """One seed in ten does not converge."""
    drawn = normal(rng, k, n)
    return np.where(rng.random((k, n)) < 0.1, 0.1 + 0.01 * rng.random((k, n)), drawn)


def same_seeds(rng: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    """A seed shifts all configurations together by as much as they scatter."""
    return normal(rng, k, n) + rng.normal(0, SD, size=(1, n))


SHAPES: dict[str, Draw] = {
    "normal": normal,
    "quantised": quantised,
    "heavy tails (t4)": heavy_tails,
    "unlike scatter": unlike_scatter,
    "a seed in ten fails": collapsing,
    "seeds in common": same_seeds,
}


def best_of(values: NDArray[np.float64]) -> str | None:
    cases = cases_of({f"c{place}": row.tolist() for place, row in enumerate(values)})
    found = configurations(cases, "accuracy", seed="seed")
    return rank_configurations(found, "accuracy", "higher").best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrices", type=int, default=2000)
    number = parser.parse_args().matrices
    rng = np.random.default_rng(1)
    print(f"{number} matrices each; fraction that reports a best configuration although all are equal")
    print(f"{'shape':<22}" + "".join(f"{f'k={k} n={n}':>12}" for k, n in SIZES))
    for name, draw in SHAPES.items():
        rates = [sum(best_of(draw(rng, k, n)) is not None for _ in range(number)) / number for k, n in SIZES]
        print(f"{name:<22}" + "".join(f"{rate:>12.2%}" for rate in rates))
    print(
        "fraction that reports the better configuration (normal, c0 better by this many standard deviations)"
    )
    for shift in (2.0, 5.0, 10.0):
        print(f"{shift:<22}" + "".join(f"{_power(rng, k, n, shift, number // 4):>12.2%}" for k, n in SIZES))


SIZES = ((2, 3), (6, 3), (6, 5), (12, 3), (12, 10))


def _power(rng: np.random.Generator, k: int, n: int, shift: float, number: int) -> float:
    named = 0
    for _ in range(number):
        values = normal(rng, k, n)
        values[0] += shift * SD
        named += best_of(values) == "c0"
    return named / number


if __name__ == "__main__":
    main()
