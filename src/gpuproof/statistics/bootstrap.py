"""Estimate how much a statistic of an autocorrelated series would vary if it were sampled again.

Neighbouring steps are correlated (clocks, temperature, queues), so individual values must not be resampled.
Instead, blocks of neighbouring values are resampled (moving-block bootstrap, Künsch 1989). The input is a
series; the output is the statistic's values across resamples, and their interval at a given confidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log10, sqrt
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gpuproof.statistics.distributions import normal_cdf, student_t_quantile
from gpuproof.statistics.estimate import FloatArray, interpolate, median

LONGER_BLOCKS = 1.5
"""Factor applied to the published block length. That length is optimal for the variance, but intervals of
strongly autocorrelated series contain the true value too rarely. Longer blocks recover most of that coverage
at little cost to other series."""
LARGEST_SHORTFALL = 1 / 3
"""Maximum fraction of the variance that blocks may miss because of their length; it is corrected for
afterwards."""
FEWEST_BLOCKS = 3
"""Minimum number of blocks per series, however strongly values are correlated."""
MEANS_OVER = (2, 4, 8, 16, 32)
FEWEST_MEANS = 30
"""Minimum number of values from which an autocorrelation is estimated."""
MORE_THAN_NOISE = 1.64
"""Significance limit for a lag-1 autocorrelation, times √n: one in twenty series of independent values
exceeds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How a series is cut into blocks."""

    length: int
    """Block length, in values."""
    variance_factor: float
    """Factor by which the variance of resampled blocks must be multiplied; at least 1."""


def choose_blocks(series: FloatArray) -> Blocks:
    """Choose blocks from the autocorrelation of `series`.

    The length is (1.5·reach²·n)^⅓ (Politis and White 2004, as corrected by Patton, Politis and White 2009,
    for blocks of fixed length) times `LONGER_BLOCKS`, or reach/`LARGEST_SHORTFALL` if that is longer. It is
    at most n/`FEWEST_BLOCKS`, rounded up, and 1 for a constant series or fewer than 8 values.

    The factor restores the variance that is lost because of the block length, or raises it to that of an
    AR(1) process with the series' lag-1 autocorrelation, because series that look less correlated than they
    are get blocks that are too short.
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
    """Estimate the reach with the flat-top window; 0 if neighbours are not positively correlated.

    The window is twice as wide as the lag after which √log₁₀n or at least 5 consecutive autocorrelations are
    below 2·√(log₁₀n/n); the first third of the lags is searched.
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
    """Estimate the reach from lag-1 autocorrelations of the series and of means of increasing width."""
    n, variance = series.size, float(covariance[0])
    reach = _reach_of_first(float(covariance[1]) / variance, n)
    for width in MEANS_OVER:
        num_means = n // width
        if num_means < FEWEST_MEANS:
            break
        means = series[: num_means * width].reshape(num_means, width).mean(axis=1)
        deviations = means - means.mean()
        square = float(deviations @ deviations)
        # a variance below that of independent values means a reach of 0
        if square * width >= variance * num_means:
            first = float(deviations[1:] @ deviations[:-1]) / square
            reach = max(reach, width * _reach_of_first(first, num_means))
    return reach


def _reach_of_first(first: float, num_values: int) -> float:
    """Return the reach of an AR(1) process with this lag-1 autocorrelation over this many values."""
    if first <= MORE_THAN_NOISE / sqrt(num_values):
        return 0.0
    first = _unbiased(first, num_values)
    return 2 * first / (1 - first**2)


def _unbiased(first: float, num_values: int) -> float:
    return min(0.9999, first + (1 + 4 * first) / num_values)


def _short_of_first(series: FloatArray, covariance: FloatArray, length: int) -> float:
    """Return the variance of an AR(1) process's mean, divided by the variance that its blocks imply."""
    n = series.size
    first = float(covariance[1] / covariance[0])
    if first <= MORE_THAN_NOISE / sqrt(n):
        return 1.0
    first = _unbiased(first, n)
    running = np.concatenate([[0.0], np.cumsum(series - series.mean())])
    of_blocks = float((running[length:] - running[:-length]).var()) / length
    of_ar1 = float(covariance[0]) * (1 + first) / (1 - first)
    return of_ar1 / of_blocks if of_blocks > 0 else 1.0


Starts: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Start positions of blocks: one row per resample, one column per block."""
RowStatistic: TypeAlias = Callable[[FloatArray], FloatArray]
"""A function that returns one number per row of a matrix, such as `lambda rows: rows.max(axis=1)`."""
Centre: TypeAlias = Literal["mean", "median"] | RowStatistic

CHUNK_VALUES = 2**20
"""Number of values resampled at a time: 8 MB, regardless of the series length and the number of resamples."""
MOST_RESAMPLED_VALUES = 10**8
"""Maximum number of values to resample; for medians, this takes about a second and a half, which is the time
budget for a series of a million steps."""
DRAWS_KEPT = 32
"""Number of draws that are cached for the next series of the same length."""
LARGE_BYTES = 2_500_000
"""Size of block starts, in bytes, above which they are stored in the smallest type that fits them."""
MOST_COUNTED = 255
"""Maximum series length for finding medians by counting, so that a count fits in a byte."""
FEWEST_RESAMPLES = 300
"""Number of resamples: enough to determine the ends of a 95 % interval to about a tenth of its width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampled:
    """A statistic of a series, and its values over resamples of the series."""

    statistic: float
    resamples: FloatArray
    num_values: int
    num_blocks: int
    """Number of blocks in the series, i.e. of nearly independent pieces."""


