"""From which modified Z-score on does one of n equal hosts stand out? Limits for a stated rate of errors.

Of n independent hosts that are equal but for chance, the largest |modified Z| is over `z_limit(n, p)` with
the chance p at most, for normal and for Student's t with 4 degrees of freedom, the heavier-tailed of the two;
for distributions that are heavier or lean to one side it is more. The table is computed, and its derivation
told, by `benchmarks/outlier_limits.py`. Between its rows and columns limits are interpolated on logarithms;
past its last column they go on as a power, since tails do.

>>> round(z_limit(8, 0.05), 2), round(z_limit(8, 0.05 / 12), 2)
(6.83, 15.88)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log

ERROR_RATES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
FEW_HOSTS = (3, 4)
NUM_HOSTS = (*range(5, 21), 24, 32, 48, 64, 96, 128, 256, 512, 1024)


FEW_LIMITS: Mapping[int, Sequence[float]] = {
    3: (3.263, 4.107, 4.872, 5.783, 7.248, 8.577, 10.17, 12.93, 14.88),
    4: (3.292, 4.158, 4.947, 5.885, 7.398, 8.796, 10.46, 13.16, 15.65),
}
"""By number of hosts, in known standard deviations from the median of the others: a column each of
`ERROR_RATES`."""
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
"""By number of hosts, as modified Z-scores: a column each of `ERROR_RATES`."""


def z_limit(num_hosts: int, error_rate: float) -> float:
    """Return the limit for at least five hosts; over 1,024 it goes on as a power of their number.

    Raises:
        ValueError: there are fewer hosts, or the rate is not above 0 and at most 5 %.
    """
    if num_hosts < NUM_HOSTS[0]:
        raise ValueError(f"{num_hosts} hosts are too few to show their spread (needs {NUM_HOSTS[0]})")
    upper = min(max(1, bisect_left(NUM_HOSTS, num_hosts)), len(NUM_HOSTS) - 1)
    ends = NUM_HOSTS[upper - 1], NUM_HOSTS[upper]
    rows = [_at_rate(LIMITS[end], error_rate) for end in ends]
    return _interpolate(num_hosts, ends, rows)


def sigma_limit(num_hosts: int, error_rate: float) -> float:
    """Return how many known standard deviations one of 3 or 4 hosts may be off the median of the others.

    Raises:
        ValueError: there are not 3 or 4 hosts, or the rate is not above 0 and at most 5 %.
    """
    if num_hosts not in FEW_HOSTS:
        raise ValueError(
            f"{num_hosts} hosts: only {FEW_HOSTS[0]} and {FEW_HOSTS[1]} are judged by a known spread"
        )
    return _at_rate(FEW_LIMITS[num_hosts], error_rate)


def _at_rate(row: Sequence[float], error_rate: float) -> float:
    if not 0 < error_rate <= ERROR_RATES[0]:
        raise ValueError(f"an error rate is above 0 and at most {ERROR_RATES[0]:.0%}, not {error_rate}")
    upper = min(max(1, bisect_left(ERROR_RATES, -error_rate, key=lambda rate: -rate)), len(ERROR_RATES) - 1)
    return _interpolate(error_rate, ERROR_RATES[upper - 1 : upper + 1], row[upper - 1 : upper + 1])


def _interpolate(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    share = log(at / places[0]) / log(places[1] / places[0])
    return exp(log(values[0]) + share * log(values[1] / values[0]))
