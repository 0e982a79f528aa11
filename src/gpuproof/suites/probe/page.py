"""The page of a probe: outcomes of its comparisons, a matrix of devices, and all results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.launches.probes import FINGERPRINT, WRONG_VALUES
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Judged, Status
from gpuproof.records.page import Cell, Chart, Notice, Notices, Page, Section, Tone
from gpuproof.records.page.tables import Column, measure_column, pivot
from gpuproof.records.result import LIMITED_BY, Measure, Result
from gpuproof.suites.probe.conclude import ProbeDetail
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.page import by_size, titled

TONES: Mapping[Status, Tone] = {"PASS": "good", "FAIL": "bad", "ERROR": "bad"}
MOST_CURVES = 16
THE_ONE = None
"""Key of a row's only measure."""
SHOWN_AS = {"size_bytes": units.memory, "message_bytes": units.memory, "block_bytes": units.memory}


def page(result: Result) -> Page:
    """Lay out outcomes, then the matrix of devices at the largest size, and then all results."""
    detail = from_json(ProbeDetail, result.detail, place="result.json: detail")
    measures = [measure for measure in result.measures if measure.name not in (FINGERPRINT, LIMITED_BY)]
    figures = pivot(
        "Measured",
        measures,
        (
            Column.of("what", lambda measure: measure.name, align="left"),
            Column.of("of", lambda measure: _short(measure.subject), align="left"),
            Column.of("conditions", lambda measure: _labels(measure.labels), align="left"),
        ),
        measure_column("value", THE_ONE, _value),
        measure_column("±", THE_ONE, lambda measure: measure.uncertainty or "", is_optional=True),
        key=lambda _: THE_ONE,
    )
    sections = (*_outcomes(result.outcomes), *_links(measures), *_matrix(measures), figures)
    return benchmark_page(result, detail.common, *sections, num_measures=0)


def _links(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Plot bytes per second against size, one curve per link; nothing if there are too many links."""
    of_sizes = [m for m in measures if m.unit == "B/s" and "size_bytes" in m.labels]
    for name, of_name in grouped((measure.name, measure) for measure in of_sizes).items():
        curves = grouped((_curve_name(m), (float(m.labels["size_bytes"]), m)) for m in of_name)
        if len({m.labels["size_bytes"] for m in of_name}) > 1 and len(curves) <= MOST_CURVES:
            yield by_size(f"{titled(name)} by size", name, curves)


def _curve_name(measure: Measure) -> str:
    others = {key: value for key, value in measure.labels.items() if key != "size_bytes"}
    return f"{_short(measure.subject)}, {_labels(others)}".removesuffix(", ")


def _outcomes(outcomes: Sequence[Judged]) -> Iterator[Section]:
    """Show each subject that did not pass; only count the others."""
    shown = [judged for judged in outcomes if judged.outcome.status != "PASS"]
    passed = len(outcomes) - len(shown)
    notices = [_notice(judged) for judged in shown]
    if passed:
        notices.append(Notice(word="PASS", tone="good", text=f"{passed} subjects: no problems found"))
    yield Notices(title="Compared", notices=tuple(notices))


def _notice(judged: Judged) -> Notice:
    outcome = judged.outcome
    return Notice(
        word=outcome.status,
        tone=TONES.get(outcome.status, "warn"),
        text=f"{judged.name}, {outcome.subject}: {outcome.reason or outcome.measured}",
        advice=outcome.next_step,
    )


def _matrix(measures: Sequence[Measure]) -> Iterator[Section]:
    """Show copies between all pairs of devices at the largest size: rows send, columns receive."""
    copies = [m for m in measures if m.labels.get("kind") == "d2d" and m.unit == "B/s"]
    largest = max((measure.labels["size_bytes"] for measure in copies), default=0)
    one_way = [m for m in copies if (m.labels["size_bytes"], m.labels["direction"]) == (largest, "one_way")]
    if one_way:
        ends = dict.fromkeys(end for measure in one_way for end in _ends(measure))
        yield pivot(
            f"From each device (row) to each other, {units.memory(largest)}, one way",
            one_way,
            (Column.of("from", lambda measure: _device(_ends(measure)[0]), align="left"),),
            *(measure_column(_device(end), end) for end in ends),
            key=lambda measure: _ends(measure)[1],
        )


def _ends(measure: Measure) -> tuple[str, str]:
    sender, _, receiver = measure.subject.removeprefix("link/").partition(">")
    return sender, receiver


def _device(end: str) -> str:
    return end.rpartition("/gpu/")[2]


def _short(subject: str) -> str:
    """Format a subject for display: only host and device names are shown.

    >>> _short("link/host/a>host/a/gpu/GPU-1")
    'a → a GPU-1'
    """
    ends = subject.removeprefix("link/").split(">")
    return " → ".join(end.removeprefix("host/").replace("/gpu/", " ") for end in ends)


def _labels(labels: Mapping[str, Any]) -> str:
    shown = (
        SHOWN_AS[key](value) if key in SHOWN_AS else f"{key.replace('_', ' ')} {value}".replace("_", " ")
        for key, value in labels.items()
    )
    return ", ".join(shown)


def _value(measure: Measure) -> Cell:
    if measure.value is None:
        return Cell(measure.missing or measure.detail, "warn")
    return Cell(measure.text, "bad" if measure.name == WRONG_VALUES and measure.value else "plain")
