"""Common parts of benchmark pages: verdict, failures, warnings, readings during launches, notes.

Input: a result, and the common part of its detail. Output: a page with the suite's own sections between the
common ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.launches.explanations import LaunchExplanation
from gpuproof.launches.launch import Launch
from gpuproof.readings.evidence import DeviceWindow
from gpuproof.readings.limits import limit_sentence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import (
    Measures,
    Notice,
    Notices,
    Page,
    Pivot,
    Section,
    Table,
    Text,
    Tone,
    Verdict,
)
from gpuproof.records.page.tables import Column, table
from gpuproof.records.result import INCONCLUSIVE, Doubt, Measure, Result, how_launched
from gpuproof.records.run import Failure, NotApplied, Setup
from gpuproof.verdict.doubts.base import in_one_line, likely_first
from gpuproof.verdict.doubts.notices import NEIGHBOURS, doubts_sections

TONES: Mapping[str, Tone] = {"VALID": "good", "SUSPECT": "warn", "INVALID": "bad"}
MEANING = {
    "VALID": "no problems found",
    "SUSPECT": "use with care",
    "INVALID": "do not use these figures",
}
DURING = "Host and devices during the run"
READINGS = (
    ("busy", "util_gpu_percent", "%"),
    ("SM clock", "clock_sm_mhz", "MHz"),
    ("max SM clock", "clock_sm_max_mhz", "MHz"),
    ("power", "power_w", "W"),
    ("max temp", "temp_gpu_max_c", "°C"),
)
"""Columns of readings per device: title, field of `DeviceDuring`, unit."""
POINT = re.compile(r"^at \S+( \S+=\S+)*: ")
"""Location of a failure, as returned by `at_point`."""
ON_CPU = "CPU run: not comparable with any GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDuring:
    """Readings of one device during the window of one launch."""

    case_id: str
    replicate: int
    device: str
    util_gpu_percent: float | None
    clock_sm_mhz: float | None
    clock_sm_max_mhz: float | None
    power_w: float | None
    temp_gpu_max_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Anomalies in the readings during one launch."""

    case_id: str
    replicate: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointLabel:
    """The name of a point or test, for showing several hosts side by side."""

    case_id: str
    group: str
    """Groups the points of one table."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Fields that every benchmark's detail contains in addition to the suite's own."""

    title: str
    work: str
    """The title without the device: what ran, regardless of where."""
    names_cases: bool = False
    """Whether there are several cases, so that a launch is listed together with its case."""
    is_ranked: bool = False
    """Whether points are compared with the best one."""
    labels: tuple[PointLabel, ...] = ()
    """Labels that distinguish the points; empty if points are only numbered."""
    devices: tuple[DeviceDuring, ...] = ()
    remarks: tuple[Remark, ...] = ()
    was_read: bool = False
    """Whether any readings were taken during a launch."""
    least_coverage: float | None = None
    """Fraction of a window, 0 to 1, that is covered by readings, for the window with the least coverage."""
    not_applied: tuple[NotApplied, ...] = ()
    """Keys set by the user that had no effect here."""
    notes: tuple[str, ...] = ()


def read_during(explanations: Sequence[LaunchExplanation]) -> dict[str, Any]:
    """Return the `Common` fields that describe the readings taken during launches."""
    return {
        "devices": tuple(row for explanation in explanations for row in _devices(explanation)),
        "remarks": tuple(
            Remark(case_id=explanation.case_id, replicate=explanation.replicate, text=sentence)
            for explanation in explanations
            for sentence in explanation.sentences
        ),
        "was_read": bool(explanations),
        "least_coverage": min(_coverages(explanations), default=None),
    }


def _coverages(explanations: Iterable[LaunchExplanation]) -> Iterator[float]:
    for explanation in explanations:
        for host in explanation.readings:
            if host.readings.coverage is not None:
                yield host.readings.coverage.share


def without_effect(setups: Sequence[Setup], origins: Mapping[str, str]) -> tuple[NotApplied, ...]:
    """Return the keys that were set but had no effect in any launch; `setups` has one per launch."""
    ignored = [{item.key for item in setup.not_applied} for setup in setups]
    return tuple(
        item
        for setup in setups[:1]
        for item in setup.not_applied
        if all(item.key in keys for keys in ignored) and origins.get(item.key, "default") != "default"
    )


def notes_of_setup(launches: Sequence[Launch]) -> Iterator[str]:
    """Yield what the first launch reported about its setup, and a note if it ran on a CPU."""
    if launches:
        yield from launches[0].setup.notes
        if launches[0].setup.device.kind == "cpu":
            yield ON_CPU
        yield from _displays(launches)


