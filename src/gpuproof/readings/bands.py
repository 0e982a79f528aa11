"""Where do the readings of many devices lie, stretch by stretch? Quantiles for a picture of a long time.

In: columns of several devices over the same times. Out: for each of some stretches the quantiles of all
readings in it, NaN where there is none. Extremes are left out: of a day's noise they fill the picture.

>>> bands(np.arange(4.0), [np.array([1.0, 2.0, 3.0, np.nan])], pieces=2, shares=(0.0, 1.0)).levels.tolist()
[[1.0, 3.0], [2.0, 3.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from gpuproof.readings.recording import Floats

MIDDLE: Final = (0.05, 0.25, 0.75, 0.95)
"""The ends of the middle 90 % and of the middle half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Quantiles over time."""

    time_s: Floats
    """The middle of each stretch."""
    levels: Floats
    """A row for each share asked for, a column for each stretch."""


def bands(
    time_s: Floats, columns: Sequence[Floats], *, pieces: int, shares: Sequence[float] = MIDDLE
) -> Bands:
    """Cut the time into equal stretches and give the quantiles of all columns' readings in each.

    There must be two times at least.
    """
    edges = np.linspace(time_s[0], time_s[-1], pieces + 1)
    starts = np.searchsorted(time_s, edges)
    starts[-1] = len(time_s)
    levels = np.full((len(shares), pieces), np.nan)
    for piece, (first, after) in enumerate(pairwise(starts)):
        values = np.concatenate([column[first:after] for column in columns])
        values = values[~np.isnan(values)]
        if len(values):
            levels[:, piece] = np.quantile(values, shares)
    return Bands(time_s=(edges[1:] + edges[:-1]) / 2, levels=levels)
