"""How does a summary read? The text of `_summary.txt` and of `gpuproof monitor show`.

In: a `RecordingSummary`. Out: plain text, no wider than a terminal where names allow, the whole
recording first, then one line a phase and GPU.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Final

from gpuproof.readings.energy import Energy
from gpuproof.readings.metric_text import STATE_REASONS, energy, quantity, throttle_title, title
from gpuproof.readings.summary import (
    DeviceSummary,
    EventAt,
    MetricSummary,
    RecordingSummary,
    Total,
    WindowSummary,
)
from gpuproof.readings.throttling import ThrottleShare, Throttling
from gpuproof.units import MISSING, count, memory, seconds, share

_HEADINGS: Final = ("", "mean", "min", "max", "p95", "readings")
_PHASE_HEADINGS: Final = (
    "phase", "time", "GPU", "utilisation", "memory", "power", "SM clock", "energy", "held back"
)  # fmt: skip
_PHASE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w", "clock_sm_mhz")
_LABEL_WIDTH: Final = 22
_TEXT_WIDTH: Final = 100

_METHODS: Final = {"counter": "from the energy counter", "integrated_power": "power integrated over time"}


def render_text(summary: RecordingSummary) -> str:
    """Write a summary as text that ends with a line end."""
    lines = list(_head(summary))
    for device in summary.whole.devices:
        lines += ["", *_device(device)]
    if not summary.whole.devices:
        lines += ["", "No GPU was found; the host's readings follow."]
    if summary.whole.host:
        lines += ["", "Host", *_table([_HEADINGS, *map(_row, summary.whole.host)])]
        lines += [_fact(title(total.metric), _total(total)) for total in summary.whole.host_totals]
    if summary.phases:
        lines += ["", "Phases", *_table([_PHASE_HEADINGS, *_phase_rows(summary.phases)])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(summary: RecordingSummary) -> Iterator[str]:
    yield summary.source
    began = MISSING
    if summary.began_unix_s is not None:
        began = f"{datetime.fromtimestamp(summary.began_unix_s, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    window = summary.whole
    facts = (summary.host, began, seconds(window.duration_s), f"{count(window.samples)} samples")
    yield _fact("recorded", ", ".join(facts))
    if summary.format != "gpuproof":
        yield _fact("format", f"imported from {summary.format}")
    if summary.command is not None:
        yield _fact("command", " ".join(summary.command))
    end = summary.end
    if end is not None:
        code = "" if end.exit_code is None else f", exit code {end.exit_code}"
        yield _fact("ended", f"{end.reason}{code}")
        yield _fact(
            "sampler",
            f"{count(end.missed_ticks)} ticks missed, latest by {seconds(end.max_jitter_s)}, "
            f"{seconds(end.own_cpu_s)} of processor time",
        )
    for note in summary.notes:
        yield _fact("note", note)


def _device(device: DeviceSummary) -> Iterator[str]:
    identity = device.identity
    driver = identity.static.get("driver_version")
    facts = (
        identity.vendor,
        f"driver {driver}" if driver else None,
        _installed(device),
        identity.uuid,
        identity.pci_bus_id,
    )
    yield f"GPU {identity.physical_index}: {identity.name} ({', '.join(fact for fact in facts if fact)})"
    given = [metric for metric in device.metrics if metric.series is not None]
    if given:
        yield from _table([_HEADINGS, *map(_row, given)])
    yield _fact("energy", energy_text(device.energy))
    yield from _throttling(device.throttling)
    for total in device.totals:
        yield _fact(title(total.metric), _total(total))
    for happened in device.events:
        yield _fact("event", _event(happened))
    yield from _missing(device.metrics)


def _installed(device: DeviceSummary) -> str | None:
    total = device.identity.static.get("mem_total_bytes")
    return memory(total) if total is not None else None


def _row(metric: MetricSummary) -> tuple[str, ...]:
    series = metric.series
    if series is None:
        return (title(metric.metric), MISSING, MISSING, MISSING, MISSING, "0")
    values = (series.mean, series.minimum, series.maximum, series.p95)
    return (title(metric.metric), *(quantity(metric.metric, v) for v in values), count(series.samples))


def energy_text(used: Energy) -> str:
    """Write an energy with its method and coverage, or why there is none."""
    if used.energy_j is None or used.method is None:
        return f"{MISSING} ({used.note})"
    note = f"; {used.note}" if used.note else ""
    return f"{energy(used.energy_j)}, {_METHODS[used.method]}, {share(used.coverage)} of the time{note}"


def _throttling(throttling: Throttling) -> Iterator[str]:
    if not throttling.known:
        yield _fact("held back", f"{MISSING} ({throttling.missing})")
        return
    faults = [s for s in throttling.shares if s.reason not in STATE_REASONS]
    states = [s for s in throttling.shares if s.reason in STATE_REASONS]
    yield _fact("held back", ", ".join(map(_share_text, faults)) or "never, as far as the device told")
    if states:
        yield _fact("clock state", ", ".join(map(_share_text, states)))


def _share_text(item: ThrottleShare) -> str:
    source = "counter" if item.method == "counter" else "samples"
    return f"{throttle_title(item.reason)} {share(item.share)} of the time (by {source})"


def _total(total: Total) -> str:
    text = quantity(total.metric, total.increase)
    if total.metric.endswith("_bytes") and total.covered_s > 0:
        return f"{text}, {memory(total.increase / total.covered_s)}/s"
    return text


def _event(happened: EventAt) -> str:
    event = happened.event
    code = "" if event.code is None else f" {event.code}"
    return f"{event.event}{code} at {seconds(happened.at_s)}: {event.message}"


def _missing(metrics: Sequence[MetricSummary]) -> Iterator[str]:
    """Group what was not read by its reason and share, so that one lost device is a few lines."""
    by_reason: dict[str, list[str]] = {}
    for metric in metrics:
        if metric.reason is not None:
            part = "" if metric.series is None else f" ({share(metric.missing_share)} of the readings)"
            by_reason.setdefault(metric.reason + part, []).append(title(metric.metric))
    for reason, metric_titles in by_reason.items():
        yield from _wrapped("not read", f"{', '.join(metric_titles)}: {reason}")


def _phase_rows(phases: Sequence[WindowSummary]) -> Iterator[tuple[str, ...]]:
    for phase in phases:
        for device in phase.devices:
            held = [s for s in device.throttling.shares if s.reason not in STATE_REASONS]
            worst = f"{throttle_title(held[0].reason)} {share(held[0].share)}" if held else "never"
            yield (
                str(phase.name),
                seconds(phase.duration_s),
                str(device.identity.physical_index),
                *(quantity(metric, device.mean(metric)) for metric in _PHASE_METRICS),
                energy(device.energy.energy_j).partition(" (")[0],
                worst if device.throttling.known else MISSING,
            )


def _fact(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH - 2}}  {text}"


def _wrapped(label: str, text: str) -> Iterator[str]:
    """Write a fact whose text is a long list over several lines."""
    first, *more = textwrap.wrap(text, _TEXT_WIDTH - _LABEL_WIDTH - 2, break_on_hyphens=False)
    yield _fact(label, first)
    yield from (_fact("", line) for line in more)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Align columns: the first to the left, numbers to the right, a last column of words to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(widths[0], _LABEL_WIDTH - 2)
    words_last = rows[0][-1] == _PHASE_HEADINGS[-1]
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        if words_last:
            cells[-1] = row[-1]
        yield "  " + "  ".join(cells)
