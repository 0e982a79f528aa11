"""How often does a comparison report equal sides as different, and detect a real change? Simulated.

First, for two sides of one session whose launches are not interleaved (points of a sweep; `gpuproof compare A
B --between-sessions 0`), it prints how often equal sides are reported as different (promised: at most 5 %),
with the 95 % upper bound, and how often a true change of 2 % is detected, next to what the spread predicts.
It does so for launches of many shapes. Second, for the gate (`compare --ab --max-regression 0%`), where a day
is a whole comparison with its pilot, its plan and its confirmation, it prints how often the gate reports a
regression that does not exist (promised: a 95 % upper bound of 1 %), how often it finds one of 3 % (promised:
95 %), and with how many pairs. Asserts nothing; the shapes describe log rates of launches, not any device.
Usage: python benchmarks/comparison_errors.py [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import log

import numpy as np
from scipy.signal import lfilter
from scipy.special import betaincinv, nctdtr, stdtrit

from gpuproof.statistics.comparison import compare_launches, compare_pairs, is_beyond
from gpuproof.statistics.estimate import FloatArray
from gpuproof.suites.ab.plan import (
    BETTER,
    CONFIRMED,
    RATE,
    AbOptions,
    B,
    LaunchFigures,
    course,
    launch_order,
    pair_values,
)
from gpuproof.suites.base import LaunchKey

Shape = Callable[[np.random.Generator, int], FloatArray]
"""Returns logarithms of the rates of several launches, in sequence on one machine."""
QUICK = "--quick" in sys.argv[1:]
NUM_COMPARISONS = 500 if QUICK else 20_000
NUM_DAYS = 100 if QUICK else 2000
LAUNCHES = ((3, 3), (5, 5), (10, 10), (5, 20))
TRUE_CHANGE, TO_FIND = 0.02, 0.03


def normal(sd: float) -> Shape:
    return lambda rng, num: sd * rng.standard_normal(num)


def heavy(sd: float) -> Shape:
    """Student's t with 3 degrees of freedom."""
    return lambda rng, num: sd * rng.standard_t(3, num) / 3**0.5


def rare_slow(share: float) -> Shape:
    """A fraction of launches is 10 % slower, on top of a spread of 0.5 %."""
    return lambda rng, num: 0.005 * rng.standard_normal(num) - 0.1 * (rng.random(num) < share)


def two_levels(rng: np.random.Generator, num: int) -> FloatArray:
    """Half of the launches pick an algorithm that is 3 % faster."""
    return np.asarray(0.005 * rng.standard_normal(num) + 0.03 * (rng.random(num) < 0.5))


def counted(rng: np.random.Generator, num: int) -> FloatArray:
    """Rates rounded to steps of 1 %."""
    return np.asarray(np.log(np.round(np.exp(0.01 * rng.standard_normal(num)) * 100) / 100))


def drifting(rng: np.random.Generator, num: int) -> FloatArray:
    """A machine that becomes 0.1 % slower per launch."""
    return np.asarray(0.01 * rng.standard_normal(num) - 0.001 * np.arange(num))


def wandering(rng: np.random.Generator, num: int) -> FloatArray:
    """AR(1) with φ = 0.9 from launch to launch, and a standard deviation of 2 %."""
    noise = 0.02 * rng.standard_normal(num)
    noise[1:] *= (1 - 0.9**2) ** 0.5
    return np.asarray(lfilter([1.0], [1.0, -0.9], noise))


def sawtooth(period: int) -> Shape:
    """A sawtooth that rises by 2 % and falls back every few launches."""

    def draw(rng: np.random.Generator, num: int) -> FloatArray:
        place = (np.arange(num) + rng.integers(0, period)) % period
        return np.asarray(0.005 * rng.standard_normal(num) + 0.02 * place / period)

    return draw


def falls_once(rng: np.random.Generator, num: int) -> FloatArray:
    """A machine that becomes 5 % slower at some point, and stays slower."""
    return np.asarray(0.01 * rng.standard_normal(num) - 0.05 * (np.arange(num) > rng.integers(0, 60)))


INDEPENDENT: Mapping[str, tuple[Shape, Shape]] = {
    "normal, 1 % and 1 %": (normal(0.01), normal(0.01)),
    "normal, 1 % and 5 %": (normal(0.01), normal(0.05)),
    "t with 3 degrees, 1 %": (heavy(0.01), heavy(0.01)),
    "3 % of launches 10 % slower": (rare_slow(0.03), rare_slow(0.03)),
    "two levels, 3 % apart": (two_levels, two_levels),
    "counted in 1 %": (counted, counted),
}
"""Shapes of sides that are not interleaved. Drift between two sides is not covered by any interval, and is
not simulated here."""
ON_ONE_MACHINE: Mapping[str, Shape] = {
    "normal, 0.5 %": normal(0.005),
    "normal, 1 %": normal(0.01),
    "normal, 2 %": normal(0.02),
    "t with 3 degrees, 2 %": heavy(0.02),
    "3 % of launches 10 % slower": rare_slow(0.03),
    "two levels, 3 % apart": two_levels,
    "counted in 1 %": counted,
    "drift of 0.1 % a launch": drifting,
    "AR(1) 0.9, 2 %": wandering,
    "sawtooth of 4 launches": sawtooth(4),
    "sawtooth of 7 launches": sawtooth(7),
    "5 % slower from some launch on": falls_once,
}


