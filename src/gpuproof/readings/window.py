"""Selects the part of a recording to analyse: all of it, a named phase, or a case's window.

The input is a recording and a phase's name or a pair of times. The output is a `RecordingWindow` of one or
more spans in seconds since the recording started, and the samples that it contains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuproof.base.errors import UsageError
from gpuproof.readings.recording import Flags, Floats, RecordingData


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of time, in seconds since the recording started."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingWindow:
    """Spans of a recording, in order; `name` is the phase's name, or None for the whole recording."""

    name: str | None
    spans: tuple[Span, ...]

    @property
    def duration_s(self) -> float:
        """Total seconds over all spans."""
        return sum(span.end_s - span.begin_s for span in self.spans)

    def holds(self, time_s: Floats) -> Flags:
        """Return whether each sample's time is in the window; times must be in ascending order.

        A sample at the end of a span belongs to what follows the span, except at the end of the recording.
        """
        inside = np.zeros(len(time_s), dtype=bool)
        for span in self.spans:
            first, after = np.searchsorted(time_s, (span.begin_s, span.end_s))
            inside[first:after] = True
            if len(time_s) and time_s[-1] == span.end_s:
                inside |= time_s == span.end_s
        return inside


def whole(recording: RecordingData) -> RecordingWindow:
    """Include all samples, and the counters read before the first and after the last."""
    ends = [float(t) for t in (recording.time_s[:1].tolist() + recording.time_s[-1:].tolist())]
    ends += [recording.seconds_in(counters.monotonic_s) for counters in recording.counters]
    if not ends:
        return RecordingWindow(name=None, spans=())
    return RecordingWindow(name=None, spans=(Span(begin_s=min(ends), end_s=max(ends)),))


def phase(recording: RecordingData, *, name: str) -> RecordingWindow:
    """Return every stretch of the phase called `name`.

    Raises:
        UsageError: the recording has no such phase; the message lists the phases it has.
    """
    spans = tuple(
        Span(begin_s=span.start_s, end_s=span.end_s) for span in recording.phases() if span.name == name
    )
    if not spans:
        names = phase_names(recording)
        raise UsageError(
            f"no phase {name!r} in this recording",
            place=recording.source,
            next_step=f"Its phases: {', '.join(names)}" if names else "It has no named phases; omit --phase",
        )
    return RecordingWindow(name=name, spans=spans)


def phase_names(recording: RecordingData) -> tuple[str, ...]:
    """List the phases of a recording, each once, in order of first appearance."""
    return tuple(dict.fromkeys(span.name for span in recording.phases()))


def between(recording: RecordingData, *, begin_monotonic_s: float, end_monotonic_s: float) -> RecordingWindow:
    """Return the time between two readings of a host's monotonic clock, as a worker recorded them."""
    span = Span(begin_s=recording.seconds_in(begin_monotonic_s), end_s=recording.seconds_in(end_monotonic_s))
    return RecordingWindow(name="measure", spans=(span,))
