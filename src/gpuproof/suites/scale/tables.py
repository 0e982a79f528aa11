"""Tables of a scaling study beyond its speed-ups: what steps are made of, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuproof.base import units
from gpuproof.records.page import Pivot
from gpuproof.records.page.tables import Column, figure, pivot
from gpuproof.records.result import Measure
from gpuproof.suites.scale.lines import LEARNING_ALIKE
from gpuproof.suites.scale.measures import (
    COMMUNICATION,
    EFFICIENCY,
    LEARNING,
    MEMORY,
    OVERHEAD,
    PARTS_OF_A_STEP,
    PHASES,
    PREDICTION,
)

OF_COMMUNICATION: Mapping[str, str] = {
    "sync_difference": "added by averaging",
    "exposed": "exposed",
    "overlapped": "overlapped",
    "standalone": "all-reduces alone",
}
PARTS_OF_MEMORY = ("parameters", "gradients", "optimizer", "buckets", "activations", "together")


def overheads(measures: Sequence[Measure]) -> Pivot:
    """Tabulate what a step takes more than its share of one device's, in seconds and of the step."""
    return _pivot(
        "Overhead of a step: what it takes beyond its share of one device's step",
        measures,
        OVERHEAD,
        figure("mean step", "mean step"),
        figure("overhead", "overhead", _with_range),
        figure("of the step", "of the step"),
    )


def predictions(measures: Sequence[Measure]) -> Pivot:
    """Tabulate what more devices would give."""
    return _pivot(
        "Predicted, not measured: beyond the edge of the host, as if its own links went on",
        measures,
        PREDICTION,
        figure(EFFICIENCY, EFFICIENCY),
        Column.of("95 % interval", lambda row: _shares(row[EFFICIENCY])),
        Column.of("rests on", lambda row: row[EFFICIENCY].labels["law"], align="left"),
    )


def communication(measures: Sequence[Measure]) -> Pivot:
    """Tabulate the three measures of communication, and what is sent."""
    return _pivot(
        "Communication of a step",
        measures,
        COMMUNICATION,
        *(figure(title, way, _with_range) for way, title in OF_COMMUNICATION.items()),
        figure("bus bandwidth", "bus bandwidth"),
        figure("buckets", "buckets"),
    )


def phases(measures: Sequence[Measure]) -> Pivot:
    """Tabulate the phases of a step."""
    columns = (figure(name, name) for name in (*PARTS_OF_A_STEP, "sum", "residual", "timing overhead"))
    return _pivot("Phases of a step", measures, PHASES, *columns)


def learning(measures: Sequence[Measure]) -> Pivot:
    """Tabulate whether several devices learn what one does."""
    return _pivot(
        LEARNING_ALIKE,
        measures,
        LEARNING,
        *(figure(name, name) for name in ("losses apart", "norms correlate", "weights apart")),
        Column.of("alike", _is_alike, align="left"),
    )


def memory(measures: Sequence[Measure]) -> Pivot:
    """Tabulate the memory of the rank that holds the most."""
    return _pivot(
        "Memory of the rank that holds the most",
        measures,
        MEMORY,
        *(figure(name, name) for name in (*PARTS_OF_MEMORY, "measured peak")),
        *(figure(name, name, is_optional=True) for name in ("measured over expected", "of the device")),
    )


def _pivot(title: str, measures: Sequence[Measure], section: str, *columns: Column) -> Pivot:
    of_section = [measure for measure in measures if measure.labels.get("section") == section]
    return pivot(
        title,
        of_section,
        (
            Column.of("batch", lambda measure: units.count(measure.labels["batch_size"])),
            Column.of("devices", lambda measure: units.count(measure.labels["num_devices"])),
            Column.of("scaling", lambda measure: measure.labels["scaling"] or "", align="left"),
        ),
        *columns,
    )


def _with_range(measure: Measure) -> str:
    span = measure.interval
    if span is None:
        return measure.text
    ends = f"{units.seconds(span.low)} – {units.seconds(span.high)}"
    return f"{measure.text} ({units.NOT_WELL_ENOUGH if span.low <= 0 <= span.high else ends})"


def _shares(measure: Measure) -> str:
    span = measure.interval
    return units.MISSING if span is None else f"{units.share(span.low)} – {units.share(span.high)}"


def _is_alike(row: Mapping[str, Measure]) -> str:
    return "yes" if all(measure.labels["is_alike"] for measure in row.values()) else "NO"
