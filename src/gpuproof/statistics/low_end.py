"""Estimate the variance of a recording's mean between repeats from the low end of its spectrum.

The variance of a long mean is the spectrum at frequency 0 divided by the number of values, however
neighbouring values are correlated. The input is a series in time order. The output is that variance,
estimated from the series' lowest cosine components, which are independent pieces of the slow changes (Müller
2007, A theory of robust long-run variance estimation, Journal of Econometrics 141; Lazarus, Lewis, Stock and
Watson 2018, HAR Inference, Journal of Business and Economic Statistics 36). A model of white noise with an
AR(1) part is also fitted (Whittle's likelihood). If the spectrum still rises towards 0, only pieces up to
half the bend's frequency are used, and the variance that they miss is restored. A series with fewer than
`FEWEST_PIECES` of them is too short.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Unavailable,
    check_confidence,
    welch_degrees_of_freedom,
)
from gpuproof.statistics.series import TimeSeries

VALUES_A_PIECE = 50
"""Number of values per piece of a short series. A slow part with a third of the variance and a memory of 33
values (φ 0.97) is detected within 150 values; with fewer values, there are few pieces, and so the interval is
wide."""
UNSEEN = 2.0
"""Factor for the variance of a series with two pieces, in which a slow part may be present but cannot be
seen."""
FEWEST_PIECES = 5
"""Minimum number of pieces if a slow part was detected, i.e. ten components instead of two."""
SLOW_FROM = 4.0
"""Twice the log-likelihood gain at which a slow part counts as detected; 1 in 60 white-noise series reaches
it."""
STEEPEST = 4096
"""Maximum ratio of the slow part to the noise at frequency 0; the ratios tried are powers of 2 starting at
1."""
LONGEST_BEAT = 20
"""Maximum number of readings per period for which a signal in step with its readings is detected."""
IN_STEP = 0.9
"""Correlation above which values a fixed number of positions apart are considered to be at the same point of
the period."""
OUT_OF_STEP = 0.5
"""Maximum correlation at some smaller lag; a slowly changing signal exceeds it at all of them."""
BENDS_APART = 1.5
METHOD = "Student's t, variance from the low end of the spectrum"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowEnd:
    """The mean of a series, and its precision."""

    mean: float
    variance: float
    """Variance of the mean."""
    freedom: int
    """Degrees of freedom of the variance: the number of independent pieces, minus one if a slow part was
    fitted."""


def low_end(series: TimeSeries) -> LowEnd | Unavailable:
    """Return the mean (weighted by durations, if given) and its variance.

    Raises:
        ValueError: the series is malformed.
    """
    values, weights = series.arrays()
    if values.size < VALUES_A_PIECE:
        return Unavailable(
            reason=f"too few values to detect slow changes (at least {VALUES_A_PIECE} needed, "
            f"{values.size} measured)"
        )
    shares = np.ones_like(values) if weights is None else weights / weights.mean()
    # Values relative to the first, so that rounding does not introduce a trend into equal readings.
    mean = float(values[0] + np.mean(shares * (values - values[0])))
    power = _cosine_power(shares * (values - mean))
    if not power.any():
        return LowEnd(mean=mean, variance=0.0, freedom=values.size - 1)
    bend, steepness = _slow_part(power)
    num_pieces = min(values.size // VALUES_A_PIECE, max(3, int(sqrt(values.size) / 3)))
    if bend is not None:
        if bend / 2 < FEWEST_PIECES:
            return Unavailable(
                reason=f"too short: {values.size:,} values drift, or change so slowly that they "
                f"contain too few independent pieces ({int(bend / 2)}; at least "
                f"{FEWEST_PIECES} needed)"
            )
        num_pieces = max(3, min(num_pieces, int(bend / 2)))
    lacking = 1.0 if num_pieces > 2 else UNSEEN
    if bend is not None:
        seen = 1 + steepness / (1 + (np.arange(1, num_pieces + 1) / bend) ** 2)
        lacking = (1 + steepness) / float(seen.mean())
    variance = lacking * float(power[:num_pieces].mean()) / values.size
    return LowEnd(mean=mean, variance=variance, freedom=num_pieces - (bend is not None))


def error_in_step(values: FloatArray) -> float:
    """Return how far off the mean may be if readings are in step with a periodic signal; otherwise 0.

    On a straight slope, k readings per period at fixed positions have a mean that is wrong by up to half the
    distance between two of them, however many periods there are. Readings at random times are never in step
    with the signal. A single reading per period does not reveal the signal.
    """
    away = values - values.mean()
    power = float((away * away).mean())
    if values.size < 4 * LONGEST_BEAT or power == 0:
        return 0.0
    apart = range(1, LONGEST_BEAT + 1)
    correlations = [float((away[k:] * away[:-k]).mean()) / power for k in apart]
    for k, correlation in zip(apart, correlations, strict=True):
        if correlation > IN_STEP and min(correlations[:k]) < OUT_OF_STEP:
            return float(values.max() - values.min()) / 2 / (k - 1)
    return 0.0


def difference_of_means(first: LowEnd, second: LowEnd, *, confidence: float) -> Interval:
    """Return the interval of second − first for two independent series (Welch's method)."""
    variance = first.variance + second.variance
    variances, freedoms = (first.variance, second.variance), (first.freedom, second.freedom)
    freedom = welch_degrees_of_freedom(variances, freedoms) if variance else float(min(freedoms))
    reach = student_t_quantile(freedom, (1 + check_confidence(confidence)) / 2) * sqrt(variance)
    centre = second.mean - first.mean
    return Interval(
        low=centre - reach,
        high=centre + reach,
        centre=centre,
        confidence=confidence,
        method=METHOD,
        num_launches=2,
        num_samples=sum(freedoms),
        between_launches=False,
    )


def _cosine_power(values: FloatArray) -> FloatArray:
    """Return the squares of the orthonormal cosine components (DCT-II), starting with the first.

    This uses a single Fourier transform of the values at even positions followed by those at odd positions in
    reverse (Makhoul 1980, IEEE Transactions on Acoustics, Speech, and Signal Processing 28).
    """
    spectrum = np.fft.fft(np.concatenate([values[::2], values[1::2][::-1]]))
    turned = spectrum * np.exp(-0.5j * np.pi / values.size * np.arange(values.size))
    power: FloatArray = np.square(turned.real[1:]) * (2 / values.size)
    return power


def _slow_part(power: FloatArray) -> tuple[float | None, float]:
    """Return the component up to which the slow part is flat, and its ratio to the noise at 0.

    The component is None if white noise explains the components equally well.
    """
    bends, steepness, inverse, logarithms = _spectra(power.size)
    # The scale is a free parameter, so this is -2 log likelihood up to a constant.
    misfit = logarithms + power.size * np.log(np.maximum(inverse @ power, np.finfo(float).tiny))
    best = int(misfit.argmin())
    if misfit[0] - misfit[best] <= SLOW_FROM:
        return None, 0.0
    return float(bends[best]), float(steepness[best])


@lru_cache(maxsize=8)
def _spectra(num: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return bends and steepness of white-plus-slow spectra, their inverses and sums of logarithms.

    The first spectrum is white noise alone.
    """
    places = np.arange(1, num + 1)
    pairs = [(1.0, 0.0)]
    bend = 1.0
    while bend < num:
        pairs += [(bend, 2.0**power) for power in range(int(np.log2(STEEPEST)) + 1)]
        bend *= BENDS_APART
    bends, steepness = np.array(pairs).T
    spectra = 1 + steepness[:, None] / (1 + (places / bends[:, None]) ** 2)
    return bends, steepness, 1 / spectra, np.log(spectra).sum(axis=1)
