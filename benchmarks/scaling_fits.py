"""How often are the intervals of fitted scaling laws and their predictions wrong? Simulated.

Throughputs of launches are drawn around known curves: one that follows Amdahl's law, one that follows the
universal scaling law, and others that follow neither (a cost that grows with the logarithm of the number of
devices, and a step where a slower link begins). Each device count has several launches with scattered
throughputs, and the machine of each study is faster or slower as a whole. Usage: python
benchmarks/scaling_fits.py
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gpuproof.suites.scale.laws import AMDAHL, USL, CurvePoint, LawFit, Prediction, fit_law, predict

Slowdown = Callable[[int], float]
"""1 / efficiency for a number of devices."""
SIGMA, KAPPA = 0.03, 0.002
TRUTHS: dict[str, Slowdown] = {
    "Amdahl": lambda n: 1 + SIGMA * (n - 1),
    "USL": lambda n: 1 + SIGMA * (n - 1) + KAPPA * n * (n - 1),
    "USL, hidden": lambda n: 1 + SIGMA * (n - 1) + 1e-4 * n * (n - 1),
    "logarithm": lambda n: 1 + 0.05 * np.log2(n),
    "slower link": lambda n: 1 + SIGMA * (n - 1) + (0.25 if n > 4 else 0.0),
    "ring": lambda n: 1 + 2 * SIGMA * (n - 1) / n,
    "linear": lambda _n: 1.0,
}
HAVE_SIGMA = ("Amdahl", "USL", "USL, hidden")
"""True curves that have σ as a parameter."""
LADDERS = {"1 2 4 8": (1, 2, 4, 8), "1 2 3 4 6 8": (1, 2, 3, 4, 6, 8), "1 2 4 8 16": (1, 2, 4, 8, 16)}


@dataclass(slots=True)
class Tally:
    """The results of many studies."""

    studies: int = 0
    fits: Counter[str] = field(default_factory=Counter)
    sigma_missed: Counter[str] = field(default_factory=Counter)
    predictions: int = 0
    missed: Counter[int] = field(default_factory=Counter)
    """Number of studies, by factor, whose efficiency interval did not contain the truth."""
    widths: dict[int, list[float]] = field(default_factory=dict)


def drawn_study(
    truth: Slowdown, ladder: tuple[int, ...], *, launches: int, spread: float, rng: np.random.Generator
) -> list[CurvePoint]:
    """Draw the launches of one study; every fifth launch has three times the scatter (heavy tails)."""
    machine = float(np.exp(rng.normal(0, 0.05)))
    points = []
    for number in ladder:
        tails = np.where(rng.random(launches) < 0.2, 3.0, 1.0)
        scatter = np.exp(rng.normal(0, spread, launches) * tails)
        rates = 1000 * machine * number / truth(number) * scatter
        points.append(CurvePoint(num_devices=number, rates=tuple(map(float, rates))))
    return points


def tally(
    truth: Slowdown,
    ladder: tuple[int, ...],
    *,
    launches: int,
    spread: float,
    studies: int,
    rng: np.random.Generator,
) -> Tally:
    """Count over many studies."""
    found = Tally()
    for _ in range(studies):
        _count(found, drawn_study(truth, ladder, launches=launches, spread=spread, rng=rng), truth)
    return found


def _count(found: Tally, points: list[CurvePoint], truth: Slowdown) -> None:
    found.studies += 1
    for law in (AMDAHL, USL):
        fit = fit_law(points, law)
        if isinstance(fit, LawFit):
            found.fits[law] += 1
            found.sigma_missed[law] += not fit.serial.low <= SIGMA <= fit.serial.high
    predicted = predict(points)
    if not isinstance(predicted, Prediction):
        return
    found.predictions += 1
    for point in predicted.points:
        factor = point.num_devices // points[-1].num_devices
        efficiency = 1 / truth(point.num_devices)
        held = point.efficiency.low <= efficiency <= point.efficiency.high
        found.missed[factor] += not held
        found.widths.setdefault(factor, []).append(point.efficiency.high - point.efficiency.low)


def _lines(studies: int, seed: int) -> Iterator[str]:
    yield (
        f"{'truth':12} {'devices':12} {'launches':>8} {'spread':>7}  {'fits Amdahl (σ missed)':>23}"
        f" {'USL (σ missed)':>16} {'predicts':>9}  missed at 2×, 4×, 8× (median width)"
    )
    for name, truth in TRUTHS.items():
        for shown, ladder in LADDERS.items():
            for launches, spread in ((3, 0.005), (10, 0.005), (10, 0.02)):
                rng = np.random.default_rng([seed, launches, len(ladder)])
                found = tally(truth, ladder, launches=launches, spread=spread, studies=studies, rng=rng)
                row = _row(found, has_sigma=name in HAVE_SIGMA)
                yield f"{name:12} {shown:12} {launches:8} {spread:7.1%}  {row}"


def _row(found: Tally, *, has_sigma: bool) -> str:
    def fitted(law: str) -> str:
        fits = found.fits[law]
        missed = f"{found.sigma_missed[law] / fits:.1%}" if fits and has_sigma else "–"
        return f"{fits / found.studies:6.1%} ({missed})"

    missed = ", ".join(
        f"{found.missed[factor] / found.predictions:.1%} ({np.median(found.widths[factor]):.2f})"
        for factor in sorted(found.widths)
    )
    share = found.predictions / found.studies
    return f"{fitted(AMDAHL):>23} {fitted(USL):>16} {share:9.1%}  {missed or '–'}"


def main() -> int:
    """Print a line for each true curve, set of device counts and number of launches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for line in _lines(asked.studies, asked.seed):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
