"""How many independent requests are so many requests of a queue worth, and is a share of them over a limit?

Requests of one busy spell wait for each other: that ten of them are late is one observation, not ten. The
design effect says how many requests count as one: the variance of the share over a limit, estimated from the
means of blocks in order of arrival, over what independent requests would give. Blocks never span launches;
their length is doubled while 20 are left, and the largest ratio of all lengths is taken, so that no model of
the server and no idle moment of it is needed. (Batch means: Law and Carson, Operations Research 27, 1979;
doubled lengths: Flyvbjerg and Petersen, J. Chem. Phys. 91, 1989.)

A share over the limit of which too few spells were seen says nothing of how long such spells are. The design
effect is then that of a lower limit, which at least ten separate spells exceeded.

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
"""Blocks of a twentieth of all are then at least ten times as long as what counts as one request."""
LOWER_LEVELS = (0.99, 0.975, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Quantiles that are tried as a limit where too few spells were over the one that is asked for."""
DISAGREE = 0.01
"""Launches that are this unlikely to differ so by chance make the design effect as large as they say."""
MOST_REQUESTS, FINENESS = 1e9, 1.02


def design_effect(launches: Sequence[FloatArray], limit: float) -> float | Unavailable:
    """Return how many requests count as one independent one, for the share of requests over `limit`.

    `launches` hold a value a request in order of arrival; infinite is over every limit.
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
    return Unavailable(reason=f"{few}: how many independent requests these are worth is not known")


def _too_few(effective: float) -> Unavailable:
    return Unavailable(
        reason=f"requests wait for each other so long that all are worth {effective:.0f} independent ones; "
        f"{MIN_EFFECTIVE:.0f} are needed"
    )


def _quantiles(launches: Sequence[FloatArray]) -> list[float]:
    values = np.concatenate(launches)
    places = [int(q * (len(values) - 1)) for q in LOWER_LEVELS]
    return [float(value) for value in np.partition(values, places)[places]] if len(values) else []


def _ratio(over: Sequence[FloatArray], share: float) -> float:
    """Return the variance of means of blocks, and of launches, over that of independent requests."""
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
    """Return the ratio for whole launches, and how far over that of blocks it may be by chance."""
    if len(over) < 2:
        return 1.0, 1.0
    freedom = len(over) - 1
    spread = sum((float(part.sum()) - share * len(part)) ** 2 / len(part) for part in over) / freedom
    return spread / (share * (1 - share)), chi_square_limit(freedom, DISAGREE) / freedom


def chance_of_so_few(over: float, num: float, share: float) -> float:
    """Return P[Binomial(n, share) ≤ k] for counts that need not be whole: effective ones."""
    return 1.0 if over >= num else beta_cdf(num - over, over + 1, 1 - share)


def chance_of_so_many(over: float, num: float, share: float) -> float:
    """Return P[Binomial(n, share) ≥ k] likewise."""
    return 1.0 if over <= 0 else beta_cdf(over, max(num - over, 0.0) + 1, share)


def effective_needed(seen_share: float, allowed_share: float, *, risk: float) -> float:
    """Return how many independent requests would decide, were the share over the limit what it seems.

    Infinite where it seems just as large as is allowed.
    """
    chance = chance_of_so_few if seen_share < allowed_share else chance_of_so_many
    num = 1.0
    while chance(seen_share * num, num, allowed_share) > risk:
        num *= FINENESS
        if num > MOST_REQUESTS:
            return inf
    return num


def share_bound(over: float, num: float, *, risk: float) -> float:
    """Return the largest share over a limit that so few over it leave possible, at that risk.

    >>> round(share_bound(0, 459, risk=0.01), 4)
    0.01
    """
    low, high = over / num, 1.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if chance_of_so_few(over, num, middle) <= risk else (middle, high)
    return high
