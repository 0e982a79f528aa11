"""Which cells a validation requires: its recipe's rows, for its plan and the existing subjects.

A recipe lists its rows (`validate.aspects`) before anything is measured, or uses `HARDWARE`: every row that
applies to the hardware. The label value `each` stands for every value in the plan (data types, operations,
models). For each measured rate that was not checked, a rule to fill in is written, so that people can agree
on a value; the measurement and published results for the same workload are listed next to it. Its number is
blank, and until it is filled in, the file is rejected with an error at that line: another tool's result is
not an agreement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.hardware.boards import PEAK_TYPE_OF_PRECISION
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, kind_of
from gpuproof.records.result import Doubt, Measure
from gpuproof.records.run import Start
from gpuproof.suites.validate.counted import subjects_there
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import Stage, device_subject
from gpuproof.suites.validate.plan import StageOrder
from gpuproof.suites.validate.rates import cell_measures, what_of
from gpuproof.verdict.aspects import RATES, AspectCell, RequiredAspect, Standing, agreements, cells_of
from gpuproof.verdict.facts import FleetFacts, setups_on
from gpuproof.verdict.rollup import Readiness, listed, roll_up
from gpuproof.verdict.rules.model import MeasureMatch
from gpuproof.verdict.rules.refusals import published_rate

EACH = "each"
FEW = 2
"""Maximum number of subjects listed in the first line."""
ALONE = "training-one"
HEAD = """\
# What nothing judged. Each rule is a contract: it judges "at least" what is agreed, and READY says it so.
# Fill in what you agree on, take away what you do not, then: gpuproof validate --from RUN --rules THIS-FILE
schema_version: 1
rules:
"""


def judge_readiness(
    order: StageOrder,
    facts: FleetFacts,
    judged: Sequence[Judged],
    *,
    unsettled: Mapping[str, Doubt],
    capped: str | None,
) -> Readiness:
    """Return the verdict over all cells that the recipe requires, for all subjects that should exist.

    `unsettled` maps each case that has an unsettled rate to its warning.
    """
    subjects = subjects_by_kind(subjects_there(facts))
    table = cells_of(
        required_rows(order.options, order.stages),
        subjects,
        judged=judged,
        measures=facts.measures,
        detects=order.options.detects,
        unsettled=unsettled,
    )
    members = members_of(facts.launches)
    return roll_up(judged, table=table, subjects=subjects["host"], members=members, capped=capped)


def required_rows(options: ValidateOptions, stages: Sequence[Stage]) -> tuple[RequiredAspect, ...]:
    """Return the rows of a recipe; a label set to `each` produces one row per value in the plan.

    A disk is required only if a folder was given.
    """
    rows = [row for row in options.aspects if row.aspect != "storage" or options.storage_dir is not None]
    planned = _planned_values(options, stages)
    return tuple(spread for row in rows for spread in _spread(row, planned))


def _spread(row: RequiredAspect, planned: Mapping[str, Sequence[str]]) -> Iterator[RequiredAspect]:
    name = next((name for name, value in row.labels.items() if value == EACH), None)
    if name is None:
        yield row
        return
    for value in planned.get(name) or ("none is planned",):  # a row without a result stays open
        yield from _spread(replace(row, labels={**row.labels, name: value}), planned)


def _planned_values(options: ValidateOptions, stages: Sequence[Stage]) -> dict[str, Sequence[str]]:
    cases = {case.name: case for stage in stages if stage.name == "training" for case in stage.cases}
    operations = (options.collective or {}).get("operations", ["all_reduce"])
    return {
        "dtype": [PEAK_TYPE_OF_PRECISION[precision] for precision in options.precisions],
        "operation": operations,
        "case": [name for name in cases if name != ALONE] or ["training"],
    }


def subjects_by_kind(there: Collection[str]) -> dict[str, list[str]]:
    """Return hosts, GPUs, and links within hosts: between GPUs, and between each GPU and its host.

    >>> subjects_by_kind(["host/a", "host/a/gpu/0"])["link"]
    ['link/host/a>host/a/gpu/0', 'link/host/a/gpu/0>host/a']
    """
    gpus = [subject for subject in there if kind_of(subject) == "gpu"]
    hosts = list(dict.fromkeys([subject.partition("/gpu/")[0] for subject in there]))
    to_host: list[str] = []
    between: list[str] = []
    for host in hosts:
        of_host = [gpu for gpu in gpus if gpu.startswith(f"{host}/gpu/")]
        ends = [pair for gpu in of_host for pair in ((host, gpu), (gpu, host))]
        to_host += [f"link/{begin}>{end}" for begin, end in ends]
        between += [f"link/{begin}>{end}" for begin, end in permutations(of_host, 2)]
    links = {"host_link": to_host, "device_link": between, "link": [*to_host, *between]}
    return {"gpu": gpus, "host": hosts, **links}


def members_of(launches: Sequence[CaseRecords]) -> dict[str, frozenset[str]]:
    """Return the hosts and devices that took part in each launch, keyed by CASE/REPLICATE."""
    members: dict[str, frozenset[str]] = {}
    for launch in launches:
        devices = (device_subject(host, setup.device) for host, setup in setups_on(launch))
        subjects = {*devices, *(f"host/{launch.host_of(start)}" for start in launch.of(Start))}
        members[f"{launch.case.case_id}/{launch.case.replicate}"] = frozenset(subjects)
    return members


def first_line(readiness: Readiness, ready_for: str | None) -> str:
    """Explain the verdict: the detectable loss, what was agreed, and what failed or is undecided."""
    if readiness.word in ("READY", "READY-WITH-EXCLUSIONS"):
        cells = [cell for cell in readiness.cells if cell.standing == "passed"]
        titles = ", ".join(dict.fromkeys(cell.title for cell in cells if cell.aspect in RATES))
        scope = f"for {ready_for} ({titles}): " if ready_for else ""
        without = f"without {', '.join(readiness.excluded)}: " if readiness.excluded else ""
        return scope + without + (shown_by(cells) or "nothing of speed")
    if readiness.uncapped == "READY":
        return f"nothing is open: {shown_by(readiness.cells) or 'nothing of speed'}"
    lines = [_standing_line("failed", readiness.cells)]
    lines += [_standing_line("undecided", readiness.cells)] * (readiness.word == "INCONCLUSIVE")
    return "; ".join(filter(None, lines)) or next(iter(readiness.reasons), "")


def _standing_line(standing: Standing, cells: Sequence[AspectCell]) -> str:
    """List the cells that failed or are undecided; empty if there are none."""
    subjects = grouped((cell.title, cell.subject) for cell in cells if cell.standing == standing)
    word = "failed" if standing == "failed" else "not shown"
    named = "; ".join(f"{title} ({_subjects_text(names)})" for title, names in subjects.items())
    return f"{word}: {named}" if named else ""


def _subjects_text(subjects: Sequence[str]) -> str:
    names = list(dict.fromkeys(subjects))
    return "all" if names == ["whole"] else listed(names) if len(names) <= FEW else f"{len(names)} of them"


def shown_by(cells: Sequence[AspectCell]) -> str:
    """Format each rate's coarsest resolution, or the agreed contract; empty if it has neither."""
    losses: dict[str, float] = {}
    for cell in cells:
        if cell.resolution is not None:
            rate = what_of(cell)
            losses[rate] = max(cell.resolution, losses.get(rate, 0.0))
    parts = [f"{rate} {units.share(loss)} slow" for rate, loss in losses.items()]
    agreed = "; ".join(f"{name}, measured {figures}" for name, figures in agreements(cells).items())
    seen = (
        f"{' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))} would have been detected"
        if parts
        else ""
    )
    return "; ".join(filter(None, (seen, agreed and f"by contract: {agreed}")))


