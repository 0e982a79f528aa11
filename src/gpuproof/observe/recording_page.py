"""How is a recording presented? Builds the result and the page of `gpuproof monitor show`.

Input: a recording. Output: a `Result` with the recording's values as measures, and the page built from
it: first one row per device and one for the host, then one row per phase and GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

import numpy as np

from gpuproof import __version__
from gpuproof.base.errors import ExitCode
from gpuproof.base.groups import grouped
from gpuproof.base.units import MISSING, count, memory, more_below, seconds
from gpuproof.hardware.events import read_message
from gpuproof.readings.evidence import read_whole
from gpuproof.readings.formats.rows import FAULTS
from gpuproof.readings.limits import limit_measure, limit_sentence, limits_of_readings
from gpuproof.readings.metric_text import quantity, throttle_title
from gpuproof.readings.ports import PortChange, port_changes
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.readings.series import longest_step_s
from gpuproof.readings.summary import (
    PHASE_METRICS,
    SPREAD,
    THROTTLED_METRIC,
    EventAt,
    events_within,
    summarise,
)
from gpuproof.readings.warnings import SPIN_MEANING, VARIATION, device_warnings, load_balance, spins
from gpuproof.readings.window import whole
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.page import Measures, Notice, Notices, Page, Provenance, Section, Text, Tone, Verdict
from gpuproof.records.page.tables import Column, measure_column, pivot
from gpuproof.records.ports import CAUSES, growth_text
from gpuproof.records.readings import KERNEL_LOG
from gpuproof.records.result import LIMITED_BY, WHOLE, Measure, Result

NAME: Final = "monitor show"
SPINS_SHOWN: Final = 3
EVENT: Final = "event of the host: "
_PHASE_TITLES: Final = ("utilisation", "memory", "power", "SM clock")
_NO_GPU: Final = "No GPU was found; the host's readings follow."
_NOTHING_READ: Final = "no reading of a GPU was recorded, so nothing is known about it"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWords:
    """Additional text shown for a device besides its values."""

    index: int
    title: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingWords:
    """Additional text shown for a recording besides its values."""

    facts: tuple[str, ...]
    devices: tuple[DeviceWords, ...]
    ports: tuple[Notice, ...] = ()


def recording_result(recording: RecordingData, *, with_balance: bool = False) -> Result:
    """Return the values of a recording, and everything else that its page shows."""
    measures = summarise(recording)
    words = RecordingWords(
        facts=tuple(_facts(recording)),
        devices=tuple(_device(recording, track, measures) for track in recording.devices),
        ports=tuple(_ports(recording)),
    )
    gpus = [track.identity.name for track in recording.devices]
    limits = limits_of_readings(read_whole(recording)) if len(recording.time_s) else None
    # without this, the readings alone would show nothing wrong
    limited = [limit_measure([limits])] if limits and limits.found else []
    return Result(
        suite=NAME,
        run_id=recording.source,
        gpuproof_version=__version__,
        validity=None,
        verdict="RECORDED",
        headline=f"{seconds(recording.duration_s)}, {count(len(recording.time_s))} samples",
        exit_code=ExitCode.DONE,
        num_launches=0,
        num_planned=0,
        conditions={"host": recording.recording.host, "format": recording.format, "gpus": gpus},
        doubts=(),
        failures=(),
        measures=(*measures, *(load_balance(measures) if with_balance else ()), *limited),
        detail=to_json(words),
    )


def _facts(recording: RecordingData) -> Iterator[str]:
    began = recording.began_unix_s
    when = (
        MISSING if began is None else f"{datetime.fromtimestamp(began, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    )
    yield f"recorded on {', '.join(filter(None, (recording.recording.host, when)))}"
    if recording.format != "gpuproof":
        yield f"format: imported from {recording.format}"
    if recording.recording.command is not None:
        yield f"command: {' '.join(recording.recording.command)}"
    if (end := recording.end) is not None:
        code = "" if end.exit_code is None else f", exit code {end.exit_code}"
        yield f"ended: {end.reason}{code}"
    yield from (f"note: {note}" for note in recording.notes)
    for happened in _events(recording, None):
        is_unread = happened[0].event.event == KERNEL_LOG
        yield f"kernel's log: {happened[0].event.message}" if is_unread else f"{EVENT}{_event(happened)}"


def _device(recording: RecordingData, track: DeviceTrack, measures: Iterable[Measure]) -> DeviceWords:
    identity = track.identity
    driver, installed = identity.static.get("driver_version"), identity.number("mem_total_bytes")
    facts = (
        identity.vendor,
        f"driver {driver}" if driver else None,
        None if installed is None else memory(installed),
        identity.uuid,
        identity.pci_bus_id,
    )
    named = f"GPU {identity.physical_index}: {identity.name} ({', '.join(fact for fact in facts if fact)})"
    of_device = [measure for measure in measures if measure.labels.get("gpu") == identity.physical_index]
    notices = (*_wrong(recording, track), *_spins(recording, track), *_not_read(of_device))
    return DeviceWords(index=identity.physical_index, title=named, notices=notices)


def _ports(recording: RecordingData) -> Iterator[Notice]:
    """Yield each port's counts, and list missing media."""
    yield from map(_port, port_changes(recording.ports))
    for medium, why in recording.ports[-1].missing.items() if recording.ports else ():
        yield Notice(word=medium, tone="faint", text=f"no port: {why}")


