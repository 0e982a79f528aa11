"""Analyse where the time of traced steps went: to which operators and kernels, and to waiting.

The input is a profiler trace (https://docs.pytorch.org/docs/stable/profiler.html; one JSON object whose
`traceEvents` list may be very long). It is read event by event, so a gigabyte needs no more memory than a
small trace. Its times are in microseconds. The output is a summary. With a GPU, its streams are analysed; on
a CPU, the operators themselves and gloo's threads. Tracing slows down what it observes, so these are
proportions, not results of the run.

**Exposed** communication is the time during which a collective runs and no computation does, i.e. the time
that a step would save if communication were free.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from gpuproof.base.errors import RecordError
from gpuproof.base.groups import grouped
from gpuproof.base.outside import bounded
from gpuproof.base.spans import Span, covered, merged, without
from gpuproof.records.breakdown import COMMUNICATION

US_PER_S = 1e6
TOP = 10
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
COPY_OPERATORS = ("aten::copy_",)
CALLS_OF_COLLECTIVES = ("c10d::", "_c10d_functional::")
"""Calls that launch a collective: they are neither computation nor the communication itself."""
NOT_AN_OPERATOR = "(launched by no operator)"


MS_PER_S = 1e3
CHUNK_CHARS = 2**20
LARGEST_BYTES = 2**30
"""Maximum size of a trace: about three million events, which take half a minute to read."""
LIST_KEY = '"traceEvents"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """A complete event in a trace, with times in microseconds."""

    category: str
    name: str
    thread: str
    begin_us: float
    end_us: float
    external_id: int | None = None
    """ID that links a kernel to the operator that launched it."""

    @property
    def span(self) -> Span:
        """Start and end of the event."""
        return self.begin_us, self.end_us


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """All calls to one operator or kernel."""

    name: str
    calls: int
    self_s: float
    """Time spent on the device if there is one, else on the CPU, excluding called operators."""
    share: float
    """Fraction of the total over all rows, including omitted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """Time breakdown of the traced steps; times are totals over all steps, in seconds."""

    steps: int
    looked_at: Literal["gpu", "processor"]
    span_s: float
    """Time from the first event to the last, which is the sum of the following fields minus overlaps."""
    compute_s: float
    communication_s: float
    exposed_s: float
    """Time of communication while nothing computed."""
    copy_s: float
    """Time of memory copies and fills while nothing computed or communicated."""
    idle_s: float
    operators: tuple[ProfileRow, ...]
    kernels: tuple[ProfileRow, ...]
    """Kernels by time; empty on a CPU."""
    num_events: int
    profiled: bool = True
    """Flag that marks the steps as traced, so that they are not part of any result."""


def parse_trace_event(raw: Mapping[str, Any]) -> TraceEvent | None:
    """Extract the relevant parts of one trace event; None for instant events and arrows."""
    lasting_us = raw.get("dur", 0.0)
    if raw.get("ph") != "X" or not all(isinstance(time, int | float) for time in (raw.get("ts"), lasting_us)):
        return None
    arguments = raw.get("args")
    external = arguments.get("External id") if isinstance(arguments, Mapping) else None
    begin = float(raw["ts"])
    return TraceEvent(
        category=str(raw.get("cat", "")),
        name=str(raw.get("name", "")),
        thread=f"{raw.get('pid')}/{raw.get('tid')}",
        begin_us=begin,
        end_us=begin + float(lasting_us),
        external_id=external if isinstance(external, int) else None,
    )


def summarize_trace(events: Iterable[TraceEvent], *, steps: int) -> ProfileSummary | None:
    """Summarise a trace of `steps` steps; None if it contains no work."""
    relevant = [event for event in events if event.category in (*ON_DEVICE, "cpu_op") or _is_gloo(event)]
    on_device = [event for event in relevant if event.category in ON_DEVICE]
    operators = [event for event in relevant if event.category == "cpu_op"]
    if on_device:
        lanes = _device_lanes(on_device)
        by_operator = _rows(_by_launching_operator(on_device, operators))
        kernels = _rows((event.name, event.end_us - event.begin_us) for event in on_device)
    elif operators:
        lanes = _cpu_lanes(operators, [event for event in relevant if _is_gloo(event)])
        by_operator, kernels = _rows(_self_times(operators)), ()
    else:
        return None
    return _summary(lanes, steps, by_operator, kernels, num_events=len(relevant), on_device=bool(on_device))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lanes:
    """Merged time intervals in which each kind of work ran."""

    compute: list[Span]
    communication: list[Span]
    copies: list[Span]


def _summary(
    lanes: _Lanes,
    steps: int,
    operators: tuple[ProfileRow, ...],
    kernels: tuple[ProfileRow, ...],
    *,
    num_events: int,
    on_device: bool,
) -> ProfileSummary:
    working = merged([*lanes.compute, *lanes.communication])
    anything = merged([*working, *lanes.copies])
    span_us = anything[-1][1] - anything[0][0] if anything else 0.0
    return ProfileSummary(
        steps=steps,
        looked_at="gpu" if on_device else "processor",
        span_s=span_us / US_PER_S,
        compute_s=covered(lanes.compute) / US_PER_S,
        communication_s=covered(lanes.communication) / US_PER_S,
        exposed_s=covered(without(lanes.communication, lanes.compute)) / US_PER_S,
        copy_s=covered(without(lanes.copies, working)) / US_PER_S,
        idle_s=(span_us - covered(anything)) / US_PER_S,
        operators=operators,
        kernels=kernels,
        num_events=num_events,
    )


def _is_gloo(event: TraceEvent) -> bool:
    return event.category == "user_annotation" and event.name.startswith("gloo:")


