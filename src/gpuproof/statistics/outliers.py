"""Does a host stand apart from others of its type, in one test or in the mean over several?

In: a rate a host, and how far the interval of its launches reaches. Out: who stands apart, by which standard,
or why nobody can be judged. One error rate holds for everything that is looked at in a run: of healthy fleets
at most 5 % see anybody named (`statistics/outlier_limits.py` says for which hosts that holds).

From five hosts on their own spread decides: the modified Z-score is over the limit for so many hosts. Three
or four are too few to show a spread: healthy ones are taken to differ by 2 % (standard deviation), the others
must agree with each other, and the launches' intervals must lie apart; who is as far off while the others
disagree is undecided. Of two, one is slower, and neither is accused. Nobody is named for a difference under
2 %, or under the interval of its launches.

>>> rates = [HostRate(host=name, rate=rate) for name, rate in zip("abcde", (100, 101, 99, 100.5, 50))]
>>> [apart.host for apart in judge_hosts(rates, error_rate=ERROR_RATE).apart]
['e']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from gpuproof.statistics.dispersion import NORMAL_MAD
from gpuproof.statistics.estimate import FloatArray
from gpuproof.statistics.outlier_limits import sigma_limit, z_limit

ERROR_RATE = 0.045
"""Of healthy fleets in which somebody is named, all tests and types together: 5 % with a margin for what
simulations of the limits leave uncertain."""
WHOLE_SHARE = 0.75
"""Of it, what the mean over all tests may use; single tests share the rest. A host that is slow is mostly
slow in all, and its mean is one question where tests are many."""
LEAST_DIFFERENCE = 0.02
"""Nobody is named for less."""
ENOUGH_HOSTS = 5
"""Of one type, to judge them by their own spread."""
HEALTHY_SPREAD = 0.02
"""Standard deviation between healthy hosts, relative, that is assumed where they are too few to show it."""
UNKNOWN_REACH = 0.1
"""How far the rate of launches without an interval is taken to be known, where launches decide."""
ROUNDING = 0.01
"""The coarsest step of rates that were rounded, relative: two digits."""
TWO_SUBJECTS = "of two one can be slower, but which of them is at fault cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRate:
    """What is compared of a host: a rate by device, or its mean over tests, relative to its type."""

    host: str
    rate: float
    reach: float | None = None
    """From the rate to the farther end of the interval of its launches, over the rate; None: no interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A host that stands apart."""

    host: str
    relative_difference: float
    """From the median of its type, or of the other hosts where those are three or fewer: −0.2 is a fifth
    less."""
    modified_z: float | None
    """None where launches decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """By which rule hosts were judged."""

    basis: Literal["spread", "launches"]
    """Their own spread, or their launches where they are too few to show it."""
    num_hosts: int
    z_limit: float | None
    """None where launches decide."""
    least_difference: float
    """Relative; the launches' interval, where it is wider."""
    num_without_interval: int
    """Hosts whose launches give none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """The slower one of two hosts."""

    host: str
    than: str
    relative_difference: float
    """0.2 is a fifth slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsJudged:
    """What can be said of hosts of one type."""

    apart: tuple[Apart, ...] = ()
    """The farthest first."""
    undecided: tuple[Apart, ...] = ()
    """Farther off than healthy hosts and their launches explain, while the others differ from each other."""
    needed: Mapping[str, float] = field(default_factory=dict)
    """Of each host that was judged: from how far off it would stand apart, relative to its type. From 1 on
    not even one that does nothing would."""
    standard: Standard | None = None
    """None where nobody was judged."""
    slower: Slower | None = None
    """Of two hosts."""
    missing: str | None = None
    """Why nobody can stand apart."""


def judge_hosts(rates: Sequence[HostRate], *, error_rate: float, wider: float = 1.0) -> HostsJudged:
    """Judge the hosts of one type; `error_rate` is what this one question may use of that of all.

    Limits by their own spread are `wider` times as far, for hosts that may have longer tails than they allow.
    """
    if len(rates) < 2:
        return HostsJudged(missing="fewer than two hosts of this type were measured: nothing to compare")
    if len(rates) == 2:
        return _pair(rates)
    if len(rates) < ENOUGH_HOSTS:
        return _by_launches(rates, error_rate)
    return _by_spread(rates, error_rate, wider)