def _port(change: PortChange) -> Notice:
    """Report a port's counts, after its location and speed."""
    port, errors = change.port, change.grown("error")
    grown = growth_text(errors | change.grown(*CAUSES, "drop", "congestion")) or "counted only traffic"
    unknown = "".join(f"; {name} not known: {why}" for name, why in change.missing.items())
    about = ", ".join(filter(None, (*port.traits, change.became or port.state, port.rate)))
    return Notice(
        word=port.name, tone="warn" if errors or change.became else "faint", text=f"{about}: {grown}{unknown}"
    )


def _wrong(recording: RecordingData, track: DeviceTrack) -> Iterator[Notice]:
    for warning in device_warnings(recording, track=track, window=whole(recording)):
        yield Notice(word="warning", tone="warn", text=warning)
    events = list(_events(recording, track))
    for happened in events:
        tone: Tone = "bad" if happened[0].event.event in FAULTS else "warn"
        yield Notice(word="event", tone=tone, text=_event(happened))
    if not events and (last_s := _silent_after_s(recording, track)) is not None:
        text = f"no reading after {seconds(last_s)}, and no reason for it"
        yield Notice(word="warning", tone="warn", text=text)


def _silent_after_s(recording: RecordingData, track: DeviceTrack) -> float | None:
    """Return when a device was last read, if others or the host were read later and no reason is known."""
    read = [~np.isnan(column) for column in track.metrics.values()]
    places = np.flatnonzero(np.logical_or.reduce(read)) if read else np.empty(0, dtype=int)
    if not len(places) or track.metrics.keys() & recording.reasons_missing(track).keys():
        return None
    times, end_s = recording.time_s[places], float(recording.time_s[-1])
    longest_s = max(longest_step_s(recording.time_s), longest_step_s(times))  # it may have slow metrics only
    return float(times[-1]) if end_s - times[-1] > longest_s else None


def _events(recording: RecordingData, track: DeviceTrack | None) -> Iterable[Sequence[EventAt]]:
    """Group equal events; kernel log lines are grouped by kind."""
    events = list(events_within(recording, track=track, window=whole(recording)))
    words = (None if read_message(one.event.message) else one.event.message for one in events)
    return grouped(((one.event.title, word), one) for one, word in zip(events, words, strict=True)).values()


def _event(happened: Sequence[EventAt]) -> str:
    event, first_s = happened[0].event, seconds(happened[0].at_s)
    when = f"at {first_s}"
    if len(happened) > 1:
        when = f"{count(len(happened))} times, from {first_s} to {seconds(happened[-1].at_s)}"
    return f"{event.title} {when}: {event.message}"


def _spins(recording: RecordingData, track: DeviceTrack) -> Iterator[Notice]:
    word = "busy, no work"
    stretches = spins(recording, track)
    for spin in stretches[:SPINS_SHOWN]:
        text = f"at {seconds(spin.begin_s)}: {spin.evidence}: {SPIN_MEANING}"
        yield Notice(word=word, tone="warn", text=text)
    if more := stretches[SPINS_SHOWN:]:
        total = seconds(sum(spin.duration_s for spin in more))
        yield Notice(word=word, tone="warn", text=f"and {count(len(more))} times more, {total} in all")


def _not_read(measures: Sequence[Measure]) -> Iterator[Notice]:
    """Group missing readings by reason and fraction, so that one lost device adds only a few lines."""
    means = [m for m in measures if m.statistic == "mean" and "phase" not in m.labels]
    reasons = grouped((m.missing or m.detail, m.name) for m in means if m.missing or m.detail)
    for reason, names in reasons.items():
        yield Notice(word="not read", tone="faint", text=f"{', '.join(names)}: {reason}")


def values_line(measures: Iterable[Measure]) -> str:
    """Summarise a recording's GPUs in one line, with a dash for values that a GPU did not report."""
    figures = [m for m in measures if "gpu" in m.labels and "phase" not in m.labels]
    gpus = {measure.labels["gpu"] for measure in figures}
    if not gpus:
        return "no GPU was read"

    def of(metric: str, statistic: str, join: Callable[[list[float]], float]) -> str:
        named = [m for m in figures if (m.labels["metric"], m.statistic) == (metric, statistic)]
        values = [measure.value for measure in named if measure.value is not None]
        return quantity(metric, join(values)) if values and len(values) == len(gpus) else MISSING

    throttled = [m for m in figures if m.labels["metric"] == THROTTLED_METRIC]
    longest = max(throttled, key=lambda measure: measure.value or 0.0, default=None)
    parts = {
        "mean power": of("power_w", "mean", sum),
        "energy": of("energy_j", "total", sum),
        "highest temperature": of("temp_gpu_c", "maximum", max),
        "throttled": MISSING if longest is None or longest.value is None else _share_of(longest),
        "most memory": of("mem_used_bytes", "maximum", max),
    }
    together = f"{count(len(gpus))} GPUs together: " if len(gpus) > 1 else ""
    return together + ", ".join(f"{name} {text}" for name, text in parts.items())