def _device_lanes(events: Sequence[TraceEvent]) -> _Lanes:
    kernels = [event for event in events if event.category == "kernel"]
    talking = [event for event in kernels if COMMUNICATION.search(event.name)]
    return _Lanes(
        compute=merged(event.span for event in kernels if not COMMUNICATION.search(event.name)),
        communication=merged(event.span for event in talking),
        copies=merged(event.span for event in events if event.category != "kernel"),
    )


def _cpu_lanes(operators: Sequence[TraceEvent], collectives: Sequence[TraceEvent]) -> _Lanes:
    """Count an operator's time as computation, unless it copies data or launches a collective."""
    compute: list[Span] = []
    copies: list[Span] = []
    by_thread = grouped((event.thread, event) for event in operators)
    for events in by_thread.values():
        copied = merged(event.span for event in events if event.name in COPY_OPERATORS)
        handed_over = merged(event.span for event in events if event.name.startswith(CALLS_OF_COLLECTIVES))
        copies += without(copied, handed_over)
        compute += without(merged(event.span for event in events), merged([*copied, *handed_over]))
    return _Lanes(
        compute=merged(compute),
        communication=merged(event.span for event in collectives),
        copies=merged(copies),
    )


def _by_launching_operator(
    on_device: Sequence[TraceEvent], operators: Sequence[TraceEvent]
) -> Iterable[tuple[str, float]]:
    names = {event.external_id: event.name for event in operators}
    names[None] = NOT_AN_OPERATOR
    for event in on_device:
        yield names.get(event.external_id, NOT_AN_OPERATOR), event.end_us - event.begin_us


def _self_times(operators: Sequence[TraceEvent]) -> Iterable[tuple[str, float]]:
    """Yield each call's time minus the time of the operators it called, computed per thread."""
    open_calls: dict[str, list[list[Any]]] = defaultdict(list)  # [event, its self time]
    for event in sorted(operators, key=lambda event: (event.thread, event.begin_us, -event.end_us)):
        calls = open_calls[event.thread]
        while calls and calls[-1][0].end_us <= event.begin_us:
            done, self_us = calls.pop()
            yield done.name, self_us
        if calls:
            calls[-1][1] -= event.end_us - event.begin_us
        calls.append([event, event.end_us - event.begin_us])
    for calls in open_calls.values():
        yield from ((event.name, self_us) for event, self_us in calls)


def _rows(calls: Iterable[tuple[str, float]]) -> tuple[ProfileRow, ...]:
    """Add up the times of calls by name, longest total first."""
    times_us = grouped(calls)
    total_us = sum(map(sum, times_us.values()))
    longest = sorted(times_us.items(), key=lambda item: (-sum(item[1]), item[0]))[:TOP]
    return tuple(
        ProfileRow(
            name=name,
            calls=len(self_us),
            self_s=sum(self_us) / US_PER_S,
            share=sum(self_us) / total_us if total_us else 0.0,
        )
        for name, self_us in longest
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationTimes:
    """Communication times per step, in milliseconds, on the first rank."""

    comm_exposed_ms: float | None
    comm_kernel_ms: float | None
    allreduce_standalone_ms: float | None
    missing: dict[str, str]
    """Reasons why numbers are None, by name."""


def communication_times(profile: ProfileSummary, *, world_size: int) -> CommunicationTimes:
    """Read the communication per step from the summary of a trace."""
    standalone = {"allreduce_standalone_ms": "no all-reduce was timed alone for this case"}
    if world_size == 1 or not profile.communication_s:
        alone = "a single device does not communicate"
        reason = alone if world_size == 1 else "the trace has no collective that the summary recognises"
        names = ("comm_exposed_ms", "comm_kernel_ms")
        return CommunicationTimes(
            comm_exposed_ms=None,
            comm_kernel_ms=None,
            allreduce_standalone_ms=None,
            missing={
                **dict.fromkeys(names, reason),
                **({"allreduce_standalone_ms": alone} if world_size == 1 else standalone),
            },
        )
    return CommunicationTimes(
        comm_exposed_ms=profile.exposed_s / profile.steps * MS_PER_S,
        comm_kernel_ms=profile.communication_s / profile.steps * MS_PER_S,
        allreduce_standalone_ms=None,
        missing=standalone,
    )


def trace_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace file, one at a time.

    Raises:
        RecordError: the file is truncated, not a trace, or too large to read.
    """
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        limit = f"files larger than {LARGEST_BYTES / 2**30:.0f} GiB are not read"
        raise RecordError(f"{path.name} is {size / 2**30:.1f} GiB, and {limit}")
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        text = _from_the_list_on(file, path)
        place = 0
        while True:
            place = _next_item(text, place)
            if text[place : place + 1] == "]":
                return
            try:
                event, end = decoder.raw_decode(text, place)
                event, place = bounded(event, text[place:end]), end
            except json.JSONDecodeError:
                more = file.read(CHUNK_CHARS)
                if not more:
                    raise RecordError(f"{path.name} is truncated: its list of events does not end") from None
                text, place = text[place:] + more, 0
                continue
            except (ValueError, RecursionError):
                raise RecordError(f"{path.name} is not a trace: an event is nested too deeply") from None
            if isinstance(event, dict):
                yield event


def _from_the_list_on(file: TextIO, path: Path) -> str:
    text = ""
    while more := file.read(CHUNK_CHARS):
        text += more
        key = text.find(LIST_KEY)
        bracket = text.find("[", key) if key >= 0 else -1
        if bracket >= 0:
            return text[bracket + 1 :]
    raise RecordError(f"{path.name} is not a trace: it has no list of events")


def _next_item(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,":
        place += 1
    return place
