"""How far would the mean of a recording have moved, had it been made again? By the low end of its spectrum.

The variance of a long mean is the spectrum at frequency 0 over the number of values, whatever the values do
from one to the next. In comes a series in order of time; out goes that variance from its lowest cosine
components, which are independent pieces of what changes slowly (Müller 2007, A theory of robust long-run
variance estimation, Journal of Econometrics 141; Lazarus, Lewis, Stock and Watson 2018, HAR Inference,
Journal of Business and Economic Statistics 36). White noise with an AR(1) part is fitted besides (Whittle's
likelihood): where the spectrum still rises towards 0, the pieces reach no further than to half of the bend,
what they lack is put back, and a series that holds fewer than `FEWEST_PIECES` of them is too short.
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
"""Values for each piece of a short series. A slow part of a third of the variance that is forgotten over 33
values (φ 0.97) shows in 150; fewer of them get few pieces, and so a wide interval."""
UNSEEN = 2.0
"""Times the variance of a series of two pieces: it shows no slow part, and may have one."""
FEWEST_PIECES = 5
"""Of a series in which a slow part was seen: ten of two."""
SLOW_FROM = 4.0
"""Twice the gain in likelihood from which a slow part counts as seen: of white series 1 in 60 shows it."""
STEEPEST = 4096
"""Slow part over the noise beside it, at frequency 0, in powers of 2 from 1 on."""
LONGEST_BEAT = 20
"""Readings a period up to which a signal that keeps step with its readings is looked for."""
IN_STEP = 0.9
"""Correlation of values that many places apart from which they are the same part of the period again …"""
OUT_OF_STEP = 0.5
"""… where values between them are correlated by less, as those of what merely changes slowly are not."""
BENDS_APART = 1.5
METHOD = "Student's t, variance from the low end of the spectrum"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowEnd:
    """The mean of a series and how well it is known."""

    mean: float
    variance: float
    """Of the mean."""
    freedom: int
    """Degrees of freedom of the variance: independent pieces, less one where a slow part was fitted."""


def low_end(series: TimeSeries) -> LowEnd | Unavailable:
    """Return the mean, weighted by durations where there are any, with its variance.

    Raises:
        ValueError: the series is ill-formed.
    """
    values, weights = series.arrays()
    if values.size < VALUES_A_PIECE:
        return Unavailable(
            reason="too few values to show what changes slowly "
            f"(at least {VALUES_A_PIECE} needed, {values.size} measured)"
        )
    shares = np.ones_like(values) if weights is None else weights / weights.mean()
    # About the first value, so that rounding gives equal readings no trend.
    mean = float(values[0] + np.mean(shares * (values - values[0])))
    power = _cosine_power(shares * (values - mean))
    if not power.any():
        return LowEnd(mean=mean, variance=0.0, freedom=values.size - 1)
    bend, steepness = _slow_part(power)
    num_pieces = min(values.size // VALUES_A_PIECE, max(3, int(sqrt(values.size) / 3)))
    if bend is not None:
        if bend / 2 < FEWEST_PIECES:
            return Unavailable(
                reason=f"too short: {values.size:,} values drift, or change so slowly that they hold too few "
                f"independent pieces ({int(bend / 2)}; at least {FEWEST_PIECES} needed)"
            )
        num_pieces = max(3, min(num_pieces, int(bend / 2)))
    lacking = 1.0 if num_pieces > 2 else UNSEEN
    if bend is not None:
        seen = 1 + steepness / (1 + (np.arange(1, num_pieces + 1) / bend) ** 2)
        lacking = (1 + steepness) / float(seen.mean())
    variance = lacking * float(power[:num_pieces].mean()) / values.size
    return LowEnd(mean=mean, variance=variance, freedom=num_pieces - (bend is not None))


def error_in_step(values: FloatArray) -> float:
    """Return how far the mean may be off where readings keep step with a periodic signal; else 0.

    Of a straight slope, k readings of each period at the same places have a mean that is wrong by up to half
    of what lies between two of them, however many periods there are. Readings at random moments do not keep
    step; one reading of a period shows nothing of it.
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
    """Return the interval of second − first, of two independent series (Welch's)."""
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
    """Return the squares of the orthonormal cosine components (DCT-II) from the first on.

    By one Fourier transform of the even places and then the odd ones backwards (Makhoul 1980, IEEE
    Transactions on Acoustics, Speech, and Signal Processing 28).
    """
    spectrum = np.fft.fft(np.concatenate([values[::2], values[1::2][::-1]]))
    turned = spectrum * np.exp(-0.5j * np.pi / values.size * np.arange(values.size))
    power: FloatArray = np.square(turned.real[1:]) * (2 / values.size)
    return power


def _slow_part(power: FloatArray) -> tuple[float | None, float]:
    """Return up to which component the slow part is level, and how far it stands over the noise, at 0.

    None where white noise explains the components as well.
    """
    bends, steepness, inverse, logarithms = _spectra(power.size)
    # Scale is free: what remains of -2 log likelihood but for a constant.
    misfit = logarithms + power.size * np.log(np.maximum(inverse @ power, np.finfo(float).tiny))
    best = int(misfit.argmin())
    if misfit[0] - misfit[best] <= SLOW_FROM:
        return None, 0.0
    return float(bends[best]), float(steepness[best])


@lru_cache(maxsize=8)
def _spectra(num: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return bends and steepness of white spectra with a slow part, their inverses and sums of logarithms.

    The first is white alone.
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
