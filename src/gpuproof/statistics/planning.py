"""How many launches does a comparison need? From the spread of those that were measured.

In: logarithms of ratios B/A of pairs of neighbouring launches, or values of launches of both sides. Out: how
many pairs find a difference of a given size, or bring the ratio's interval to a given width.

>>> pairs_to_find([0.01, -0.01, 0.01, -0.01, 0.01, -0.01], effect=0.03, confidence=0.95, power=0.9)
6
"""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, log1p, sqrt

from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import Numbers, Unavailable, check_confidence, finite

MOST_LAUNCHES = 10**5


def pairs_to_find(pilot: Numbers, *, effect: float, confidence: float, power: float) -> int:
    """Return how many pairs find an `effect`, in logarithms, with the chance `power`; those of `pilot` count.

    Stein's two-stage rule: n ≥ ((t(1 − α/2) + t(power))·s/effect)², with the spread s and the degrees of
    freedom of the pilot's pairs alone. The interval by that same s (`compare_pairs`, `num_pilot`) keeps its
    error rate whatever n comes to, and the power is at least the stated one for normal values.

    Raises:
        ValueError: there are fewer than two pairs, a value is not finite, or a number is out of its range.
    """
    ratios = finite(pilot)
    check_confidence(power)
    if ratios.size < 2 or not effect > 0:
        raise ValueError(f"needs two pairs and an effect above 0, not {ratios.size} and {effect}")
    freedom = ratios.size - 1
    quantile = student_t_quantile(freedom, (1 + check_confidence(confidence)) / 2)
    reach = quantile + student_t_quantile(freedom, power)
    return max(ratios.size, ceil((reach * float(ratios.std(ddof=1)) / effect) ** 2))


def launches_for_ratio(
    a: Numbers, b: Numbers, *, relative_half_width: float, confidence: float = 0.95
) -> int | Unavailable:
    """Return how many launches a side bring the interval of their ratio to ± `relative_half_width`.

    The least n ≥ 3 with t(n − 1)·√(s²(A) + s²(B))/√n within log(1 + target), by the spreads at hand. `a` and
    `b` are logarithms of values; pairs are given as their differences and zeros.

    Raises:
        ValueError: a value is not finite, or the target or the confidence is out of range.
    """
    sides = [finite(a), finite(b)]
    check_confidence(confidence)
    if not relative_half_width > 0:
        raise ValueError(f"a target half-width is above 0, not {relative_half_width}")
    if min(side.size for side in sides) < 2:
        return Unavailable(reason="one launch tells nothing about the next (needs 2)")
    spread = sqrt(sum(float(side.var(ddof=1)) for side in sides))
    target, numbers = log1p(relative_half_width), range(3, MOST_LAUNCHES)

    def is_enough(num: int) -> bool:
        return student_t_quantile(num - 1, (1 + confidence) / 2) * spread / sqrt(num) <= target

    place = bisect_left(numbers, True, key=is_enough)
    if place == len(numbers):
        return Unavailable(reason=f"even {MOST_LAUNCHES:,} launches would not reach the target")
    return numbers[place]
