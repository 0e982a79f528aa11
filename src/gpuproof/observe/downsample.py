"""How is a day of readings drawn in a thousand points, with no spike lost?

In: times, a column with NaN where there was no reading, and how many pieces the picture can show.
Out: for each piece of equal time its lowest, highest and mean reading. A hole in the readings becomes
NaN, so that a line breaks there and is not drawn across.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuproof.readings.recording import Floats
from gpuproof.readings.series import longest_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A column as a picture shows it, in the column's unit."""

    time_s: Floats
    low: Floats
    high: Floats
    mean: Floats
    reduced: bool
    """Whether pieces hold more than one reading, so that `low` and `high` differ from `mean`."""


def envelope(time_s: Floats, column: Floats, *, pieces: int) -> Envelope:
    """Reduce a column to at most about `pieces` points, and break it where readings are missing."""
    given = ~np.isnan(column)
    times, values = time_s[given], column[given]
    if len(times) <= 2 * pieces:
        times, values = _with_breaks(times, values)
        return Envelope(time_s=times, low=values, high=values, mean=values, reduced=False)
    width = (times[-1] - times[0]) / pieces
    piece = np.minimum(((times - times[0]) / width).astype(np.int64), pieces - 1)
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    counts = np.diff(np.append(starts, len(piece)))
    filled = piece[starts]
    return Envelope(
        time_s=times[0] + (np.arange(pieces) + 0.5) * width,
        low=_scatter(filled, np.minimum.reduceat(values, starts), pieces),
        high=_scatter(filled, np.maximum.reduceat(values, starts), pieces),
        mean=_scatter(filled, np.add.reduceat(values, starts) / counts, pieces),
        reduced=True,
    )


def _scatter(places: np.ndarray[tuple[int], np.dtype[np.int64]], values: Floats, length: int) -> Floats:
    column = np.full(length, np.nan)
    column[places] = values
    return column


def _with_breaks(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Put a NaN into every hole."""
    holes = np.flatnonzero(np.diff(times) > longest_step_s(times)) + 1
    return np.insert(times, holes, times[holes]), np.insert(values, holes, np.nan)
