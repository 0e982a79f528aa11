"""What did each of two recordings take, and for how long was each held back?

In: two recordings, and the phase that counts, else all of each. Out: the energy of all GPUs together, and
of each reason to be held back the share of the time, averaged over the GPUs. There is one figure a recording,
and so no interval. What one GPU does not tell, the recording does not: a part is not the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.readings.energy import energy_used
from gpuproof.readings.metric_text import STATE_REASONS
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.throttling import throttling
from gpuproof.readings.window import RecordingWindow, phase, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSide:
    """One recording's."""

    duration_s: float
    energy_j: float | None
    energy_missing: str | None
    held: dict[str, float] | None
    """Reason → share of the time, 0 to 1, over all GPUs; states such as idle are left out."""
    held_missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Both."""

    over: str
    """The window, in words."""
    first: SpentSide
    second: SpentSide

    @property
    def reasons(self) -> tuple[str, ...]:
        """Whatever held either back, the longest first."""
        shares: dict[str, float] = {}
        for side in (self.first, self.second):
            for reason, share in (side.held or {}).items():
                shares[reason] = max(share, shares.get(reason, 0.0))
        return tuple(sorted(shares, key=lambda reason: (-shares[reason], reason)))


def spent(first: RecordingData, second: RecordingData, *, phase_name: str | None) -> Spent:
    """Add up both.

    Raises:
        UsageError: a recording has no such phase.
    """
    sides = [_side(r, whole(r) if phase_name is None else phase(r, name=phase_name)) for r in (first, second)]
    over = "the whole of each recording" if phase_name is None else f"phase {phase_name}"
    return Spent(over=over, first=sides[0], second=sides[1])


def _side(recording: RecordingData, window: RecordingWindow) -> SpentSide:
    used = [energy_used(recording, track=track, window=window) for track in recording.devices]
    held = [throttling(recording, track=track, window=window) for track in recording.devices]
    joules = [energy.energy_j for energy in used if energy.energy_j is not None]
    silent = next((found.missing for found in held if not found.known), None)
    is_told = bool(held) and all(found.known for found in held)
    shares: dict[str, float] = {}
    for item in (item for found in held for item in found.shares if item.reason not in STATE_REASONS):
        shares[item.reason] = shares.get(item.reason, 0.0) + item.share / len(held)
    return SpentSide(
        duration_s=window.duration_s,
        energy_j=sum(joules) if joules and len(joules) == len(used) else None,
        energy_missing=next((energy.note for energy in used if energy.energy_j is None), None),
        held=shares if is_told else None,
        held_missing=None if is_told else silent,
    )
