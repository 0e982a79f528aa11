"""The scope of a verdict: aspects × subjects, and how precisely each cell was evaluated.

Input: the rows that a recipe requires, the subjects that should exist, the outcomes of all rules and checks.
Output: one `AspectCell` for each row and subject. A rate cell is decided by the most sensitive required rule
that could be evaluated for it. The smallest loss that fails the rule's limit in 95 % of cases
(`minimum_detectable`) must be at most the required one, and the rule must use a number, a published value or
a baseline; a comparison with peers does not close a cell. A contract closes it as *at least X*. All other
cells are decided by the checks that they name. An undecided cell stays open, with the reason and the way to
decide it; no later input or measurement removes a row.

>>> row = RequiredAspect(aspect="compute", each="gpu", title="a GPU", measure="throughput")
>>> cells = cells_of([row], {"gpu": ["host/a/gpu/0"]}, judged=[], measures=[], detects=0.1).cells
>>> cells[0].standing, cells[0].reason
('undecided', 'it was not measured (throughput)')
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from gpuproof.base.groups import grouped
from gpuproof.base.units import share
from gpuproof.records.outcome import JUDGED, Judged, Status, parent_of
from gpuproof.records.result import WHOLE, Doubt, Measure

Aspect = Literal[
    "right results", "compute", "memory", "links", "collectives", "training", "storage", "host", "state"
]
RATES: frozenset[Aspect] = frozenset(("compute", "memory", "links", "collectives", "training", "storage"))
"""Aspects about speed; the others are about correctness."""
Standing = Literal["passed", "undecided", "failed"]
STANDINGS: tuple[Standing, ...] = ("passed", "undecided", "failed")
OF_STATUS: dict[Status, Standing] = {
    "PASS": "passed",
    "NOT-APPLICABLE": "passed",
    "WARN": "undecided",
    "ERROR": "undecided",
    "SKIP": "undecided",
    "FAIL": "failed",
}
"""State of a required check, by status. WARN: proved neither right nor wrong; SKIP: not measured."""
RECORD_OR_AGREE = (
    "Record a baseline on machines known to be good (gpuproof baseline record NAME RUN…, then --baseline "
    "NAME), or agree on values (--write-rules FILE writes rules to fill in, then --rules FILE)"
)
TELLING = ("dtype", "operation", "case")
"""Labels that distinguish cells with the same title."""
MEASURE_IT = "Keep its stage in the recipe (validate.stages), and test all devices (--nproc)"
OTHER_ARITHMETIC = "Name precisions that the device supports: '--validate.gemm_precisions=[fp32]'"
MEASURE_AGAIN = "Find out why it is INVALID (--verbose), fix that, and measure again"
SHARPEN = (
    "Measure with more launches (run.repeats), record the baseline on more runs and days, or mark "
    "an agreed value as a contract (contract: true)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredAspect:
    """A row of the table: what must be evaluated, and for which subjects."""

    aspect: Aspect
    """Topic of the row; `detects` says how precisely a rate must be evaluated."""
    each: Literal["gpu", "host", "link", "host_link", "device_link", "whole", "any"] = "gpu"
    """Which subjects it applies to: each GPU, each host, each link within a host, each link between a GPU and
    its host, each link between two GPUs, all together, or any one."""
    needs: Literal["devices", "hosts"] | None = None
    """Condition for the row: a subject has several devices, or there are several hosts."""
    title: str
    """The name for one of its subjects in the first line of a page: a GPU, a link, an all-reduce."""
    measure: str | None = None
    """The measure that decides the row."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Labels of that measure. The value `each` produces one cell for every planned value."""
    checks: tuple[str, ...] = ()
    """The checks that decide it if no measure does; all of them have to pass."""
    detects: float | None = None
    """The largest loss, as a fraction, that may go undetected; None means the recipe's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AspectCell:
    """One aspect of one subject, and how it was evaluated."""

    aspect: Aspect
    title: str
    subject: str
    measure: str | None = None
    """The measure that decides the cell; None if checks decide it."""
    is_of_any: bool = False
    """Whether any one subject is enough; if so, `subject` is the whole."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    standing: Standing
    resolution: float | None = None
    """The smallest loss that fails it in 95 % of cases, as a fraction; None for a contract or without a
    rate."""
    contract: str | None = None
    """The agreed value, if a contract decided the cell."""
    measured: str | None = None
    """The value measured for the contract, as text."""
    measured_value: float | None = None
    """The value measured for the contract, as a number."""
    decided_by: tuple[str, ...] = ()
    """Name of the rule or checks that decided the cell."""
    records: tuple[str, ...] = ()
    """The launches it is based on, as CASE/REPLICATE."""
    reason: str | None = None
    """Why it did not pass, or why it passed if there was nothing to measure."""
    next_step: str | None = None

    @property
    def name(self) -> str:
        """The title, plus what distinguishes cells with the same title."""
        return ", ".join(
            [self.title, *(str(self.labels[label]) for label in TELLING if label in self.labels)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AspectTable:
    """All cells, and the outcomes they cover."""

    cells: tuple[AspectCell, ...]
    covered: frozenset[tuple[str, str]]
    """Names and subjects of the value outcomes for which the cells report what is undecided."""


class _Outcomes:
    """Required outcomes and measured values, indexed by subject."""

    def __init__(
        self, judged: Iterable[Judged], measures: Iterable[Measure], unsettled: Mapping[str, Doubt]
    ) -> None:
        self.unsettled = unsettled
        self.figures: defaultdict[tuple[str, str], list[Judged]] = defaultdict(list)
        self.checks: defaultdict[str, dict[str, list[Judged]]] = defaultdict(dict)
        self.everywhere: defaultdict[str, list[Judged]] = defaultdict(list)
        self.measured: defaultdict[str, list[Measure]] = defaultdict(list)
        for item in judged:
            if not item.is_required:
                continue
            self.checks[item.name].setdefault(item.outcome.subject, []).append(item)
            if item.measure is not None:
                self.figures[item.measure, item.outcome.subject].append(item)
                self.everywhere[item.measure].append(item)
        for measure in measures:
            if measure.value is not None:
                self.measured[measure.name].append(measure)

    def values_of(self, row: RequiredAspect, subject: str) -> list[Measure]:
        """Return the values that a row requires: its measure, with its labels, for the subject."""
        return [
            measure
            for measure in self.measured[row.measure or ""]
            if has_labels({"case": measure.case, **measure.labels}, row)
            and (measure.subject == subject or row.each == "any")
        ]

    def launches_of(self, row: RequiredAspect, subject: str) -> list[Judged]:
        """Return the entries about the launches that a row asks for, by the row's stage and data type."""
        stage, of = row.labels.get("stage"), (subject, parent_of(subject), WHOLE)
        dtype = row.labels.get("dtype")
        launches = (x for x in self.everywhere["launches"] if x.labels.get("stage") == stage)
        same = (x for x in launches if dtype is None or x.labels.get("dtype") in (dtype, None))
        return [x for x in same if x.outcome.subject in of]

    def of_check(self, name: str, subject: str) -> list[Judged]:
        """Return a check's outcome for a subject, or else for its parent."""
        while subject not in self.checks[name] and subject != WHOLE:
            subject = parent_of(subject)
        return self.checks[name].get(subject, [])


def agreements(cells: Iterable[AspectCell]) -> dict[str, str]:
    """Return what was measured for each contract that decided cells: the value, or a range of values."""
    by_contract = grouped((cell.contract, cell) for cell in cells if cell.contract is not None)
    ordered = {name: sorted(group, key=_value) for name, group in by_contract.items()}
    ends = {
        name: dict.fromkeys(str(group[end].measured) for end in (0, -1)) for name, group in ordered.items()
    }
    return {name: " to ".join(texts) for name, texts in ends.items()}


def _value(cell: AspectCell) -> float:
    return cell.measured_value or 0.0


def cells_of(
    rows: Sequence[RequiredAspect],
    subjects: Mapping[str, Sequence[str]],
    *,
    judged: Sequence[Judged],
    measures: Sequence[Measure],
    detects: float,
    unsettled: Mapping[str, Doubt] | None = None,
) -> AspectTable:
    """Judge every cell; `subjects` lists the subjects of each kind that should exist.

    `unsettled` maps each case with a rate that had not settled to its warning; no rule decides the cells of
    these cases.
    """
    outcomes = _Outcomes(judged, measures, unsettled or {})
    cells: list[AspectCell] = []
    covered: set[tuple[str, str]] = set()
    there = {WHOLE, *chain.from_iterable(subjects.values())}
    for row in rows:
        for subject in _subjects(row, subjects):
            if row.measure is None:
                cells.append(_by_checks(row, subject, outcomes))
                continue
            of_cell = [x for x in _values(row, subject, outcomes) if x.outcome.subject in there]
            covered |= {(item.name, item.outcome.subject) for item in of_cell}
            cells.append(_by_values(row, subject, of_cell, outcomes, row.detects or detects))
    return AspectTable(cells=tuple(cells), covered=frozenset(covered))


def _subjects(row: RequiredAspect, subjects: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if row.needs == "hosts" and len(subjects.get("host", ())) < 2:
        return
    num_devices = Counter(parent_of(gpu) for gpu in subjects.get("gpu", ()))
    num_devices[WHOLE] = num_devices.total()
    for subject in (WHOLE,) if row.each in ("any", "whole") else subjects.get(row.each, ()):
        if row.needs != "devices" or num_devices[subject] > 1:
            yield subject


def _values(row: RequiredAspect, subject: str, outcomes: _Outcomes) -> Iterator[Judged]:
    assert row.measure is not None
    of_any = row.each == "any"
    for item in outcomes.everywhere[row.measure] if of_any else outcomes.figures[row.measure, subject]:
        if has_labels(item.labels, row):
            yield item


def has_labels(labels: Mapping[str, Any], row: RequiredAspect | AspectCell) -> bool:
    """Return whether a measure, or an outcome, has all labels of a row."""
    return all(name in labels and labels[name] == value for name, value in row.labels.items())


def _by_checks(row: RequiredAspect, subject: str, outcomes: _Outcomes) -> AspectCell:
    items = {name: outcomes.of_check(name, subject) for name in row.checks}
    bad = [item for of_check in items.values() for item in of_check if _standing(item) != "passed"]
    missing = [name for name, of_check in items.items() if not of_check]
    standings: list[Standing] = [*map(_standing, bad), "passed"]
    worst = max(standings, key=STANDINGS.index)
    reasons = [why_of(item) for item in bad if _standing(item) == worst]
    if missing and worst == "passed":
        worst, reasons = "undecided", [f"{', '.join(missing)}: nothing was judged"]
    first = next((item.outcome.next_step for item in bad), None)
    return AspectCell(
        aspect=row.aspect,
        title=row.title,
        subject=subject,
        labels=row.labels,
        standing=worst,
        decided_by=row.checks,
        records=_records(item for of_check in items.values() for item in of_check),
        reason="; ".join(dict.fromkeys(reasons)) or None,
        next_step=None if worst == "passed" else first or "Request these checks in the rules (check: NAME)",
    )


def _by_values(
    row: RequiredAspect, subject: str, items: Sequence[Judged], outcomes: _Outcomes, detects: float
) -> AspectCell:
    failed = [item for item in items if item.outcome.status == "FAIL"]
    unsettled = _unsettled(row, subject, outcomes)
    closing = None if failed or unsettled is not None else _closing(row, items, detects)
    absent = None if items else _nothing_to_measure(row, subject, outcomes)
    closing = closing or absent
    standing: Standing = "failed" if failed else "undecided" if closing is None else "passed"
    reason, next_step = None, None
    if failed:
        reason, next_step = "; ".join(dict.fromkeys(map(why_of, failed))), failed[0].outcome.next_step
    elif unsettled is not None:
        reason, next_step = unsettled.reason, unsettled.remedy
    elif absent is not None:
        reason = f"nothing to measure: {absent.outcome.reason}"
    elif closing is None:
        reason, next_step = _reason_open(row, subject, items, outcomes, detects)
    agreed = closing if closing is not None and closing.is_contract else None
    return AspectCell(
        aspect=row.aspect,
        title=row.title,
        subject=subject,
        measure=row.measure,
        is_of_any=row.each == "any",
        labels=row.labels,
        standing=standing,
        resolution=None if closing is None or agreed is not None else closing.outcome.minimum_detectable,
        contract=None if agreed is None else f"{agreed.name} {agreed.outcome.expected}",
        measured=None if agreed is None else agreed.outcome.measured,
        measured_value=None if agreed is None else agreed.outcome.measured_value,
        decided_by=_deciding(row, failed, closing),
        records=_records([] if closing is None else [closing] if row.aspect in RATES else items),
        reason=reason,
        next_step=next_step,
    )


def _unsettled(row: RequiredAspect, subject: str, outcomes: _Outcomes) -> Doubt | None:
    """Return the warning that a rate was measured before it settled; None if it was settled."""
    cases = (measure.case for measure in outcomes.values_of(row, subject) if row.aspect in RATES)
    return next((outcomes.unsettled[case] for case in cases if case in outcomes.unsettled), None)


def _deciding(row: RequiredAspect, failed: Sequence[Judged], closing: Judged | None) -> tuple[str, ...]:
    if row.aspect not in RATES:
        return (f"{row.measure} of {row.labels.get('stage', 'all')}",)
    return tuple(dict.fromkeys(item.name for item in (*failed, *filter(None, (closing,)))))


def _nothing_to_measure(row: RequiredAspect, subject: str, outcomes: _Outcomes) -> Judged | None:
    """Return a launch that shows that there is nothing to measure, if all launches of the row do.

    A data type that a device does not support counts as nothing to measure only if another type was measured.
    """
    launches = outcomes.launches_of(row, subject)
    others = replace(row, labels={name: value for name, value in row.labels.items() if name != "dtype"})
    has_others = "dtype" not in row.labels or bool(outcomes.values_of(others, subject))
    is_there = any(x.outcome.status != "NOT-APPLICABLE" for x in launches)
    return None if is_there or not has_others else next(iter(launches), None)


def _closing(row: RequiredAspect, items: Sequence[Judged], detects: float) -> Judged | None:
    """Return the outcome that decides a cell: for a rate, the most sensitive one, or else a contract."""
    passed = [item for item in items if _standing(item) == "passed"]
    if row.aspect not in RATES:
        return passed[0] if passed and len(passed) == len(items) else None
    losses = [(loss, item) for item in passed if (loss := _resolution(item)) is not None and loss <= detects]
    if losses:
        return min(losses, key=lambda pair: pair[0])[1]
    return next((item for item in passed if item.is_contract), None)


def _resolution(item: Judged) -> float | None:
    is_absolute = item.basis in ("absolute", "baseline") and not item.is_contract
    return item.outcome.minimum_detectable if is_absolute and item.outcome.status == "PASS" else None


def _reason_open(
    row: RequiredAspect, subject: str, items: Sequence[Judged], outcomes: _Outcomes, detects: float
) -> tuple[str, str]:
    """Explain why no required rule decides a cell, and what would decide it."""
    losses = [(loss, item.name) for item in items if (loss := _resolution(item)) is not None]
    undecided = [item for item in items if _standing(item) == "undecided" and item.basis != "peers"]
    if losses:
        loss, name = min(losses)
        seen = f"detects no loss under {share(loss)}" if loss < 1 else "cannot detect any loss"
        return f"{name} {seen}, and {share(detects)} must be detected", SHARPEN
    if undecided:
        return "; ".join(dict.fromkeys(map(why_of, undecided))), undecided[0].outcome.next_step or SHARPEN
    if any(item.basis in ("absolute", "baseline") for item in items):
        return "its rule passed, but the smallest loss it would have detected is unknown", SHARPEN
    values = outcomes.values_of(row, subject)
    if all(value.validity == "INVALID" for value in values):
        launches = [x for x in outcomes.launches_of(row, subject) if x.outcome.status != "PASS"]
        return _reason_not_measured(row, values, launches)
    if any(item.basis == "peers" and item.outcome.status in JUDGED for item in items):
        return "it was only compared with peers, and all of them may be slow", RECORD_OR_AGREE
    return "measured, but there is no required rule to judge it", RECORD_OR_AGREE


def _reason_not_measured(
    row: RequiredAspect, invalid: Sequence[Measure], launches: Sequence[Judged]
) -> tuple[str, str]:
    """Describe what was not measured, how to measure it, and why its launches failed, if they did."""
    if invalid:
        return "it was measured, but the measurement is INVALID", MEASURE_AGAIN
    name = " of stage ".join(filter(None, (row.measure, row.labels.get("stage"))))
    why = f": {launches[0].outcome.summary}" if launches else ""
    lacks = any(launch.outcome.status == "NOT-APPLICABLE" and "dtype" in row.labels for launch in launches)
    steps = (OTHER_ARITHMETIC if lacks else launch.outcome.next_step for launch in launches)
    return f"it was not measured ({name}){why}", next(filter(None, steps), MEASURE_IT)


def _standing(item: Judged) -> Standing:
    return OF_STATUS[item.outcome.status]


def why_of(item: Judged) -> str:
    """Return a check with its status and reason, on one line."""
    return f"{with_status(item.name, item.outcome.status)}: {item.outcome.summary}"


def with_status(names: str, status: str) -> str:
    """Write the status of checks next to their names.

    >>> with_status("links was measured", "SKIP"), with_status("links was measured", "FAIL")
    ('links was not measured', 'links was measured FAIL')
    """
    is_lacking = status == "SKIP" and names.endswith(" was measured")
    return names.replace(" was ", " was not ") if is_lacking else f"{names} {status}"


def _records(items: Iterable[Judged]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(record for item in items for record in item.outcome.records))