def resample(
    values: FloatArray,
    *,
    centre: Centre,
    weights: FloatArray | None = None,
    num_resamples: int,
    rng: np.random.Generator,
) -> Resampled:
    """Resample blocks of `values`, which are in time order, and compute each resample's `centre`.

    With `weights`, which require "mean", the statistic is the weighted mean. The block length is chosen from
    each value's influence on the statistic. For the median, the influence reflects only the side on which a
    value lies, so one huge value cannot hide the autocorrelation of the rest. The variance lost because of
    the block length is restored by moving the resamples away from their mean.
    """
    if centre == "mean":
        return _resample_means(values, weights, num_resamples, rng)
    if weights is not None:
        raise ValueError("weights are supported for the mean only")
    num_resamples = min(num_resamples, max(FEWEST_RESAMPLES, MOST_RESAMPLED_VALUES // values.size))
    if centre == "median":
        observed = median(values)
        blocks = choose_blocks(np.sign(values - observed))
        chunks = _resampled_medians(values, blocks.length, num_resamples, rng)
    else:
        observed = float(centre(values[np.newaxis].copy())[0])
        blocks = choose_blocks(values)
        chunks = [centre(rows) for rows in _rows(values, blocks.length, num_resamples, rng)]
    return _resample(observed, chunks, blocks, values.size)


def _resample(statistic: float, chunks: Sequence[FloatArray], blocks: Blocks, num_values: int) -> Resampled:
    resamples = np.concatenate(chunks)
    if blocks.variance_factor > 1:
        middle = resamples.mean()
        resamples = middle + sqrt(blocks.variance_factor) * (resamples - middle)
    return Resampled(
        statistic=statistic,
        resamples=resamples,
        num_values=num_values,
        num_blocks=num_values // blocks.length,
    )


def expanded_interval(
    resamples: FloatArray, confidence: float, degrees_of_freedom: float
) -> tuple[float, float]:
    """Cut the resampled statistics at both ends so that the stated confidence is reached.

    Resamples of n pieces have a standard deviation that is too small by √((n − 1)/n), and their percentiles
    ignore that the variance is an estimate, so plain percentile intervals contain the true value too rarely.
    Hesterberg (2015, What Teachers Should Know about the Bootstrap, The American Statistician 69) cuts
    Φ(−√(n/(n − 1))·t) instead of (1 − confidence)/2 from each end, where t is Student's quantile with n − 1
    degrees of freedom. If there are too few resamples for a tail this small, a normal distribution is
    assumed: their mean ± √(n/(n − 1))·t·sd.
    """
    inflation = sqrt((degrees_of_freedom + 1) / degrees_of_freedom)
    reach = -inflation * student_t_quantile(degrees_of_freedom, (1 - confidence) / 2)
    tail = normal_cdf(-reach)
    if tail * (resamples.size + 1) < 1:
        mean, half_width = float(resamples.mean()), reach * float(resamples.std())
        return mean - half_width, mean + half_width
    ordered = np.sort(resamples)
    first, last = (resamples.size * share + share - 1 for share in (tail, 1 - tail))  # "weibull"
    return interpolate(ordered, first), interpolate(ordered, last)


def _rows(values: Any, length: int, num_resamples: int, rng: np.random.Generator) -> Iterator[Any]:
    """Yield the resamples as rows of matrices that the caller may modify, with the dtype of `values`."""
    blocks = sliding_window_view(values, length)
    for starts in _block_starts(values.size, length, num_resamples, rng):
        if length == 1:
            yield values[starts]  # three times as fast as using blocks of length one
        else:
            yield blocks[starts].reshape(len(starts), -1)[:, : values.size]


def _block_starts(size: int, length: int, num_resamples: int, rng: np.random.Generator) -> Iterator[Starts]:
    for rows in _chunks(size, num_resamples):
        starts = _replay(_draw_starts, rng, size, length, rows)
        yield starts.astype(np.int64, copy=False)  # three times as fast for lookups


def _chunks(size: int, num_resamples: int) -> Iterator[int]:
    """Yield the rows of each chunk."""
    per_chunk = max(1, CHUNK_VALUES // size)
    for done in range(0, num_resamples, per_chunk):
        yield min(per_chunk, num_resamples - done)


def _replay(draw: Callable[..., Any], rng: np.random.Generator, *arguments: int) -> Any:
    """Draw from `rng`, or reuse earlier draws from the same state; either way, it advances equally.

    Launches have the same number of steps and use the same seed, and drawing random numbers takes as long as
    everything else combined.
    """
    drawn, after = _draw(draw, json.dumps(rng.bit_generator.state), *arguments)
    rng.bit_generator.state = json.loads(after)
    return drawn


@lru_cache(maxsize=DRAWS_KEPT)
def _draw(draw: Callable[..., Any], state: str, *arguments: int) -> tuple[Any, str]:
    before = json.loads(state)
    rng = np.random.Generator(getattr(np.random, before["bit_generator"])(0))
    rng.bit_generator.state = before
    return draw(rng, *arguments), json.dumps(rng.bit_generator.state)


def _draw_starts(rng: np.random.Generator, size: int, length: int, rows: int) -> Any:
    starts: Starts = rng.integers(0, size - length + 1, size=(rows, ceil(size / length)))
    return starts if starts.nbytes <= LARGE_BYTES else starts.astype(np.min_scalar_type(size - length + 1))


def _draw_counts(rng: np.random.Generator, size: int, length: int, num_resamples: int) -> Any:
    """Count how often each value occurs in each resample: one row per value, one column per resample."""
    parts = []
    for rows in _chunks(size, num_resamples):
        starts = _draw_starts(rng, size, length, rows).astype(np.int64, copy=False)
        whole, last = starts[:, :-1], starts[:, -1]
        places = whole + size * np.arange(rows)[:, np.newaxis]
        begun = np.bincount(places.ravel(), minlength=rows * size).reshape(rows, size).T.astype(np.uint8)
        counts = begun.copy()
        for shift in range(1, length):
            counts[shift:] += begun[:-shift]
        for shift in range(size - length * whole.shape[1]):
            counts[last + shift, np.arange(rows)] += 1
        parts.append(counts)
    return np.concatenate(parts, axis=1)


def _resampled_medians(
    values: FloatArray, length: int, num_resamples: int, rng: np.random.Generator
) -> list[FloatArray]:
    """Compute medians from ranks instead of values: small integers are quick to count or sort."""
    order, upper = np.argsort(values), values.size // 2
    lower = upper - 1 + values.size % 2
    ordered = values[order]
    if values.size <= MOST_COUNTED:
        counts = _replay(_draw_counts, rng, values.size, length, num_resamples)
        first, second = _ranks(counts[order], lower, upper)
        return [(ordered[first] + ordered[second]) / 2]
    ranks = np.empty(values.size, dtype=np.min_scalar_type(values.size))
    ranks[order] = np.arange(values.size)
    chunks = []
    for rows in _rows(ranks, length, num_resamples, rng):
        rows.partition((lower, upper), axis=1)  # takes half as long as sorting
        chunks.append((ordered[rows[:, lower]] + ordered[rows[:, upper]]) / 2)
    return chunks


def _ranks(counts: Any, lower: int, upper: int) -> tuple[Any, Any]:
    """Find, per column, the ranks with more than `lower` and more than `upper` values below them.

    Medians of resamples lie near the middle, so the lowest ranks are processed together and the highest ranks
    not at all.
    """
    begin, step = 0, max(1, len(counts) // 16)
    seen = np.zeros(counts.shape[1], dtype=np.uint8)
    while begin + step <= len(counts):
        more = seen + counts[begin : begin + step].sum(axis=0, dtype=np.uint8)
        if more.max() > lower:
            break
        seen, begin = more, begin + step
    first, second = (np.full(counts.shape[1], begin, dtype=np.uint8) for _ in range(2))
    under = np.empty(counts.shape[1], dtype=bool)
    ones = under.view(np.uint8)  # adding booleans takes twice as long as adding numbers
    for rank in range(begin, len(counts)):
        seen += counts[rank]
        np.less_equal(seen, lower, out=under)
        first += ones
        np.less_equal(seen, upper, out=under)
        second += ones
        if rank % step == 0 and not under.any():
            break
    return first, second


def _resample_means(
    values: FloatArray, weights: FloatArray | None, num_resamples: int, rng: np.random.Generator
) -> Resampled:
    """Compute the means of resamples; block sums are looked up, so each block costs one addition."""
    factors = np.ones_like(values) if weights is None else weights
    # Relative to the first value, because otherwise rounding could make equal readings look like a trend.
    mean = float(values[0] + np.average(values - values[0], weights=factors))
    influence = factors * (values - mean)
    blocks = choose_blocks(influence)
    chunks = []
    for starts in _block_starts(values.size, blocks.length, num_resamples, rng):
        totals = float(values.size) if weights is None else _sums_of_blocks(weights, starts, blocks.length)
        chunks.append(mean + _sums_of_blocks(influence, starts, blocks.length) / totals)
    return _resample(mean, chunks, blocks, values.size)


def _sums_of_blocks(values: FloatArray, starts: Starts, length: int) -> FloatArray:
    """Sum each row's blocks; the last block is cut so that each row has as many values as the series."""
    running = np.concatenate([[0.0], np.cumsum(values)])
    last = values.size - length * (starts.shape[1] - 1)
    blocks = (running[length:] - running[:-length])[starts]
    if last != length:
        blocks[:, -1] = (running[last:] - running[:-last])[starts[:, -1]]
    sums: FloatArray = blocks.sum(axis=1)
    return sums