def _displays(launches: Sequence[Launch]) -> Iterator[str]:
    """List display servers on a measured device; they use few resources, so they cause no warning."""
    desktops = {
        (window.host, setup.device.name, setup.device.uuid or ""): window.neighbours.display_servers
        for launch in launches
        for window, setup in zip(launch.windows, launch.setups, strict=False)
        if window.neighbours.display_servers
    }
    for (host, name, uuid), servers in desktops.items():
        yield f"{name} {uuid} of {host} also drives a display: {', '.join(servers)}"


def torn_notes(launches: Iterable[CaseRecords]) -> Iterator[str]:
    """Yield notes about lines that were truncated when a process was killed."""
    for launch in launches:
        yield from launch.torn


def _how_launched(result: Result) -> str:
    return how_launched(launch for measure in result.measures for launch in measure.launches)


def benchmark_page(
    result: Result,
    common: Common,
    *sections: Section,
    after: Iterable[Section] = (),
    num_measures: int | None = None,
) -> Page:
    """Lay out a benchmark: summary, warnings, results, its own sections, readings, notes.

    The first `num_measures` of the result's measures are shown among the results; None means all.
    """
    laid_out = (
        Text(title="", lines=(_how_launched(result),) if result.num_planned > 1 else ()),
        failures_section(result.failures),
        *doubts_sections(
            result.doubts, f"Why {result.validity or result.verdict}", num_launches=_num_replicates(result)
        ),
        Measures(title="Results", measures=result.measures[:num_measures]),
        *sections,
        *_during(common, result.doubts),
        *after,
        Text(
            title="Ignored settings",
            lines=tuple(f"{item.key}: {item.reason}" for item in common.not_applied),
        ),
        Text(title="Notes", lines=common.notes),
    )
    shown = tuple(section for section in laid_out if not _is_empty(section))
    return Page(title=common.title, verdict=_verdict(result), sections=shown)


def _is_empty(section: Section) -> bool:
    match section:
        case Measures():
            return not section.measures
        case Notices():
            return not section.notices
        case Pivot() | Table():
            return not section.rows
        case Text():
            return not section.lines
        case _:
            return False


def _verdict(result: Result) -> Verdict:
    """Return whether to trust the number and why, the number, its uncertainty, and what to do."""
    reasons = [_why(result)] if result.validity is not None else list(_lacking(result))
    if result.num_launches < result.num_planned:
        first = "" if result.num_launches else "".join(map(_cause, result.failures[:1]))
        reasons.append(f"{result.num_launches} of {result.num_planned} launches were measured{first}")
    steps = [failure.next_step for failure in result.failures]
    steps += [doubt.remedy for doubt in likely_first(result.doubts)]
    shown = result.headline.partition(";")[0]
    measured = (m for m in result.measures if m.value is not None)
    lead = next((m for m in measured if shown in (m.text, f"{m.text} {m.name}")), None)
    uncertainty = "" if lead is None else lead.uncertainty or "(uncertainty unknown)"
    if uncertainty == units.NOT_WELL_ENOUGH:
        uncertainty = f"({uncertainty})"
    return Verdict(
        word=result.verdict,
        tone=TONES.get(result.validity or "", "bad"),
        reason="; ".join(reasons),
        headline=result.headline,
        uncertainty=uncertainty,
        limit=limit_sentence(result.limit),
        advice=next(filter(None, steps), None),
    )


def _num_replicates(result: Result) -> int | None:
    """Return how many launches the headline covers; None if unknown."""
    launches = next((measure.launches for measure in result.measures if measure.launches), ())
    return len({launch.replicate for launch in launches}) or None


def _lacking(result: Result) -> Iterator[str]:
    """Yield why the run's main result has no value, if any launches finished."""
    if result.verdict.endswith(INCONCLUSIVE) and (first := next(iter(result.measures), None)) is not None:
        yield f"no {first.name}: {first.missing or first.detail}"


def _why(result: Result) -> str:
    """Return what the validity means and its most likely cause, in one line."""
    doubts = likely_first([doubt for doubt in result.doubts if doubt.validity == result.validity])
    meaning = MEANING[result.validity or "VALID"]
    if not doubts or result.validity == "VALID":
        return meaning
    is_named = result.validity == "SUSPECT"
    why = in_one_line(doubts) if is_named else doubts[0].reason + units.more_below(len(doubts) - 1)
    return f"{meaning}: {why}"


def headline(measures: Sequence[Measure]) -> str:
    """Return the first measure as standalone text; empty if there is no measure."""
    first = next(iter(measures), None)
    if first is None:
        return ""
    if first.value is None:
        return f"no {first.name}"
    return f"{first.text} {first.name}" if first.unit == "s" else first.text


