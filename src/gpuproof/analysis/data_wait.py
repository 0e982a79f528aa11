"""Did the device wait for data?

Only where a loader ran: with all samples on the device before the window there is nothing to wait for, and
every answer is None. The rank that waited longest decides, since all others wait for it in every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.analysis.launch import Launch
from gpuproof.records.run import Window


def data_wait_share(launches: Sequence[Launch]) -> float | None:
    """Return the share of all windows together that was waited; None where no loader ran.

    >>> data_wait_share([]) is None
    True
    """
    waits = [waiting_window(launch) for launch in launches]
    pairs = [(w.data_wait_s, w.wall_s) for w in waits if w is not None and w.data_wait_s is not None]
    if not pairs or len(pairs) < len(launches):
        return None
    return sum(wait_s for wait_s, _ in pairs) / sum(wall_s for _, wall_s in pairs)


def waiting_window(launch: Launch) -> Window | None:
    """Return the window of the rank that waited longest; None where none waited by a clock."""
    windows = [window for window in launch.windows if window.data_wait_s is not None]
    return max(windows, key=lambda window: window.data_wait_s or 0.0, default=None)
