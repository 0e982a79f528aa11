"""Did the device wait for data? Shares of a window, and the doubts that follow from them.

Only where a loader ran: with all samples on the device before the window there is nothing to wait for, and
every answer is None. The slowest rank speaks for all, since all others wait for it in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.analysis.launch import Launch
from gpuproof.analysis.validity import Finding
from gpuproof.records.run import Window
from gpuproof.units import count, share

DATA_BOUND = 0.05
"""Share of the window from which waiting is a doubt. Without it a device would do 1 / (1 - 0.05) = 1.05
times the work, as far off as an interval that is called wide (±5 %): such a rate is the loader's as well."""
READY_BEFORE = 0.10
"""Share of the window's batches that may have been made before it. A loader that never ran dry made the
others in time, so that it keeps up with at least 1 - 0.10 = 90 % of the rate that is printed."""


def data_wait_share(launches: Sequence[Launch]) -> float | None:
    """Return the share of all windows together that was waited; None where no loader ran.

    >>> data_wait_share([]) is None
    True
    """
    waits = [waiting_window(launch) for launch in launches]
    known = [(w.data_wait_s, w.wall_s) for w in waits if w is not None and w.data_wait_s is not None]
    if not known or len(known) < len(launches):
        return None
    return sum(wait_s for wait_s, _ in known) / sum(wall_s for _, wall_s in known)


def waiting_window(launch: Launch) -> Window | None:
    """Return the window of the rank that waited longest; None where none waited by a clock."""
    windows = [window for window in launch.windows if window.data_wait_s is not None]
    return max(windows, key=lambda window: window.data_wait_s or 0.0, default=None)


def data_findings(launch: Launch) -> Iterator[Finding]:
    """Return the doubts about one launch that come from its loader."""
    window = waiting_window(launch)
    if window is None or window.data_wait_s is None:
        return
    waited = window.data_wait_s / window.wall_s
    if waited > DATA_BOUND:
        yield Finding(
            validity="SUSPECT",
            code="data-bound",
            reason=f"steps waited for data for {share(waited)} of the window (rank {window.rank}): this is "
            "the rate of the loader, not of the device",
            remedy="Raise data.num_workers or data.prefetch_factor, or measure the device alone with "
            "data.loading=device",
        )
    ready = batches_ready_share(launch)
    if ready is not None and ready > READY_BEFORE:
        used = launch.setup.data_used
        yield Finding(
            validity="SUSPECT",
            code="made-before",
            reason=f"{count(used.batches_ahead if used else None)} batches may have been ready when the "
            f"window began, {share(min(1.0, ready))} of all that it took: the loader may be slower than this",
            remedy="Measure longer, or lower data.prefetch_factor or data.num_workers",
        )


def batches_ready_share(launch: Launch) -> float | None:
    """Return what may have been ready before the window, over what the window took; None without a loader."""
    used, window = launch.setup.data_used, launch.slowest
    if used is None or used.loading != "loader":
        return None
    samples = window.items / launch.setup.items_per_sample
    return used.batches_ahead * launch.case.data.batch_size / samples