def rules_to_fill(cells: Sequence[AspectCell], measures: Sequence[Measure], facts: FleetFacts) -> str | None:
    """Return the text of a rules file; None if no measured rate is undecided."""
    rules: dict[str, None] = {}
    for cell in cells:
        of_cell = list(cell_measures(cell, measures)) if _is_open_rate(cell) else []
        for unit in dict.fromkeys(measure.unit for measure in of_cell):
            rules[
                _rule(cell, [m for m in measures if _is_of(m, cell, of_cell[0]) and m.unit == unit], facts)
            ] = None
    return HEAD + "".join(rules) if rules else None


def _is_open_rate(cell: AspectCell) -> bool:
    return cell.standing == "undecided" and cell.aspect in RATES


def _is_of(measure: Measure, cell: AspectCell, first: Measure) -> bool:
    match = MeasureMatch.model_construct(name=str(cell.measure), labels=cell.labels)
    is_alike = kind_of(measure.subject) == kind_of(first.subject)
    return is_alike and measure.value is not None and match.picks(measure)


def _rule(cell: AspectCell, measures: Sequence[Measure], facts: FleetFacts) -> str:
    """Return one rule of the file, the same for all cells of a row."""
    first, better = measures[0], "at_most" if measures[0].better == "lower" else "at_least"
    ordered = sorted(measures, key=lambda measure: measure.value or 0.0)
    ends = (ordered[0], ordered[-1])
    rate = published_rate(first, facts)
    source = "nothing was published for it" if rate is None else f"published: {rate[0]:.4g}, {rate[1]}"
    labels = ", ".join(f"{name}: {_plain(value)}" for name, value in cell.labels.items())
    return (
        f"  - name: {cell.name}, agreed\n"
        f"    each: {'any' if cell.is_of_any else kind_of(first.subject)}\n"
        f"    measure: {{name: {first.name}, labels: {{{labels}}}}}\n"
        f"    # measured: {' to '.join(dict.fromkeys(measure.text for measure in ends))}; {source}\n"
        f"    expect: {{{better}: , unit: {first.unit!r}}}\n"
        f"    contract: true\n"
    )


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
