"""How do a summary, a comparison and a load balance read? The text of `gpuproof monitor show` and `compare`.

In: what `readings` computed. Out: plain text, no wider than a terminal where names allow. Of a summary the
whole recording comes first, then one line a phase and GPU; of a comparison first whether the two are
comparable, then the figures, then their limits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from gpuproof.readings.balance import Balance
from gpuproof.readings.compare import MetricComparison, RecordingComparison, Side
from gpuproof.readings.energy import Energy
from gpuproof.readings.metric_text import STATE_REASONS, energy, quantity, throttle_title, title
from gpuproof.readings.spinning import SPIN_MEANING, Spin
from gpuproof.readings.summary import (
    DeviceSummary,
    EventAt,
    MetricSummary,
    RecordingSummary,
    Total,
    WindowSummary,
)
from gpuproof.readings.throttling import ThrottleShare, Throttling
from gpuproof.units import MISSING, count, memory, seconds, share, significant

_HEADINGS: Final = ("", "mean", "min", "max", "p95", "readings")
_PHASE_HEADINGS: Final = (
    "phase", "time", "GPU", "utilisation", "memory", "power", "SM clock", "energy", "held back"
)  # fmt: skip
_HEADINGS_OF_WORDS: Final = ("held back", "verdict")
_PHASE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w", "clock_sm_mhz")
_LABEL_WIDTH: Final = 22
SPINS_SHOWN: Final = 3
_TEXT_WIDTH: Final = 100

_COMPARISON_LIMITS: Final = (
    "The intervals (moving-block bootstrap) hold for these two recordings only: what another launch\n"
    "of either would give is not in them. To compare two configurations, measure each several times."
)

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
    if total.metric.endswith("_bytes") and total.covered_s > 0:
        return f"{text}, {memory(total.increase / total.covered_s)}/s"
    return text


def _event(happened: EventAt) -> str:
    event = happened.event
    return f"{event.title} at {seconds(happened.at_s)}: {event.message}"


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


def render_comparison(comparison: RecordingComparison) -> str:
    """Write a comparison as text that ends with a line end."""
    lines = [_side("A", comparison.first), _side("B", comparison.second), ""]
    lines += [*_conditions(comparison), "", f"Compared over {comparison.basis}."]
    rows: list[tuple[str, ...]] = [("", "A", "B", "B − A", "interval", "shown from", "verdict")]
    rows += [_compared_row(metric) for metric in comparison.metrics]
    lines += (
        list(_table(rows, label_width=0))
        if len(rows) > 1
        else ["Neither recording has a reading to compare there."]
    )
    judged = [m.difference for m in comparison.metrics if m.difference is not None]
    if judged:
        num = len(comparison.metrics)
        lines.append(
            f"Each interval has {judged[0].confidence:.2%}, so that those of {num} metrics all hold at 95 %."
        )
    lines += [f"  {title(m.metric)}: cannot tell: {m.reason}" for m in comparison.metrics if m.reason]
    lines += ["", _COMPARISON_LIMITS]
    return "\n".join(lines) + "\n"


def _side(letter: str, side: Side) -> str:
    return (
        f"{letter}: {side.source}: {side.num_gpus} GPU(s), {seconds(side.duration_s)}, "
        f"of which {seconds(side.used_s)} compared"
    )


def _conditions(comparison: RecordingComparison) -> Iterator[str]:
    weights = {condition.weight for condition in comparison.conditions}
    if not comparison.comparable:
        yield "NOT COMPARABLE as they stand: these conditions differ, and may be all that is seen below."
    elif "unknown" in weights:
        yield "Comparable as far as was recorded; some conditions are unknown."
    else:
        yield "Comparable: same GPU, driver, power limit and clock limits."
    words = {"differs": "differs", "unknown": "unknown", "note": "also differs"}
    for condition in comparison.conditions:
        both = f"A {condition.first}, B {condition.second}"
        yield f"  {words[condition.weight]:<14}{condition.where}, {condition.fact}: {both}"


def _compared_row(metric: MetricComparison) -> tuple[str, ...]:
    name, interval = metric.metric, metric.difference
    means = (quantity(name, metric.first_mean), quantity(name, metric.second_mean))
    if interval is None:
        return (title(name), *means, MISSING, MISSING, MISSING, metric.verdict)
    return (
        title(name),
        *means,
        signed(name, interval.centre) + _relative(metric),
        f"{signed(name, interval.low)} … {signed(name, interval.high)}",
        signed(name, metric.smallest_shown or 0.0).removeprefix("+"),
        metric.verdict,
    )


def signed(metric: str, value: float) -> str:
    """Write a difference with its sign; degrees and megahertz with decimals, as 0 would hide one.

    >>> signed("power_w", -12.5), signed("temp_gpu_c", 0.4)
    ('−12.5 W', '+0.400 °C')
    """
    unit = {"_c": "°C", "_mhz": "MHz"}.get(metric[metric.rindex("_") :])
    size = f"{significant(abs(value))} {unit}" if unit else quantity(metric, abs(value))
    if value == 0:
        return size
    return f"{'+' if value > 0 else '−'}{size}"


def _relative(metric: MetricComparison) -> str:
    """Add the difference in per cent, except where a ratio means nothing (°C) or misleads (per cents)."""
    if metric.metric.endswith(("_c", "_percent")) or not metric.first_mean or metric.difference is None:
        return ""
    share = metric.difference.centre / metric.first_mean * 100
    return f" ({'+' if share >= 0 else '−'}{significant(abs(share), 2)} %)"


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
    first, *more = textwrap.wrap(text, _TEXT_WIDTH - _LABEL_WIDTH - 2, break_on_hyphens=False)
    yield _fact(label, first)
    yield from (_fact("", line) for line in more)


def _table(rows: Sequence[tuple[str, ...]], *, label_width: int = _LABEL_WIDTH - 2) -> Iterator[str]:
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
