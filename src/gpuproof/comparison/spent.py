"""What did each of two recordings take, and for how long was each held back?

In: two recordings, and the phase that counts, else all of each. Out: of each the time, the energy of all
GPUs together, and of each reason to be held back the share of the time, averaged over the GPUs. There is one
figure a recording, so no interval. What one GPU does not tell, the recording does not: a part is no whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuproof.base.units import MISSING, seconds, share, significant
from gpuproof.comparison.sides import side_measure
from gpuproof.readings.energy import energy_used
from gpuproof.readings.metric_text import STATE_REASONS, energy, throttle_title
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.throttling import throttling
from gpuproof.readings.window import RecordingWindow, phase, whole
from gpuproof.records.result import Measure


def spent_measures(
    first: RecordingData, second: RecordingData, *, phase_name: str | None
) -> Iterator[Measure]:
    """Yield time, energy and time held back of both.

    Raises:
        UsageError: a recording has no such phase.
    """
    sides = [(r, whole(r) if phase_name is None else phase(r, name=phase_name)) for r in (first, second)]
    for side, (_, window) in zip("AB", sides, strict=True):
        yield _figure("time", side, "s", window.duration_s, seconds(window.duration_s))
    joules = [_energy(*one) for one in sides]
    for side, (value, missing) in zip("AB", joules, strict=True):
        yield _figure("energy", side, "J", value, energy(value), missing=missing)
    yield _ratio(*(value for value, _ in joules))
    yield from _held(*(_shares(*one) for one in sides))


def _figure(name: str, side: str, unit: str, value: float | None, text: str, **more: Any) -> Measure:
    about = {"statistic": "total", "labels": {}, "unit": unit, "text": text} | more
    return side_measure(name=name, side=side, value=value, **about)


def _energy(recording: RecordingData, window: RecordingWindow) -> tuple[float | None, str | None]:
    """Return the energy of all GPUs in joules, or why it is not known."""
    used = [energy_used(recording, track=track, window=window) for track in recording.devices]
    joules = [use.energy_j for use in used if use.energy_j is not None]
    if joules and len(joules) == len(used):
        return sum(joules), None
    return None, next((use.note for use in used if use.energy_j is None), None)


def _ratio(first_j: float | None, second_j: float | None) -> Measure:
    ratio = None if first_j is None or second_j is None or first_j <= 0 else second_j / first_j
    text = MISSING
    if ratio is not None:
        text = f"{'+' if ratio >= 1 else '−'}{significant(abs(ratio - 1) * 100, 2)} %"
    return side_measure(
        name="energy", side="B over A", statistic="ratio", value=ratio, unit="1", text=text, labels={}
    )


Held = tuple[dict[str, float] | None, str | None]
"""Reason → share of the time, 0 to 1, over all GPUs, without states such as idle; or why it is not known."""


def _shares(recording: RecordingData, window: RecordingWindow) -> Held:
    held = [throttling(recording, track=track, window=window) for track in recording.devices]
    if not held or not all(throttle.has_answers for throttle in held):
        return None, next((throttle.missing for throttle in held if not throttle.has_answers), None)
    shares: dict[str, float] = {}
    for item in (item for throttle in held for item in throttle.shares if item.reason not in STATE_REASONS):
        shares[item.reason] = shares.get(item.reason, 0.0) + item.share / len(held)
    return shares, None


def _held(*sides: Held) -> Iterator[Measure]:
    """Yield the share of each reason that held either back, the longest first; "never" where none did."""
    longest: dict[str, float] = {}
    for shares, _ in sides:
        for reason, length in (shares or {}).items():
            longest[reason] = max(length, longest.get(reason, 0.0))
    for reason in sorted(longest, key=lambda reason: (-longest[reason], reason)) or [""]:
        name = f"throttled: {throttle_title(reason)}" if reason else "throttled"
        for side, (shares, missing) in zip("AB", sides, strict=True):
            part = None if shares is None else shares.get(reason, 0.0)
            text = f"{share(part)} of the time" if reason or part is None else "never"
            shown = MISSING if part is None else text
            about = {"statistic": "share of the time", "labels": {"reason": reason}, "missing": missing}
            yield _figure(name, side, "1", part, shown, **about)
