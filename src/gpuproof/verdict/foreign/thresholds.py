"""A threshold of another tool, in base units, with what its file says of the conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.config.settings import ConfigError, Mistake

Fault = Literal[
    "unknown",
    "vacuous",
    "impossible",
    "contradictory",
    "no effect",
    "placeholder",
    "beyond published",
    "unverified",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What a checker holds a measurement against."""

    place: str
    """FILE:LINE."""
    name: str
    """As its file calls it."""
    quantity: str
    """As published figures have it: matrix multiply, device memory, host link, all_reduce, training …"""
    value: float | None
    """In `unit`; None where the file gives none, so that nothing is compared."""
    unit: str
    is_floor: bool = True
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """What is known of board, chip, dtype, direction, size_bytes, num_hosts, cards_bytes_per_s and so on."""
    comment: str = ""
    """What stands beside it in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFault:
    """Why a threshold cannot judge."""

    place: str
    name: str
    fault: Fault
    reason: str


def needing_some(thresholds: Sequence[Threshold], *, source: str, form: str) -> list[Threshold]:
    """Return the thresholds.

    Raises:
        UsageError: there is none: a file that is not what it was called would be found without fault.
    """
    if not thresholds:
        cause = f"no threshold was found in it: it is no file of {form}'s"
        raise ConfigError([Mistake(place=source, cause=cause, next_step="Name another form with --from")])
    return list(thresholds)
