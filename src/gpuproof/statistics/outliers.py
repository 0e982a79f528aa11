"""Find hosts that are outliers among hosts of their type, in one test or in the mean of several.

The input is one rate per host, and the width of the interval of its launches. The output states which hosts
are outliers and by which standard, or why no host can be assessed. One error rate applies to all tests in a
run: at most 5 % of healthy fleets have any host flagged, for the kind of hosts that `z_limit` is designed
for.

With five or more hosts, their own spread decides: a host is an outlier if its modified Z-score exceeds the
limit for that number of hosts. Three or four hosts are too few to estimate a spread. Healthy hosts are then
assumed to differ by 2 % (standard deviation), and a host is an outlier only if the other hosts agree with
each other and the launches' intervals do not overlap. A host that is equally far off while the other hosts
disagree is undecided. With two hosts, the slower one is reported, but neither is flagged. No host is flagged
for a difference below 2 %, or below the interval of its launches.

>>> rates = [HostRate(host=name, rate=rate) for name, rate in zip("abcde", (100, 101, 99, 100.5, 50))]
>>> [apart.host for apart in judge_hosts(rates, error_rate=ERROR_RATE).apart]
['e']
>>> round(z_limit(8, 0.05), 2), round(z_limit(8, 0.05 / 12), 2)
(6.83, 15.88)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import Literal

import numpy as np

from gpuproof.statistics.dispersion import NORMAL_MAD
from gpuproof.statistics.estimate import FloatArray

ERROR_RATE = 0.045
"""Fraction of healthy fleets in which a host is flagged, over all tests and types: 5 %, minus a margin for
the uncertainty of the simulated limits."""
WHOLE_SHARE = 0.75
"""Portion of this error rate allotted to the mean over all tests; the rest is divided among single tests. A
slow host is usually slow in all tests, and its mean is tested only once even if there are many tests."""
LEAST_DIFFERENCE = 0.02
"""Minimum relative difference for which a host is flagged."""
ENOUGH_HOSTS = 5
"""Minimum number of hosts of one type for their own spread to be used."""
HEALTHY_SPREAD = 0.02
"""Relative standard deviation between healthy hosts, assumed if there are too few hosts to estimate it."""
UNKNOWN_REACH = 0.1
"""Relative precision assumed for rates without an interval when hosts are compared by launches."""
ROUNDING = 0.01
"""The coarsest relative step of rounded rates, i.e. of rates with two digits."""
TWO_SUBJECTS = "one of two can be slower, but which of them is at fault cannot be determined"
ERROR_RATES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
FEW_HOSTS = (3, 4)
NUM_HOSTS = (*range(5, 21), 24, 32, 48, 64, 96, 128, 256, 512, 1024)
FEW_LIMITS: Mapping[int, Sequence[float]] = {
    3: (3.263, 4.107, 4.872, 5.783, 7.248, 8.577, 10.17, 12.93, 14.88),
    4: (3.292, 4.158, 4.947, 5.885, 7.398, 8.796, 10.46, 13.16, 15.65),
}
"""Limits by number of hosts, as multiples of a known standard deviation from the median of the other hosts;
one column for each of `ERROR_RATES`."""
LIMITS: Mapping[int, Sequence[float]] = {
    5: (9.463, 15.59, 22.47, 32.16, 51.47, 73.44, 104.5, 166.6, 239.7),
    6: (7.104, 10.35, 13.56, 17.61, 24.61, 31.53, 40.21, 55.14, 69.76),
    7: (7.714, 11.3, 14.84, 19.34, 27.18, 34.96, 44.76, 61.62, 78.21),
    8: (6.831, 9.487, 11.98, 15, 19.97, 24.64, 30.29, 39.54, 48.2),
    9: (7.189, 10.01, 12.68, 15.91, 21.27, 26.35, 32.52, 42.73, 52.3),
    10: (6.756, 9.151, 11.36, 13.97, 18.21, 22.14, 26.82, 34.44, 41.53),
    11: (7.005, 9.487, 11.77, 14.47, 18.84, 22.88, 27.69, 35.5, 42.73),
    12: (6.748, 8.999, 11.05, 13.46, 17.33, 20.89, 25.1, 31.88, 38.12),
    13: (6.958, 9.283, 11.41, 13.91, 17.92, 21.62, 25.99, 33.02, 39.5),
    14: (6.807, 8.982, 10.95, 13.27, 16.97, 20.38, 24.41, 30.9, 36.89),
    15: (6.956, 9.175, 11.19, 13.54, 17.34, 20.83, 24.98, 31.68, 37.88),
    16: (6.869, 9.003, 10.93, 13.2, 16.83, 20.15, 24.09, 30.44, 36.3),
    17: (7.007, 9.181, 11.15, 13.45, 17.14, 20.52, 24.53, 30.98, 36.93),
    18: (6.952, 9.065, 10.97, 13.22, 16.8, 20.1, 24, 30.29, 36.09),
    19: (7.069, 9.216, 11.16, 13.44, 17.08, 20.43, 24.4, 30.79, 36.69),
    20: (7.033, 9.134, 11.03, 13.26, 16.84, 20.12, 24.01, 30.28, 36.07),
    24: (7.213, 9.321, 11.23, 13.47, 17.06, 20.37, 24.28, 30.61, 36.44),
    32: (7.552, 9.701, 11.65, 13.94, 17.63, 21.03, 25.05, 31.56, 37.56),
    48: (8.161, 10.43, 12.49, 14.92, 18.84, 22.45, 26.73, 33.65, 40.05),
    64: (8.669, 11.05, 13.22, 15.78, 19.91, 23.72, 28.24, 35.54, 42.29),
    96: (9.489, 12.07, 14.42, 17.2, 21.69, 25.82, 30.74, 38.68, 46.01),
    128: (10.15, 12.89, 15.39, 18.35, 23.13, 27.53, 32.77, 41.23, 49.04),
    256: (11.99, 15.2, 18.13, 21.6, 27.21, 32.38, 38.53, 48.46, 57.65),
    512: (14.23, 18.02, 21.48, 25.59, 32.21, 38.33, 45.59, 57.35, 68.21),
    1024: (16.92, 21.39, 25.49, 30.35, 38.2, 45.45, 54.06, 67.99, 80.86),
}
"""Limits by number of hosts, as modified Z-scores; one column for each of `ERROR_RATES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRate:
    """Value compared for a host: its rate per device, or its mean over tests, relative to its type."""

    host: str
    rate: float
    reach: float | None = None
    """Distance from the rate to the farther end of its launches' interval, divided by the rate; None if there
    is no interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlyingHost:
    """A host that is an outlier."""

    host: str
    relative_difference: float
    """Difference relative to the median of its type or, with few hosts, of the other hosts: −0.2 is a fifth
    less."""
    modified_z: float | None
    """Modified Z-score of the host; None if launches were used instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """The rule by which hosts were assessed."""

    basis: Literal["spread", "launches"]
    """Basis of the decision: the hosts' own spread, or their launches if there are too few hosts to estimate
    a spread."""
    num_hosts: int
    z_limit: float | None
    """Limit for the modified Z-score; None if the comparison is based on launches."""
    least_difference: float
    """Minimum relative difference; the launches' interval is used if that is wider."""
    num_without_interval: int
    """Number of hosts without an interval for their launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """The slower of two hosts."""

    host: str
    than: str
    relative_difference: float
    """Difference in rate: 0.2 means 20 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsJudged:
    """The result for hosts of one type."""

    apart: tuple[OutlyingHost, ...] = ()
    """Outliers, starting with the farthest."""
    undecided: tuple[OutlyingHost, ...] = ()
    """Hosts that deviate more than healthy variation and their launches can explain, while the other hosts
    disagree with each other."""
    needed: Mapping[str, float] = field(default_factory=dict)
    """Difference, relative to its type, above which each assessed host would count as an outlier. At 1 or
    more, even a host with a rate of zero would not count as an outlier."""
    standard: Standard | None = None
    """The rule that was used; None if no host was assessed."""
    slower: Slower | None = None
    """The slower host, if there are only two hosts."""
    missing: str | None = None
    """Reason why no host can be an outlier."""


def judge_hosts(rates: Sequence[HostRate], *, error_rate: float) -> HostsJudged:
    """Evaluate the hosts of one type; `error_rate` is the portion of the total that is allotted here."""
    if len(rates) < 2:
        return HostsJudged(missing="fewer than two hosts of this type were measured: nothing to compare")
    if len(rates) == 2:
        return _pair(rates)
    if len(rates) < ENOUGH_HOSTS:
        return _by_launches(rates, error_rate)
    return _by_spread(rates, error_rate)


def _by_spread(rates: Sequence[HostRate], error_rate: float) -> HostsJudged:
    values = np.array([host.rate for host in rates])
    reaches = np.array([host.reach or 0.0 for host in rates])
    middle = float(np.median(values))
    differences = values / middle - 1
    unit = _unit_of_z(values, middle)
    scores = (values - middle) / unit
    limit = z_limit(len(rates), error_rate)
    needed = np.maximum(LEAST_DIFFERENCE, reaches * values / middle)
    apart = (np.abs(scores) > limit) & (np.abs(differences) > needed)
    outliers = [
        OutlyingHost(
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
    """Return the unit of a modified Z-score, MAD/0.6745; the MAD is at least half the rounding step.

    The MAD can only be smaller if it is 0, i.e. if half of the hosts had the same rate. The rounding step is
    then at most the smallest remaining distance, and at most `ROUNDING`, so that one broken host among equal
    ones is detected.
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
    beside_all = [_compared(host, rates, least) for host in rates]
    outliers = [beside for beside in beside_all if abs(beside.difference) > beside.needed]
    named = {beside.host for beside in outliers}
    rest = [host for host in rates if host.host not in named]
    beside_rest = [_compared(host, rest, least) for host in rest] if len(rest) > 1 else []
    return HostsJudged(
        apart=_farthest_first([beside.apart for beside in outliers]),
        undecided=_farthest_first([beside.apart for beside in beside_rest if beside.is_far]),
        needed={beside.host: beside.needed for beside in (*beside_all, *beside_rest)},
        standard=_standard(rates, "launches", least, None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A host and the others of its type, all relative to the median of the others."""

    host: str
    difference: float
    explained: float
    """The difference that can be explained by healthy variation and by the intervals of launches."""
    disagreement: float
    """The largest difference between any two of the other hosts."""

    @property
    def is_far(self) -> bool:
        return abs(self.difference) > self.explained

    @property
    def needed(self) -> float:
        return max(self.explained, 2 * self.disagreement)

    @property
    def apart(self) -> OutlyingHost:
        return OutlyingHost(host=self.host, relative_difference=self.difference, modified_z=None)


def _compared(host: HostRate, rates: Sequence[HostRate], least: float) -> _Compared:
    others = [other for other in rates if other is not host]
    middle = median(other.rate for other in others)
    reach = _reach(host) / middle + max(_reach(other) for other in others) / middle
    return _Compared(
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


def _farthest_first(hosts: Sequence[OutlyingHost]) -> tuple[OutlyingHost, ...]:
    return tuple(sorted(hosts, key=lambda apart: -abs(apart.relative_difference)))


def z_limit(num_hosts: int, error_rate: float) -> float:
    """Return the limit for five or more hosts, extrapolated above 1,024 as a power of the host count.

    If n independent hosts differ only by chance, the largest |modified Z| exceeds the limit with probability
    at most `error_rate`. This is true for the normal distribution and for the heavier-tailed Student's t with
    4 degrees of freedom; for heavier or skewed distributions the probability is higher.
    `benchmarks/outlier_limits.py` computes the table and explains its derivation. Between rows and columns,
    limits are interpolated on a log scale; beyond the last column they are extrapolated by a power law,
    because tails follow one.

    Raises:
        ValueError: there are too few hosts, or the rate is not above 0 and at most 5 %.
    """
    if num_hosts < NUM_HOSTS[0]:
        raise ValueError(f"{num_hosts} hosts are too few to estimate their spread (needs {NUM_HOSTS[0]})")
    upper = min(max(1, bisect_left(NUM_HOSTS, num_hosts)), len(NUM_HOSTS) - 1)
    ends = NUM_HOSTS[upper - 1], NUM_HOSTS[upper]
    rows = [_at_rate(LIMITS[end], error_rate) for end in ends]
    return _interpolate(num_hosts, ends, rows)


def sigma_limit(num_hosts: int, error_rate: float) -> float:
    """Return how many known standard deviations one of 3 or 4 hosts may be from the others' median.

    Raises:
        ValueError: there are not 3 or 4 hosts, or the rate is not above 0 and at most 5 %.
    """
    if num_hosts not in FEW_HOSTS:
        raise ValueError(f"{num_hosts} hosts: a known spread is only for {FEW_HOSTS[0]} or {FEW_HOSTS[1]}")
    return _at_rate(FEW_LIMITS[num_hosts], error_rate)


def _at_rate(row: Sequence[float], error_rate: float) -> float:
    if not 0 < error_rate <= ERROR_RATES[0]:
        raise ValueError(f"an error rate must be above 0 and at most {ERROR_RATES[0]:.0%}, not {error_rate}")
    upper = min(max(1, bisect_left(ERROR_RATES, -error_rate, key=lambda rate: -rate)), len(ERROR_RATES) - 1)
    return _interpolate(error_rate, ERROR_RATES[upper - 1 : upper + 1], row[upper - 1 : upper + 1])


def _interpolate(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    share = log(at / places[0]) / log(places[1] / places[0])
    return exp(log(values[0]) + share * log(values[1] / values[0]))
