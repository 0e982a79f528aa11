"""How long must blocks of a series be, for blocks to be nearly independent of each other?

In comes a series in order of time; out go the length of its blocks, in values, and by how much the variance
of means of such blocks still falls short. Both rest on the reach of the autocorrelation R, Σ|k|·R(k) / ΣR(k)
in values: a block of length L shows the variance of a long mean too small by the share reach/L.

The reach is estimated twice, and the longer one counts. From the autocovariance through a flat-top window, as
Politis and White (2004) do; and as that of an AR(1) process with the first autocorrelation r, 2r/(1 − r²), of
the series and of its means over 2, 4, 8 … 32 values, where r is more than noise. An estimate of r is too
small by (1 + 4r)/n (Kendall 1954), which decides at r near 1; means over many values show what changes slowly
under much fast noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log10, sqrt

import numpy as np

from gpuproof.statistics.estimate import FloatArray

LONGER_BLOCKS = 1.5
"""Over the published length. That one is best for the variance; intervals of strongly autocorrelated series
cover too seldom with it, and longer blocks win back most of that at little cost to others."""
LARGEST_SHORTFALL = 1 / 3
"""Of the variance, that blocks may be short of by their length, and that is then put back."""
FEWEST_BLOCKS = 3
"""That a series is cut into, however much its values resemble each other."""
MEANS_OVER = (2, 4, 8, 16, 32)
FEWEST_MEANS = 30
"""From which an autocorrelation is estimated."""
MORE_THAN_NOISE = 1.64
"""Times 1/√n: one autocorrelation in twenty of independent values is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How a series is cut."""

    length: int
    """In values."""
    variance_factor: float
    """What the variance of resampled blocks is multiplied by, at least 1."""


def choose_blocks(series: FloatArray) -> Blocks:
    """Choose blocks from the autocorrelation of `series`.

    Length: (1.5·reach²·n)^⅓ (Politis and White 2004, as corrected by Patton, Politis and White 2009, for
    blocks of fixed length) times `LONGER_BLOCKS`, or reach/`LARGEST_SHORTFALL` where that is longer; at most
    n/`FEWEST_BLOCKS`, rounded up. 1 for a constant series, and for under 8 values.

    The factor puts back what the blocks' length hides, or brings their variance up to that of an AR(1)
    process with the series' first autocorrelation: series that look less correlated than they are get short
    blocks.
    """
    n = series.size
    if n < 8 or np.ptp(series) == 0:
        return Blocks(length=1, variance_factor=1.0)
    covariance = _autocovariance(series)
    by_window, by_first = _reach_by_window(covariance), _reach_by_first(series, covariance)
    reach = max(by_window, by_first)
    best = LONGER_BLOCKS * float(np.cbrt(1.5 * by_window**2 * n))
    length = max(1, ceil(min(max(best, reach / LARGEST_SHORTFALL), n / FEWEST_BLOCKS)))
    factor = 1 / (1 - min(LARGEST_SHORTFALL, reach / length))
    return Blocks(length=length, variance_factor=max(factor, _short_of_first(series, covariance, length)))


def _autocovariance(series: FloatArray) -> FloatArray:
    deviations = series - series.mean()
    spectrum = np.fft.rfft(deviations, 2 * series.size)
    circular = np.fft.irfft(spectrum * spectrum.conj(), 2 * series.size)
    return circular[: series.size] / series.size


def _reach_by_window(covariance: FloatArray) -> float:
    """Estimate the reach through the flat-top window; 0 where neighbours repel each other, if anything.

    The window is twice as wide as the lag from which √log₁₀n or at least 5 autocorrelations in a row are
    under 2·√(log₁₀n/n); a third of the series is searched for it.
    """
    n = covariance.size
    half_window = min(2 * _significant_lags(covariance / covariance[0]), n - 1)
    lags = np.arange(1, half_window + 1)
    weighted = np.minimum(1, 2 * (1 - lags / half_window)) * covariance[1 : half_window + 1]
    spectrum = float(covariance[0] + 2 * weighted.sum())
    if spectrum <= covariance[0]:
        return 0.0
    return max(0.0, float(2 * (lags * weighted).sum()) / spectrum)


def _significant_lags(correlation: FloatArray) -> int:
    n = correlation.size
    limit, run = 2 * sqrt(log10(n) / n), max(5, ceil(sqrt(log10(n))))
    small = np.abs(correlation[1 : n // 3 + run + 1]) < limit
    quiet = np.flatnonzero(np.convolve(small, np.ones(run), mode="valid") == run)
    return max(1, int(quiet[0])) if quiet.size else small.size


def _reach_by_first(series: FloatArray, covariance: FloatArray) -> float:
    """Estimate the reach from first autocorrelations, of the series and of its means over more and more."""
    n, variance = series.size, float(covariance[0])
    reach = _reach_of_first(float(covariance[1]) / variance, n)
    for width in MEANS_OVER:
        num_means = n // width
        if num_means < FEWEST_MEANS:
            break
        means = series[: num_means * width].reshape(num_means, width).mean(axis=1)
        deviations = means - means.mean()
        square = float(deviations @ deviations)
        if square * width >= variance * num_means:  # less than independent values would have is no reach
            first = float(deviations[1:] @ deviations[:-1]) / square
            reach = max(reach, width * _reach_of_first(first, num_means))
    return reach


def _reach_of_first(first: float, num_values: int) -> float:
    """Return the reach of an AR(1) process, of which so many values gave this first autocorrelation."""
    if first <= MORE_THAN_NOISE / sqrt(num_values):
        return 0.0
    first = _unbiased(first, num_values)
    return 2 * first / (1 - first**2)


def _unbiased(first: float, num_values: int) -> float:
    return min(0.9999, first + (1 + 4 * first) / num_values)


def _short_of_first(series: FloatArray, covariance: FloatArray, length: int) -> float:
    """Return the variance of a mean of an AR(1) process like the series over that of its blocks."""
    n = series.size
    first = float(covariance[1] / covariance[0])
    if first <= MORE_THAN_NOISE / sqrt(n):
        return 1.0
    first = _unbiased(first, n)
    running = np.concatenate([[0.0], np.cumsum(series - series.mean())])
    of_blocks = float((running[length:] - running[:-length]).var()) / length
    of_ar1 = float(covariance[0]) * (1 + first) / (1 - first)
    return of_ar1 / of_blocks if of_blocks > 0 else 1.0