def upper_bound(count: int, num: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % upper bound of a proportion."""
    return 1.0 if count >= num else float(betaincinv(count + 1, num - count, 0.95))


def is_called(
    rng: np.random.Generator, shapes: tuple[Shape, Shape], launches: tuple[int, int], change: float
) -> bool:
    """Compare two separate runs; B's rate is changed by a fraction."""
    a, b = (np.exp(draw(rng, num)) for draw, num in zip(shapes, launches, strict=True))
    found = compare_launches(a, b * (1 + change), better="higher", is_cautious=True)
    return found.verdict in ("faster", "slower")


def promised_power(sd: float, num: int, change: float) -> float:
    """Return the probability of detecting a change in normal launches, equally many per side."""
    freedom, shift = 2 * (num - 1), log(1 + change) / (sd * (2 / num) ** 0.5)
    limit = float(stdtrit(num - 1, 0.975))  # a cautious comparison uses the degrees of freedom of one side
    return float(1 - nctdtr(freedom, shift, limit) + nctdtr(freedom, shift, -limit))


def a_day(rng: np.random.Generator, shape: Shape, change: float, options: AbOptions) -> tuple[bool, int]:
    """Run a whole comparison with the gate; return if it found a regression, and its number of pairs."""
    order = launch_order([bool(turned) for turned in rng.integers(0, 2, options.max_pairs)])
    rates = np.exp(shape(rng, 2 * len(order))).reshape(-1, 2)
    figures: dict[LaunchKey, LaunchFigures] = {}
    while len(figures) < 2 * (known := course(options, figures)).total:
        for pair in range(len(figures) // 2, known.total):
            for place, side in enumerate(order[pair]):
                factor = 1 + change if side == B else 1.0
                figures[side, pair] = {RATE: float(rates[pair, place] * factor)}
    return any(
        _is_confirmed(figures, name, known.num_pairs, options) for name in known.suspected
    ), known.total


def _is_confirmed(
    figures: Mapping[LaunchKey, LaunchFigures], name: str, num_pairs: int, options: AbOptions
) -> bool:
    again = pair_values(figures, name, range(num_pairs, 2 * num_pairs))
    found = compare_pairs(*again, better=BETTER[name], confidence=CONFIRMED)
    return is_beyond(found, options.limit, better=BETTER[name])


def print_runs() -> None:
    """Print the results for two sides of one session."""
    print(
        f"Two sides of one session, {NUM_COMPARISONS:,} comparisons each: reported as different "
        "when equal (95 % bound)"
    )
    print(f"{'shape':<30}" + "".join(f"{f'{a} + {b}':>20}" for a, b in LAUNCHES))
    for seed, (name, shapes) in enumerate(INDEPENDENT.items()):
        told = []
        for launches in LAUNCHES:
            rng = np.random.default_rng([seed, *launches])
            wrong = sum(is_called(rng, shapes, launches, 0.0) for _ in range(NUM_COMPARISONS))
            told.append(f"{wrong / NUM_COMPARISONS:.2%} ({upper_bound(wrong, NUM_COMPARISONS):.2%})")
        print(f"{name:<30}" + "".join(f"{text:>20}" for text in told), flush=True)
    print(f"\nDetected changes of {TRUE_CHANGE:.0%}, for normal launches of 1 % (predicted by the spread)")
    for num in (3, 5, 8, 12):
        rng = np.random.default_rng([99, num])
        shapes = (normal(0.01), normal(0.01))
        shown = sum(is_called(rng, shapes, (num, num), -TRUE_CHANGE) for _ in range(NUM_COMPARISONS))
        promised = promised_power(0.01, num, -TRUE_CHANGE)
        print(f"  {num:>2} + {num:<2} launches: {shown / NUM_COMPARISONS:6.1%} ({promised:.1%})", flush=True)


def print_gate() -> None:
    """Print the results for the gate."""
    print(f"\nThe gate, {NUM_DAYS:,} days each: false regressions reported (95 % bound), a true one of")
    print(f"{TO_FIND:.0%} found, median and mean pairs with a regression of that size")
    options = AbOptions(max_regression=0.0, find=TO_FIND)
    for seed, (name, shape) in enumerate(ON_ONE_MACHINE.items()):
        rng = np.random.default_rng([7, seed])
        wrong = sum(a_day(rng, shape, 0.0, options)[0] for _ in range(NUM_DAYS))
        days = [a_day(rng, shape, -TO_FIND, options) for _ in range(NUM_DAYS)]
        found, pairs = (np.array(column) for column in zip(*days, strict=True))
        bound = upper_bound(wrong, NUM_DAYS)
        print(
            f"{name:<32} {wrong:4} days, {wrong / NUM_DAYS:.2%} ({bound:.2%}); found {found.mean():6.1%}; "
            f"{np.median(pairs):3.0f}, {pairs.mean():.1f} pairs",
            flush=True,
        )


def main() -> None:
    """Simulate and print."""
    print_runs()
    print_gate()


if __name__ == "__main__":
    main()
