"""Rules to fill in: one for each rate that was measured and that nothing judged, so that it can be agreed on.

What was measured, and what others published of the same work, stand beside it. The number is left blank, and
the file is refused, by its line, until it is filled in: another tool's figure is nobody's agreement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.records.outcome import kind_of
from gpuproof.records.result import Measure
from gpuproof.verdict.aspects import RATES, AspectCell
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.healthy import published_rate
from gpuproof.verdict.rules.model import MeasureMatch

HEAD = """\
# What nothing judged. Each rule is a contract: it judges "at least" what is agreed, and READY says it so.
# Fill in what you agree on, take away what you do not, then: gpuproof validate --from RUN --rules THIS-FILE
schema_version: 1
rules:
"""


def rules_to_fill(cells: Sequence[AspectCell], measures: Sequence[Measure], facts: FleetFacts) -> str | None:
    """Return the text of a file of rules; None where no rate that was measured is open."""
    rules: dict[str, None] = {}
    for cell in cells:
        of_cell = list(_cell_measures(cell, measures)) if _is_open_rate(cell) else []
        for unit in dict.fromkeys(measure.unit for measure in of_cell):
            rules[
                _rule(cell, [m for m in measures if _is_of(m, cell, of_cell[0]) and m.unit == unit], facts)
            ] = None
    return HEAD + "".join(rules) if rules else None


def _is_open_rate(cell: AspectCell) -> bool:
    return cell.standing == "undecided" and cell.aspect in RATES


def _cell_measures(cell: AspectCell, measures: Sequence[Measure]) -> Iterator[Measure]:
    match = MeasureMatch.model_construct(name=str(cell.measure), labels=cell.labels)
    for measure in measures:
        is_its = measure.subject == cell.subject or cell.is_of_any
        if is_its and measure.value is not None and match.picks(measure):
            yield measure


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
    source = "nothing was published of it" if rate is None else f"published: {rate[0]:.4g}, {rate[1]}"
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
