"""Turn runs into references: decide which results may represent a board, and why others may not.

In: results of finished runs. Out: entries for `references.toml` (never written by hand), and what was
omitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from statistics import fmean
from typing import Any

from gpuproof.base.errors import UsageError
from gpuproof.records.result import Measure
from gpuproof.verdict.baseline import SEVERAL, UNKNOWN, RunValues
from gpuproof.verdict.expectations import load_expectations
from gpuproof.verdict.references import (
    OF_RATE,
    SAME,
    SAME_MAJOR,
    SIMULATED_DRIVER,
    BoardReference,
    BoardReferences,
    card_of,
    labels_of_work,
    reason_provisional,
)
from gpuproof.verdict.rules.outcomes import reason_no_value

OF_WORK: Mapping[str, tuple[str, str, str]] = {
    "memory": ("device memory", "pattern", "operation"),
    "host link": ("host link", "kind", "direction"),
    "products": ("matrix multiply", "dtype", "dtype"),
}
"""Maps each of our rates to the corresponding rate in published values, and our labels to their
conditions."""


def make_references(
    runs: Sequence[RunValues], known: BoardReferences
) -> tuple[list[BoardReference], list[str]]:
    """Return one reference per workload, across all cards, and one line for each omitted value.

    Raises:
        UsageError: a run's conditions are unknown, differ between its cards, or differ from the first run's.
    """
    taken: dict[str, list[tuple[RunValues, Measure]]] = {}
    left_out: list[str] = []
    for run in runs:
        _refuse_conditions(run, runs[0])
        for measure in run.measures:
            quantity = known.quantity_of(measure)
            if quantity is None:
                continue
            conditions = OF_RATE.get(quantity.name, ())
            if (why := _reason_none(measure, conditions, run)) is None:
                work = [*labels_of_work(measure).items(), *((key, run.stack[key]) for key in conditions)]
                taken.setdefault(repr(sorted(work)), []).append((run, measure))
            else:
                left_out.append(f"{run.run_id}: {measure.case}, {measure.text or measure.name}: {why}")
    return [_reference(pairs, known) for pairs in taken.values()], left_out


def _refuse_conditions(run: RunValues, first: RunValues) -> None:
    for key in (*SAME, *SAME_MAJOR):
        value = run.stack.get(key)
        if key in SAME_MAJOR and value is None and str(run.stack.get("driver")).startswith(SIMULATED_DRIVER):
            continue
        if value is None or SEVERAL in value or value != first.stack.get(key):
            raise UsageError(
                f"its {key} is {value or UNKNOWN}, but {first.stack.get(key)} in {first.run_id}",
                place=run.run_id,
                next_step="Make references from runs of one board under known and equal conditions",
            )


def _reason_none(measure: Measure, conditions: Sequence[str], run: RunValues) -> str | None:
    """Explain why a value cannot become a reference."""
    if (why := reason_no_value(measure)) is not None:
        return why
    if card_of(measure.subject) is None:
        return f"it is for {measure.subject}, not for a single card"
    for key in conditions:
        if (value := run.stack.get(key)) is None or SEVERAL in value:
            return f"its {key} is {value or UNKNOWN}"
    if measure.validity != "VALID":
        return f"it is {measure.validity or 'of unknown validity'}"
    return "it has no interval" if measure.interval is None else None


def _reference(pairs: Sequence[tuple[RunValues, Measure]], known: BoardReferences) -> BoardReference:
    run, measure = pairs[0]
    quantity = known.quantity_of(measure)
    assert quantity is not None
    by_card: dict[str, list[float]] = {}
    for _, one in pairs:
        by_card.setdefault(card_of(one.subject) or "", []).append(one.value or 0.0)
    return BoardReference(
        board=str(run.stack["gpu"]),
        quantity=quantity.name,
        labels=labels_of_work(measure),
        unit=measure.unit,
        value=fmean(fmean(values) for values in by_card.values()),
        cards=tuple(sorted(by_card)),
        runs=tuple(dict.fromkeys(one.run_id for one, _ in pairs)),
        day=min(one.day or "" for one, _ in pairs),
        stack={
            key: value
            for key in (*SAME, *OF_RATE.get(quantity.name, ()), *SAME_MAJOR)
            if (value := run.stack.get(key)) is not None
        },
        independent=tuple(_independent(str(run.stack["gpu"]), quantity.name, measure, known)),
    )


def _independent(board: str, rate: str, measure: Measure, known: BoardReferences) -> Iterator[str]:
    """Yield published values for the same workload on the boards that the file lists for this board."""
    name, ours, theirs = OF_WORK[rate]
    boards = known.published_boards.get(f"{rate} of {board}", ())
    for figure in load_expectations().figures.values():
        is_of_work = figure.quantity == name and measure.labels.get(ours) == getattr(figure, theirs)
        if is_of_work and figure.kind == "measured" and figure.board in boards:
            yield figure.key


def as_toml(references: Sequence[BoardReference], known: BoardReferences) -> Iterator[str]:
    """Yield the entries as lines of references.toml; a provisional one says so in a comment."""
    quantities = {quantity.name: quantity for quantity in known.quantities}
    for reference in references:
        yield ""
        if (why := reason_provisional(reference, quantities[reference.quantity])) is not None:
            yield f"# provisional: {why}"
        yield "[[references]]"
        for field in fields(BoardReference):
            yield f"{field.name} = {_toml(getattr(reference, field.name))}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