def failures_section(failures: Iterable[Failure]) -> Notices:
    """Lay out one notice per failure; of failures that differ only in location, show the first."""
    alike = grouped(((x.cause, POINT.sub("", _first_line(x.message))), x) for x in failures)
    return Notices(title="What failed", notices=tuple(map(_failure, alike.values())))


def _cause(failure: Failure) -> str:
    return f": {failure.cause.replace('_', ' ')}: {_first_line(failure.message)}"


def _first_line(message: str) -> str:
    return next(iter(message.strip().splitlines()), "no message")


def _failure(alike: Sequence[Failure]) -> Notice:
    failure = alike[0]
    who = "the launch" if failure.rank is None else f"rank {failure.rank}"
    steps = f" after {units.count(failure.steps_done)} steps" if failure.steps_done else ""
    message = _first_line(failure.message)
    more = (
        f" (the first of {units.count(len(alike))} such failures; result.json has all)"
        if len(alike) > 1
        else ""
    )
    phase = f", phase {failure.phase}" if failure.rank is not None else ""
    return Notice(
        word=failure.cause.replace("_", " "),
        tone="bad",
        text=f"{who} on {failure.host}{phase}{steps}: {message}{more}",
        advice=failure.next_step,
    )


def _during(common: Common, doubts: Sequence[Doubt]) -> Iterator[Section]:
    """Show device and host activity in the windows: one row per device, then all anomalies."""
    if not common.was_read:
        return
    title = DURING
    lines = tuple(f"{_launch_name(remark, common)}: {remark.text}" for remark in common.remarks)
    least = common.least_coverage
    share = "" if least is None else "all" if least >= 1 else f"at least {int(least * 100)} %"
    cover = f"readings cover {share} of each window" if share else ""
    if common.devices:
        lines = (*lines, cover) if cover else lines
    elif not lines:
        named = any(doubt.code in NEIGHBOURS for doubt in doubts)
        rest = "and apart from the processes named above nothing unusual" if named else "nothing unusual"
        lines = (f"host: monitored during every launch{cover and f' ({cover})'}, {rest}",)
    if common.devices:
        known = [one for one in READINGS if any(getattr(row, one[1]) is not None for row in common.devices)]
        if missing := [name for name, *_ in READINGS if name not in {one[0] for one in known}]:
            lines = (*lines, f"not read: {', '.join(missing)}")
        yield table(
            title,
            common.devices,
            Column.of("launch", lambda row: _launch_name(row, common).removeprefix("launch "), align="left"),
            Column.of("device", lambda row: row.device, align="left"),
            *(_reading(*one) for one in known),
        )
    yield Text(title="" if common.devices else title, lines=lines)


def _reading(name: str, field: str, unit: str) -> Column:
    def cell(row: DeviceDuring) -> str:
        value = getattr(row, field)
        return units.MISSING if value is None else f"{value:,.0f} {unit}"

    return Column.of(name, cell)


def _launch_name(of: Remark | DeviceDuring, common: Common) -> str:
    launch = f"launch {of.replicate + 1}"
    if not common.names_cases:
        return launch
    has_repeats = any(row.replicate for row in common.devices) or any(one.replicate for one in common.remarks)
    return f"{of.case_id}, {launch}" if has_repeats else of.case_id


def _devices(explanation: LaunchExplanation) -> Iterator[DeviceDuring]:
    for host in explanation.readings:
        window_s = host.readings.end_monotonic_s - host.readings.begin_monotonic_s
        for device in host.readings.devices:
            index = str(device.physical_index)
            yield DeviceDuring(
                case_id=explanation.case_id,
                replicate=explanation.replicate,
                device=f"GPU {index} {host.device_names[index]}",
                util_gpu_percent=device.util_gpu_percent,
                clock_sm_mhz=device.clock_sm_mhz,
                clock_sm_max_mhz=device.clock_sm_max_mhz,
                power_w=_mean_power_w(device, window_s),
                temp_gpu_max_c=device.temp_gpu_max_c,
            )


def _mean_power_w(device: DeviceWindow, window_s: float) -> float | None:
    """Return the mean power over the part of a window for which energy is available."""
    if device.energy_j is None or not device.energy_coverage:
        return None
    return device.energy_j / (device.energy_coverage * window_s)


def at_point(failure: Failure, case_id: str) -> Failure:
    """Return a failure that includes the point at which it occurred."""
    return replace(failure, message=f"at {case_id}: {failure.message}")
