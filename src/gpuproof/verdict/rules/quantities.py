"""Which quantities there are, in which unit each is, and which of them say how fast something is.

Measures have names; those of gpuproof are listed here by what they are, a plug-in's are known by their unit.
"""

from __future__ import annotations

from gpuproof.records.result import Measure

SPEED_SHARES = ("MFU", "memory bandwidth use")
"""Shares of what the board does by its data sheet: how fast it is, in other words."""
NOT_SPEED = ("exposed communication", "p99 lateness", "time")
"""In seconds, and not of how fast a device is."""


def speaks_of_speed(measure: Measure) -> bool:
    """Say whether a measure tells how fast its subject is: a rate, or how long a step or a request takes.

    Utilisation, temperature, power, memory, counts of wrong values, and ratios of two figures of the same
    machine (drift, spread, scaling efficiency) do not: a slow one may have good ones.
    """
    if measure.name in SPEED_SHARES:
        return True
    if measure.unit == "s":
        return measure.better == "lower" and measure.name not in NOT_SPEED
    return measure.unit.endswith("/s") and measure.better != "lower"
