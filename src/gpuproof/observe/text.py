"""How do a summary and a load balance read? The text of `gpuproof monitor show`.

In: what `readings` computed. Out: plain text, no wider than a terminal where names allow. Of a summary the
whole recording comes first, then one line a phase and GPU.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from gpuproof.groups import grouped
from gpuproof.readings.balance import Balance
from gpuproof.readings.energy import Energy
from gpuproof.readings.metric_text import STATE_REASONS, energy, quantity, throttle_title, title
from gpuproof.readings.spinning import SPIN_MEANING, Spin
from gpuproof.readings.summary import (
    DeviceSummary,
    EventAt,
    MetricSummary,
    RecordingSummary,
    WindowSummary,
)
from gpuproof.readings.throttling import ThrottleShare, Throttling
from gpuproof.readings.totals import Total
from gpuproof.units import MISSING, count, memory, rejoined, seconds, share, unbroken

_HEADINGS: Final = ("", "mean", "min", "max", "p95", "readings")
_PHASE_HEADINGS: Final = (
    "phase", "time", "GPU", "utilisation", "memory", "power", "SM clock", "energy", "held back"
)  # fmt: skip
_HEADINGS_OF_WORDS: Final = ("held back", "verdict")
_PHASE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w", "clock_sm_mhz")
_LABEL_WIDTH: Final = 22
SPINS_SHOWN: Final = 3
_TEXT_WIDTH: Final = 100

_TOLD_THROUGHOUT: Final = 0.9
"""From this share of the readings on a device counts as having told all the time."""

_METHODS: Final = {"counter": "from the energy counter", "integrated_power": "power integrated over time"}


Spins = Mapping[int, tuple[Spin, ...]]
"""Physical index → when it was busy without working."""


def render_summary(summary: RecordingSummary, spins: Spins | None = None) -> str:
    """Write a summary as text that ends with a line end."""
    lines = list(_head(summary))
    for device in summary.whole.devices:
        lines += ["", *_device(device)]
        lines += _spins((spins or {}).get(device.identity.physical_index, ()))
    if not summary.whole.devices:
        lines += ["", "No GPU was found; the host's readings follow."]
    if summary.whole.host:
        lines += ["", "Host", *table([_HEADINGS, *map(_row, summary.whole.host)])]
        lines += [_fact(title(total.metric), _total(total)) for total in summary.whole.host_totals]
    if summary.phases:
        lines += ["", "Phases", *table([_PHASE_HEADINGS, *_phase_rows(summary.phases)])]
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
        yield from table([_HEADINGS, *map(_row, given)])
    yield _fact("energy", energy_text(device.energy))
    yield from _throttling(device.throttling)
    for total in device.totals:
        yield from _wrapped(title(total.metric), _total(total))
    for warning in device.warnings:
        yield from _wrapped("warning", warning)
    for happened, *again in _alike(device.events):
        yield _fact("event", _event(happened, again))
    yield from _missing(device.metrics)


def _spins(found: Sequence[Spin]) -> Iterator[str]:
    for spin in found[:SPINS_SHOWN]:
        yield from _wrapped("busy, no work", f"at {seconds(spin.begin_s)}: {spin.evidence}: {SPIN_MEANING}")
    if len(found) > SPINS_SHOWN:
        more = found[SPINS_SHOWN:]
        total = seconds(sum(spin.duration_s for spin in more))
        yield _fact("busy, no work", f"and {count(len(more))} times more, {total} in all")


def _installed(device: DeviceSummary) -> str | None:
    total = device.identity.static.get("mem_total_bytes")
    return memory(total) if total is not None else None


def _row(metric: MetricSummary) -> tuple[str, ...]:
    series = metric.series
    if series is None:
        return (title(metric.metric), MISSING, MISSING, MISSING, MISSING, "0")
    values = (series.mean, series.minimum, series.maximum, series.p95)
    is_outside = not series.minimum * 0.999 <= series.mean <= series.maximum * 1.001  # of power alone
    name = f"{title(metric.metric)}{' (mean: energy counter)' if is_outside else ''}"
    return (name, *(quantity(metric.metric, v) for v in values), count(series.samples))


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
    yield _fact("held back", ", ".join(map(_share_text, faults)) or _never(throttling))
    if states:
        yield _fact("clock state", ", ".join(map(_share_text, states)))


def _share_text(item: ThrottleShare) -> str:
    source = f"{item.method}; {item.note}" if item.note else item.method
    return f"{throttle_title(item.reason)} {share(item.share)} of the time (by {source})"


def _never(throttling: Throttling) -> str:
    """Say that nothing held a device back, of the time and the reasons of which it told."""
    if throttling.told_share >= _TOLD_THROUGHOUT:
        return "never, as far as the device told"
    if throttling.told_share > 0:
        return f"never in {share(throttling.told_share)} of the readings; in the others it was not told"
    reasons = ", ".join(throttle_title(reason) for reason in throttling.counted)
    return f"never by counter ({reasons}); other reasons are not told"


def _total(total: Total) -> str:
    text = quantity(total.metric, total.increase)
    note = f" ({total.note})" if total.note else ""
    if total.is_least:
        return f"at least {text}{note}"
    if total.metric.endswith("_bytes") and total.covered_s > 0:
        return f"{text}, {memory(total.increase / total.covered_s)}/s{note}"
    return text + note


def _alike(events: Sequence[EventAt]) -> Iterable[list[EventAt]]:
    """Put events of the same kind and words together, in the order of their first."""
    found = grouped(((happened.event.title, happened.event.message), happened) for happened in events)
    return found.values()


def _event(happened: EventAt, again: Sequence[EventAt]) -> str:
    event = happened.event
    when = f"at {seconds(happened.at_s)}"
    if again:
        when = f"{count(len(again) + 1)} times, from {seconds(happened.at_s)} to {seconds(again[-1].at_s)}"
    return f"{event.title} {when}: {event.message}"


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
            if not held and device.throttling.told_share < _TOLD_THROUGHOUT:
                worst = "never, where told"
            yield (
                str(phase.name),
                seconds(phase.duration_s),
                str(device.identity.physical_index),
                *(quantity(metric, device.mean(metric)) for metric in _PHASE_METRICS),
                energy(device.energy.energy_j).partition(" (")[0],
                worst if device.throttling.known else MISSING,
            )


def render_balance(balances: tuple[Balance, ...]) -> str:
    """Write the load balance as one line a metric."""
    lines = []
    for balance in balances:
        label = f"{title(balance.metric):<20}"
        if balance.variation is None or balance.furthest is None:
            lines.append(f"{label}–  ({balance.missing})")
            continue
        furthest = quantity(balance.metric, balance.means[balance.furthest])
        lines.append(
            f"{label}{balance.band}, varies by {balance.variation * 100:.1f} % "
            f"over {len(balance.means)} GPUs; "
            f"furthest off: GPU {balance.furthest} with {furthest}"
        )
    return "\n".join(lines) + "\n"


def _fact(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH - 2}}  {text}"


def _wrapped(label: str, text: str) -> Iterator[str]:
    """Write a fact whose text is a long list over several lines."""
    width = _TEXT_WIDTH - _LABEL_WIDTH - 2
    first, *more = textwrap.wrap(unbroken(text), width, break_on_hyphens=False)
    yield _fact(label, rejoined(first))
    yield from (_fact("", rejoined(line)) for line in more)


def table(rows: Sequence[tuple[str, ...]], *, label_width: int = _LABEL_WIDTH - 2) -> Iterator[str]:
    """Align columns: the first to the left, numbers to the right, a last column of words to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(widths[0], label_width)
    words_last = rows[0][-1] in _HEADINGS_OF_WORDS
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        if words_last:
            cells[-1] = row[-1]
        yield ("  " + "  ".join(cells)).rstrip()