def _share_of(throttled: Measure) -> str:
    if not throttled.value:
        return throttled.text
    reason = throttle_title(throttled.labels["reason"])
    return f"{throttled.text} (GPU {throttled.labels['gpu']}, {reason})"


def recording_page(result: Result, provenance: Provenance | None = None) -> Page:
    """Lay out a recording's page from its result alone."""
    words = from_json(RecordingWords, result.detail, place="the recording")
    by_owner = grouped((_part(measure), measure) for measure in _read_measures(result))
    sections: list[Section] = [
        Measures(title="", measures=tuple(by_owner.get(WHOLE, ()))),
        Text(title="", lines=words.facts),
    ]
    for device in words.devices:
        sections += _owner(device.title, by_owner.get(device.index, ()))
        sections += [Notices(title="", notices=device.notices)] if device.notices else []
    sections += [] if words.devices else [Text(title="", lines=(_NO_GPU,))]
    sections += _owner("Host", by_owner["host"]) if "host" in by_owner else []
    sections += [Notices(title="Ports", notices=words.ports)] if words.ports else []
    sections += [_phases(by_owner["phase"])] if "phase" in by_owner else []
    if VARIATION in by_owner:
        sections.append(Measures(title="Load balance", measures=tuple(by_owner[VARIATION])))
    verdict = _verdict(result, words)
    return Page(title=result.run_id, verdict=verdict, sections=tuple(sections), provenance=provenance)


def _read_measures(result: Result) -> list[Measure]:
    return [measure for measure in result.measures if measure.name != LIMITED_BY]


def _verdict(result: Result, words: RecordingWords) -> Verdict:
    """Return whether anything unusual was read, and for how long and how often readings were taken."""
    warnings = [
        f"GPU {measure.labels['gpu']}: {measure.name} {measure.text}"
        for measure in _read_measures(result)
        if measure.labels["metric"] == "held_back" and measure.value and "phase" not in measure.labels
    ]
    notices = [
        (one.tone, f"GPU {device.index}: {one.text}") for device in words.devices for one in device.notices
    ]
    notices += [(one.tone, f"port {one.word}: {one.text}") for one in words.ports]
    faults = [text for tone, text in notices if tone == "bad"]
    warnings = [*faults, *warnings, *(text for tone, text in notices if tone == "warn")]
    warnings += [fact for fact in words.facts if fact.startswith(EVENT)]
    is_read = any(m.num_samples for m in result.measures if "gpu" in m.labels and m.statistic in SPREAD)
    calm = "nothing unusual in the readings" if is_read else _NOTHING_READ
    calm = calm if words.devices else _NO_GPU
    reason = f"{warnings[0]}{more_below(len(warnings) - 1)}" if warnings else calm
    tone: Tone = "bad" if faults else "warn" if warnings else "plain"
    limit = limit_sentence(result.limit)
    return Verdict(word=result.verdict, tone=tone, reason=reason, headline=result.headline, limit=limit)


def _part(measure: Measure) -> int | str:
    """Return the page section for a measure; for devices, by index."""
    if "phase" in measure.labels:
        return "phase"
    if measure.subject == WHOLE:
        return VARIATION if measure.statistic == VARIATION else WHOLE
    index: int | str = measure.labels.get("gpu", "host")
    return index


def _owner(title: str, measures: Sequence[Measure]) -> Iterator[Section]:
    """Lay out the readings of a device or host, then its counters; missing readings get no row."""
    spread = [m for m in measures if m.statistic in SPREAD]
    read = {m.labels["metric"] for m in spread if m.num_samples}
    yield pivot(
        title,
        [m for m in spread if m.labels["metric"] in read],
        (
            Column.of("", lambda measure: measure.name, align="left"),
            Column.of("readings", lambda measure: count(measure.num_samples)),
        ),
        *(measure_column(head, key) for head, key in zip(("mean", "min", "max", "p95"), SPREAD, strict=True)),
        key=lambda measure: measure.statistic,
    )
    if others := tuple(m for m in measures if m.statistic not in SPREAD):
        yield Measures(title="", measures=others)


def _phases(measures: Sequence[Measure]) -> Section:
    columns: Mapping[str, str] = dict(zip(PHASE_METRICS, _PHASE_TITLES, strict=True))
    return pivot(
        "Phases",
        measures,
        (
            Column.of("phase", lambda measure: str(measure.labels["phase"]), align="left"),
            Column.of("GPU", lambda measure: str(measure.labels.get("gpu", MISSING))),
        ),
        measure_column("time", "duration_s"),
        *(measure_column(head, metric, is_optional=True) for metric, head in columns.items()),
        measure_column("energy", "energy_j", is_optional=True),
        measure_column("throttled", "held_back", is_optional=True),
        key=lambda measure: measure.labels["metric"],
    )
