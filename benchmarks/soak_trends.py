"""How often does a soak's trend fail a machine with constant speed, and how often is a slowdown seen?

Draws step times of soaks, with 24 launches (as in a day with one per hour) or with one. They are flat, with
stalls, in spells (AR(1)), quantised, in a sawtooth (a machine that warms up and cools down), or rising. Each
is judged as in a validation: FAIL if the whole interval of the rise is above `max_drift`, PASS if it is
below, and ERROR in between. Prints fractions, with the 95 % upper bound of FAIL; asserts nothing. Seeds are
fixed. Usage: python benchmarks/soak_trends.py [SERIES]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter
from scipy.stats import beta

from gpuproof.suites.validate.trend import trend_of

MAX_DRIFT = 0.2
STEPS = 2400
"""Number of steps in a whole soak, which is split into launches of equal length."""
Shape = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""Returns factors on the step time; the array is the position in the soak, from 0 to 1."""


def noise(of: float) -> Shape:
    """Return independent steps."""
    return lambda chance, place: np.exp(chance.normal(0, of, len(place)))


def stalls(chance: np.random.Generator, place: np.ndarray) -> np.ndarray:
    """Make one step in a hundred take ten times as long."""
    return noise(0.02)(chance, place) * np.where(chance.random(len(place)) < 0.01, 10.0, 1.0)


def spells(alike: float, of: float) -> Shape:
    """Return steps that are correlated with the previous ones, with a standard deviation of `of`."""

    def drawn(chance: np.random.Generator, place: np.ndarray) -> np.ndarray:
        shocks = chance.normal(0, of * (1 - alike**2) ** 0.5, len(place))
        shocks[0] = chance.normal(0, of)
        return np.asarray(np.exp(lfilter([1.0], [1.0, -alike], shocks)))

    return drawn


def rounded(chance: np.random.Generator, place: np.ndarray) -> np.ndarray:
    """Simulate clocks with a resolution of a tenth of a step."""
    return np.round(noise(0.05)(chance, place) * 10) / 10


def sawtooth(teeth: float) -> Shape:
    """Make steps a third slower at each tooth's top; a final partial tooth can look like a trend."""
    return lambda chance, place: (1 + 0.33 * (place * teeth % 1)) * noise(0.02)(chance, place)


def rising(by: float, shape: Shape) -> Shape:
    """Return a shape that takes longer by this fraction at the end."""
    return lambda chance, place: (1 + by * place) * shape(chance, place)


SHAPES: dict[str, Shape] = {
    "flat, noise 2 %": noise(0.02),
    "flat, noise 20 %": noise(0.2),
    "flat, stalls": stalls,
    "flat, quantised to 10 %": rounded,
    "spells of 20 steps, 10 %": spells(0.95, 0.1),
    "spells of 100 steps, 10 %": spells(0.99, 0.1),
    "spells of 1,000 steps, 10 %": spells(0.999, 0.1),
    "sawtooth of 24 hours' teeth": sawtooth(24),
    "sawtooth, 5.5 teeth": sawtooth(5.5),
    "sawtooth, half a tooth": sawtooth(0.5),
    "rises by 10 %, noise 2 %": rising(0.1, noise(0.02)),
    "rises by 20 % (the bound)": rising(0.2, noise(0.02)),
    "rises by 20 %, spells of 100": rising(0.2, spells(0.99, 0.1)),
    "rises by 25 %, noise 2 %": rising(0.25, noise(0.02)),
    "rises by 40 %, stalls": rising(0.4, stalls),
    "rises by 40 %, spells of 100": rising(0.4, spells(0.99, 0.1)),
    "rises by 100 %, spells of 100": rising(1.0, spells(0.99, 0.1)),
}


def verdict(times: np.ndarray, launches: int) -> str:
    """Judge one soak."""
    found = trend_of([part.tolist() for part in np.array_split(times, launches)])
    if found is None or not np.isfinite(found.high - found.low):
        return "ERROR"
    if found.low > MAX_DRIFT:
        return "FAIL"
    return "PASS" if found.high <= MAX_DRIFT else "ERROR"


def main() -> None:
    """Draw, judge, print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    place = np.linspace(0, 1, STEPS)
    print(f"{count} soaks each, {STEPS} steps; FAIL means a certain rise of more than {MAX_DRIFT:.0%}")
    for launches in (24, 5, 1):
        print(f"{f'of {launches} launches':<32}{'PASS':>8}{'ERROR':>8}{'FAIL':>8}  (under)")
        for name, shape in SHAPES.items():
            chance = np.random.default_rng(1)
            said = [verdict(shape(chance, place), launches) for _ in range(count)]
            passed, unsure, failed = (said.count(word) / count for word in ("PASS", "ERROR", "FAIL"))
            under = float(beta.ppf(0.95, said.count("FAIL") + 1, max(1e-9, count - said.count("FAIL"))))
            print(f"{name:<32}{passed:8.1%}{unsure:8.1%}{failed:8.1%}  ({under:.1%})")


if __name__ == "__main__":
    main()
