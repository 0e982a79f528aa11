"""The page of a validation: verdict and first reasons, the tree, every check, what was left out, figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Judged
from gpuproof.records.page import Cell, Column, Commands, Page, Section, Table, Text, Tone, Verdict, table
from gpuproof.records.result import Measure, Result
from gpuproof.suites.sections import failures_section
from gpuproof.suites.validate.conclude import StageRow, ValidateDetail
from gpuproof.suites.validate.nodes.drain import drain_lines
from gpuproof.suites.validate.nodes.spares import ChosenHosts, lines_of
from gpuproof.verdict.page import A_LAUNCH, outcome_sections
from gpuproof.verdict.rollup import Branch, Readiness

MOST_REASONS = 3
IN_RESULT_ALONE = re.compile(r"p\d+ step|mean step|per device|memory")
MEANING = {
    "READY": "every required check passed, also against figures other than those of peers",
    "READY-WITH-EXCLUSIONS": "all but what is named passed",
    "INCONCLUSIVE": "not everything that is required was measured and passed",
    "NOT-READY": "a required check failed",
}
WORD_TONES: dict[str, Tone] = {"READY": "good", "READY-WITH-EXCLUSIONS": "warn", "INCONCLUSIVE": "warn"}
STANDING_TONES: dict[str, Tone] = {"passed": "good", "undecided": "warn", "failed": "bad"}
ORDER = ("FAIL", "ERROR", "WARN", "SKIP", "NOT-APPLICABLE", "PASS")


def page(result: Result) -> Page:
    """Lay out a validation from its result."""
    detail = from_json(ValidateDetail, result.detail, place="result.json: detail")
    readiness = detail.readiness
    sections: list[Section] = [
        Text(title="", lines=(A_LAUNCH,)),
        Text(title="Why", lines=readiness.reasons),
        *(() if detail.chosen is None else (_chosen(detail.chosen),)),
        _tree(readiness.tree),
        *_checks(result.outcomes, detail),
        Commands(title="To drain in Slurm, if you agree", commands=tuple(drain_lines(detail.drain))),
        _stages(detail.stages),
        Text(title="Left out", lines=tuple(line for row in detail.stages for line in row.left_out)),
        failures_section(result.failures),
        *_figures(result.measures),
        Text(title="Notes", lines=detail.common.notes),
    ]
    return Page(
        title=detail.common.title,
        verdict=_verdict(result, readiness),
        sections=tuple(section for section in sections if _has_something(section)),
    )


def _has_something(section: Section) -> bool:
    return any(getattr(section, name, None) for name in ("rows", "lines", "notices", "commands"))


def _verdict(result: Result, readiness: Readiness) -> Verdict:
    reasons = readiness.reasons
    more = f" and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
    excluded = f"without {', '.join(readiness.excluded)}" if readiness.excluded else ""
    told = "; ".join(reasons[:MOST_REASONS]) + more
    meaning = ": ".join(filter(None, (excluded or MEANING[readiness.word], told)))
    return Verdict(
        headline=result.headline,
        uncertainty="",
        word=result.verdict,
        tone=WORD_TONES.get(readiness.word, "bad"),
        meaning=meaning,
    )


def _chosen(found: ChosenHosts) -> Text:
    return Text(title="Where to run", lines=tuple(lines_of(found)))


def _tree(tree: Branch) -> Table:
    rows = list(_branches(tree, 0))
    return table(
        "By subject: all, host, device",
        rows,
        Column.of("subject", lambda row: row[0], align="left"),
        Column.of("", lambda row: Cell(row[1].standing, STANDING_TONES[row[1].standing]), align="left"),
        Column.of("passed", lambda row: units.count(row[1].num_passed)),
        Column.of(
            "why", lambda row: "\n".join((*row[1].failed, *row[1].undecided)), align="left", folds=True
        ),
    )


def _branches(branch: Branch, depth: int) -> Iterator[tuple[str, Branch]]:
    name = "all" if depth == 0 else branch.subject
    yield f"{'· ' * depth}{name}", branch
    for part in branch.branches:
        yield from _branches(part, depth + 1)


def _checks(judged: Sequence[Judged], detail: ValidateDetail) -> Iterator[Section]:
    rows = sorted(judged, key=lambda item: (not item.is_required, ORDER.index(item.outcome.status)))
    yield from outcome_sections("Checks", rows)
    told = f"{detail.num_rules} rules of figures, from {detail.rules_source}"
    yield Text(title="", lines=(told if detail.num_rules else "no rules of figures were given",))


def _stages(rows: Sequence[StageRow]) -> Table:
    return table(
        "Stages",
        rows,
        Column.of("stage", lambda row: row.name, align="left"),
        Column.of("", lambda row: "required" if row.is_required else "advisory", align="left"),
        Column.of("launches", lambda row: f"{row.num_done}/{row.num_planned}"),
        Column.of("expected time", lambda row: f"{row.minutes:.1f} min"),
    )


def _is_shown(measure: Measure) -> bool:
    """Leave to result.json what is not there, and what of step times and memory nobody is asked about."""
    return measure.value is not None and IN_RESULT_ALONE.fullmatch(measure.name) is None


def _figures(measures: Sequence[Measure]) -> Iterator[Section]:
    """Lay out the figures of each stage, a row each."""
    for stage in dict.fromkeys(measure.labels.get("stage") for measure in measures):
        yield table(
            f"Figures of {stage}",
            [measure for measure in measures if measure.labels.get("stage") == stage and _is_shown(measure)],
            Column.of("case", lambda measure: measure.case, align="left"),
            Column.of("of", lambda measure: measure.subject, align="left", folds=True),
            Column.of("figure", lambda measure: measure.name, align="left"),
            Column.of("value", lambda measure: Cell(measure.text, "strong")),
            Column.of("", lambda measure: measure.uncertainty or "", is_optional=True),
            Column.of("detail", lambda measure: measure.missing or measure.detail, align="left", folds=True),
        )