def _by_spread(rates: Sequence[HostRate], error_rate: float, wider: float) -> HostsJudged:
    values = np.array([host.rate for host in rates])
    reaches = np.array([host.reach or 0.0 for host in rates])
    middle = float(np.median(values))
    differences = values / middle - 1
    unit = _unit_of_z(values, middle)
    scores = (values - middle) / unit
    limit = wider * z_limit(len(rates), error_rate)
    needed = np.maximum(LEAST_DIFFERENCE, reaches * values / middle)
    apart = (np.abs(scores) > limit) & (np.abs(differences) > needed)
    outliers = [
        Apart(
            host=rates[place].host,
            relative_difference=float(differences[place]),
            modified_z=float(scores[place]),
        )
        for place in np.flatnonzero(apart).tolist()
    ]
    return HostsJudged(
        apart=_farthest_first(outliers),
        needed=_by_host(rates, np.maximum(needed, limit * unit / middle)),
        standard=_standard(rates, "spread", LEAST_DIFFERENCE, limit),
    )


def _unit_of_z(values: FloatArray, middle: float) -> float:
    """Give what a modified Z-score counts in, MAD/0.6745; the MAD is at least half the step of rounded rates.

    It is less only where it is 0: half of the hosts gave the same. The step is then at most the smallest
    distance that is left, and at most `ROUNDING`, so that one broken host among equal ones is seen.
    """
    distances = np.abs(values - middle)
    mad = float(np.median(distances))
    if mad == 0:
        seen = distances[distances > 0]
        mad = min(float(seen.min(initial=np.inf)), ROUNDING * middle) / 2
    return mad / NORMAL_MAD


def _by_host(rates: Sequence[HostRate], values: FloatArray) -> dict[str, float]:
    return {host.host: value for host, value in zip(rates, values.tolist(), strict=True)}


def _by_launches(rates: Sequence[HostRate], error_rate: float) -> HostsJudged:
    least = HEALTHY_SPREAD * sigma_limit(len(rates), error_rate)
    beside_all = [_beside(host, rates, least) for host in rates]
    outliers = [beside for beside in beside_all if beside.is_far and beside.is_farther_than_others]
    named = {beside.host for beside in outliers}
    rest = [host for host in rates if host.host not in named]
    beside_rest = [_beside(host, rest, least) for host in rest] if len(rest) > 1 else []
    return HostsJudged(
        apart=_farthest_first([beside.apart for beside in outliers]),
        undecided=_farthest_first([beside.apart for beside in beside_rest if beside.is_far]),
        needed={beside.host: beside.needed for beside in (*beside_all, *beside_rest)},
        standard=_standard(rates, "launches", least, None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """A host beside the others of its type, all relative to their median."""

    host: str
    difference: float
    explained: float
    """What healthy hosts and the intervals of launches explain."""
    disagreement: float
    """Of the others among each other."""

    @property
    def is_far(self) -> bool:
        return abs(self.difference) > self.explained

    @property
    def is_farther_than_others(self) -> bool:
        return abs(self.difference) > 2 * self.disagreement

    @property
    def needed(self) -> float:
        return max(self.explained, 2 * self.disagreement)

    @property
    def apart(self) -> Apart:
        return Apart(host=self.host, relative_difference=self.difference, modified_z=None)


def _beside(host: HostRate, rates: Sequence[HostRate], least: float) -> _Beside:
    others = [other for other in rates if other is not host]
    middle = median(other.rate for other in others)
    reach = _reach(host) / middle + max(_reach(other) for other in others) / middle
    return _Beside(
        host=host.host,
        difference=host.rate / middle - 1,
        explained=max(least, reach),
        disagreement=max(other.rate for other in others) / middle - min(o.rate for o in others) / middle,
    )


def _pair(rates: Sequence[HostRate]) -> HostsJudged:
    slow, fast = sorted(rates, key=lambda host: host.rate)
    difference = 1 - slow.rate / fast.rate
    needed = max(LEAST_DIFFERENCE, (_reach(slow) + _reach(fast)) / fast.rate)
    is_shown = difference > needed
    return HostsJudged(
        needed={host.host: needed for host in rates},
        standard=_standard(rates, "launches", LEAST_DIFFERENCE, None),
        slower=Slower(host=slow.host, than=fast.host, relative_difference=difference) if is_shown else None,
        missing=TWO_SUBJECTS,
    )


def _reach(host: HostRate) -> float:
    return host.rate * (UNKNOWN_REACH if host.reach is None else host.reach)


def _standard(
    rates: Sequence[HostRate], basis: Literal["spread", "launches"], least: float, limit: float | None
) -> Standard:
    return Standard(
        basis=basis,
        num_hosts=len(rates),
        z_limit=limit,
        least_difference=least,
        num_without_interval=sum(host.reach is None for host in rates),
    )


def _farthest_first(hosts: Sequence[Apart]) -> tuple[Apart, ...]:
    return tuple(sorted(hosts, key=lambda apart: -abs(apart.relative_difference)))
