"""Compute how many independent requests a sample is worth, and test the fraction over a limit.

Requests in one busy period delay each other, so ten late ones are one observation, not ten. The design effect
is the number of requests that count as one independent request: the variance of the fraction over the limit,
estimated from the means of blocks in order of arrival, divided by the variance for independent requests.
Blocks never span launches. Their length is doubled as long as at least 20 blocks remain, and the largest
ratio over all lengths is used, so neither a model of the server nor an idle period is needed. (Batch means:
Law and Carson, Operations Research 27, 1979; doubled lengths: Flyvbjerg and Petersen, J. Chem. Phys. 91,
1989.)

If too few spells exceeded the limit, the fraction of requests over it does not show how long such spells are.
The design effect of a lower limit, which at least ten separate spells exceeded, is used instead.

>>> in_tens = np.repeat(np.random.default_rng(2).integers(1, 3, 2000), 10)  # late ten at a time, or not
>>> round(design_effect([in_tens.astype(float)], 1.5))
10
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from gpuproof.statistics.distributions import beta_cdf, chi_square_limit
from gpuproof.statistics.estimate import FloatArray, Unavailable

MIN_BLOCKS = 20
MIN_SPELLS = 10.0
MIN_EFFECTIVE = 200.0
"""Minimum number of effective requests, at which blocks of a twentieth of all requests are at least ten times
as long as the design effect."""
LOWER_LEVELS = (0.99, 0.975, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Quantiles to try as the limit if too few spells exceeded the given limit."""
DISAGREE = 0.01
"""Probability below which differences between launches are not attributed to chance, so that their variance
determines the design effect."""
MOST_REQUESTS, FINENESS = 1e9, 1.02


def design_effect(launches: Sequence[FloatArray], limit: float) -> float | Unavailable:
    """Return how many requests count as one independent request, for the fraction over `limit`.

    `launches` contains the values of each launch's requests in order of arrival; infinity exceeds every
    limit.
    """
    num = sum(map(len, launches))
    lower = {level for level in _quantiles(launches) if level < limit}
    worst = 1.0
    for level in (limit, *sorted(lower, reverse=True)):
        over = [np.asarray(launch > level, dtype=np.float64) for launch in launches]
        num_over = sum(float(part.sum()) for part in over)
        if not 0 < num_over < num:
            continue
        worst = max(worst, _ratio(over, num_over / num))
        if num_over / worst >= MIN_SPELLS:
            return worst if num / worst >= MIN_EFFECTIVE else _too_few(num / worst)
    few = f"fewer than {MIN_SPELLS:.0f} separate slow spells were seen"
    return Unavailable(reason=f"{few}: how many independent requests these are worth is unknown")


def _too_few(effective: float) -> Unavailable:
    return Unavailable(
        reason="requests wait for each other for so long that all of them are worth "
        f"{effective:.0f} independent ones; {MIN_EFFECTIVE:.0f} are needed"
    )


def _quantiles(launches: Sequence[FloatArray]) -> list[float]:
    values = np.concatenate(launches)
    places = [int(q * (len(values) - 1)) for q in LOWER_LEVELS]
    return [float(value) for value in np.partition(values, places)[places]] if len(values) else []


def _ratio(over: Sequence[FloatArray], share: float) -> float:
    """Return the variance of block and launch means relative to independent requests."""
    single, between_blocks, length, parts = share * (1 - share), 1.0, 1, list(over)
    while sum(len(part) // 2 for part in parts) >= MIN_BLOCKS:
        parts = [part[: len(part) // 2 * 2].reshape(-1, 2).sum(axis=1) for part in parts]
        length *= 2
        spread = sum(float(((part - length * share) ** 2).sum()) for part in parts)
        spread /= sum(map(len, parts)) - 1
        between_blocks = max(between_blocks, spread / (length * single))
    between_launches, limit = _between_launches(over, share)
    return between_launches if between_launches > limit * between_blocks else between_blocks


def _between_launches(over: Sequence[FloatArray], share: float) -> tuple[float, float]:
    """Return the ratio for whole launches, and how far it may exceed the blocks' ratio by chance."""
    if len(over) < 2:
        return 1.0, 1.0
    freedom = len(over) - 1
    spread = sum((float(part.sum()) - share * len(part)) ** 2 / len(part) for part in over) / freedom
    return spread / (share * (1 - share)), chi_square_limit(freedom, DISAGREE) / freedom


def chance_of_so_few(over: float, num: float, share: float) -> float:
    """Return P[Binomial(n, share) ≤ k]; n and k are effective counts and need not be integers."""
    return 1.0 if over >= num else beta_cdf(num - over, over + 1, 1 - share)


def chance_of_so_many(over: float, num: float, share: float) -> float:
    """Return P[Binomial(n, share) ≥ k]; n and k need not be integers here either."""
    return 1.0 if over <= 0 else beta_cdf(over, max(num - over, 0.0) + 1, share)


def effective_needed(seen_share: float, allowed_share: float, *, risk: float) -> float:
    """Return how many independent requests a decision needs if the true fraction is the observed one.

    The number is infinite if the observed fraction equals the allowed one.
    """
    chance = chance_of_so_few if seen_share < allowed_share else chance_of_so_many
    num = 1.0
    while chance(seen_share * num, num, allowed_share) > risk:
        num *= FINENESS
        if num > MOST_REQUESTS:
            return inf
    return num


def share_bound(over: float, num: float, *, risk: float) -> float:
    """Return the largest fraction over a limit compatible with the observed count, at that risk.

    >>> round(share_bound(0, 459, risk=0.01), 4)
    0.01
    """
    low, high = over / num, 1.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if chance_of_so_few(over, num, middle) <= risk else (middle, high)
    return high
