"""How long each throttler of an AMD Instinct held it back, from the firmware's cycle counts.

The firmware counts cycles, and cycles under each throttler, both since it started. A step between two
tables is turned into seconds with the firmware's own clock and added up, from the first table on.
"""

from __future__ import annotations

from gpuproof.devices.amd.gpu_metrics import FIRMWARE_TICK_S, RESIDENCIES
from gpuproof.devices.base import NotSupportedError

_WRAP = 2**32


class ResidencyClock:
    """Seconds under each throttler since the first table."""

    def __init__(self) -> None:
        self._previous: dict[str, int] | None = None
        self._seconds = dict.fromkeys(RESIDENCIES, 0.0)
        self._active: tuple[str, ...] | None = None

    def advance(self, table: dict[str, int]) -> None:
        """Take the next table; one without residencies is passed over."""
        if not _complete(table):
            return
        previous, self._previous = self._previous, table
        if previous is None:
            return
        cycles = (table["accumulation_counter"] - previous["accumulation_counter"]) % _WRAP
        elapsed_s = (table["firmware_timestamp"] - previous["firmware_timestamp"]) * FIRMWARE_TICK_S
        if cycles == 0 or elapsed_s <= 0:  # the firmware has not written since
            return
        steps = {field: (table[field] - previous[field]) % _WRAP for field in RESIDENCIES}
        self._active = tuple(RESIDENCIES[field] for field, step in steps.items() if step)
        for field, step in steps.items():
            self._seconds[field] += step / cycles * elapsed_s

    def seconds(self, field: str, table: dict[str, int], refusal: str) -> float:
        """Return the seconds so far under one throttler.

        Raises:
            NotSupportedError: this card's table does not count them.
        """
        if not _complete(table):
            raise NotSupportedError(
                refusal or "this gpu_metrics table does not count throttling (before 1.6)"
            )
        return self._seconds[field]

    def reasons(self, table: dict[str, int]) -> tuple[tuple[str, ...] | None, str]:
        """Return what held the card back between the last two tables, or None and why not known."""
        if not _complete(table):
            return None, "this gpu_metrics table has no throttle status that holds for every card"
        return (
            self._active,
            "" if self._active is not None else "a difference of two readings; this is the first",
        )


def _complete(table: dict[str, int]) -> bool:
    return {"accumulation_counter", "firmware_timestamp", *RESIDENCIES} <= table.keys()
