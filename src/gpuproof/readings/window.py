"""Which part of a recording is looked at? The whole, one named phase, or the time of a measured case.

In: a recording and a phase's name or a pair of times. Out: a `RecordingWindow` of one or more spans in
seconds since the recording began, and which samples lie in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuproof.base.errors import UsageError
from gpuproof.readings.recording import Flags, Floats, RecordingData


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time, in seconds since the recording began."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingWindow:
    """One or more spans of a recording, in order; `name` is the phase's, None for the whole."""

    name: str | None
    spans: tuple[Span, ...]

    @property
    def duration_s(self) -> float:
        """Seconds in all spans together."""
        return sum(span.end_s - span.begin_s for span in self.spans)

    def holds(self, time_s: Floats) -> Flags:
        """Tell for each sample's time, in ascending order, whether it lies in the window.

        A sample at the end of a span belongs to what comes after it; the last of all has nothing after it.
        """
        inside = np.zeros(len(time_s), dtype=bool)
        for span in self.spans:
            first, after = np.searchsorted(time_s, (span.begin_s, span.end_s))
            inside[first:after] = True
            inside[-1:] |= time_s[-1:] == span.end_s
        return inside


def whole(recording: RecordingData) -> RecordingWindow:
    """Span all samples and the counters that were read before the first and after the last."""
    ends = [float(t) for t in (recording.time_s[:1].tolist() + recording.time_s[-1:].tolist())]
    ends += [recording.seconds_in(counters.monotonic_s) for counters in recording.counters]
    if not ends:
        return RecordingWindow(name=None, spans=())
    return RecordingWindow(name=None, spans=(Span(begin_s=min(ends), end_s=max(ends)),))


def phase(recording: RecordingData, *, name: str) -> RecordingWindow:
    """Take every stretch of the phase called `name`.

    Raises:
        UsageError: the recording has no such phase; the message lists those that it has.
    """
    spans = tuple(
        Span(begin_s=span.start_s, end_s=span.end_s) for span in recording.phases() if span.name == name
    )
    if not spans:
        names = phase_names(recording)
        raise UsageError(
            f"no phase {name!r} in this recording",
            place=recording.source,
            next_step=f"Its phases: {', '.join(names)}" if names else "It names no phases; leave --phase out",
        )
    return RecordingWindow(name=name, spans=spans)


def phase_names(recording: RecordingData) -> tuple[str, ...]:
    """List the phases of a recording, each once, in the order of their first appearance."""
    return tuple(dict.fromkeys(span.name for span in recording.phases()))


def between(recording: RecordingData, *, begin_monotonic_s: float, end_monotonic_s: float) -> RecordingWindow:
    """Take the time between two readings of the same host's monotonic clock, as a worker records them."""
    span = Span(begin_s=recording.seconds_in(begin_monotonic_s), end_s=recording.seconds_in(end_monotonic_s))
    return RecordingWindow(name="measure", spans=(span,))
