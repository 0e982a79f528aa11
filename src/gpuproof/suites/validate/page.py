"""The validation page, written for the recipient of the machine.

It shows what the result means for them, the measurements and their references, the undecided aspects, and the
command that decides them. Below that, collapsed, are all aspects, subjects, checks, stages and metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Judged, kind_of
from gpuproof.records.page import Cell, Commands, Page, Section, Table, Text, Tone, Verdict
from gpuproof.records.page.tables import Column, table
from gpuproof.records.result import A_LAUNCH, WHOLE, Measure, Result
from gpuproof.records.subject_names import named
from gpuproof.records.work.probe import CACHE_BANDWIDTH, HOST_BANDWIDTH, LAUNCH_LATENCY
from gpuproof.suites.many_subjects import values_table
from gpuproof.suites.sections import failures_section
from gpuproof.suites.validate.blamed import BLAME
from gpuproof.suites.validate.cells import shown_by
from gpuproof.suites.validate.conclude import StageRow, ValidateDetail
from gpuproof.suites.validate.exports import DRAIN_FILE
from gpuproof.suites.validate.measured import FLOPS_PER_WATT
from gpuproof.suites.validate.nodes import ChosenHosts, drain_lines, lines_of, one_line
from gpuproof.suites.validate.outcomes import RESUMED
from gpuproof.suites.validate.rates import RateRow, blame_charts, heat_map, peer_charts, what_of
from gpuproof.verdict.aspects import RATES, RECORD_OR_AGREE, AspectCell, Standing, agreements
from gpuproof.verdict.page import GRAVEST_FIRST, outcome_sections
from gpuproof.verdict.rollup import OPEN, Branch, Readiness, listed
from gpuproof.verdict.simulated import MEANING

NOUNS = {"gpu": "GPUs", "host": "hosts", "link": "links"}
AGREE = (
    "gpuproof baseline record NAME RUN",
    "gpuproof validate --from RUN --write-rules agreed.yaml",
)
"""Suggested commands: one for a machine that is known to be good, and one for agreeing on values."""
RESUME = "gpuproof validate --resume RUN"
OTHERS = (
    "others: published results from that tool; input data, duration and power are unknown, "
    "so they do not affect the verdict"
)
MOST_OPEN = 8
ADVISORY = {
    FLOPS_PER_WATT: "FLOP/s per watt of GEMM {}",
    LAUNCH_LATENCY: "kernel launch latency",
    CACHE_BANDWIDTH: "cache bandwidth",
    HOST_BANDWIDTH: HOST_BANDWIDTH,
}
"""Measures that buyers compare, and their names on the page."""
NOTHING_WRONG = "no problems found"
STILL_OPEN = "undecided (% of the data sheet)"
MOST_REASONS, MOST_OF_REASON, MOST_DRAINED, MOST_FAILED = 6, 240, 2, 24
MOST_ALONE = 4
"""Maximum number of subjects with the same result that each get a row."""
WORD_TONES: dict[str, Tone] = {"READY": "good", "READY-WITH-EXCLUSIONS": "warn", "INCONCLUSIVE": "warn"}
OPEN_WORDS = {"passed": "passed", "undecided": "open", "failed": "failed"}
STANDING_TONES: dict[str, Tone] = {"passed": "good", "undecided": "warn", "failed": "bad"}


def page(result: Result) -> Page:
    """Lay out a validation from its result."""
    detail = from_json(ValidateDetail, result.detail, place="result.json: detail")
    readiness = detail.readiness
    sections: list[Section] = [
        Text(title="", lines=(A_LAUNCH,)),
        rates_table(detail.rates),
        Text(title="", lines=(OTHERS,) if any(row.published for row in detail.rates) else ()),
        Text(title="", lines=tuple(_advisory(result.measures))),
        Text(title="Why", lines=tuple(_reasons(result, readiness))),
        *still_open(readiness),
        *(() if detail.chosen is None else (_hosts_text(detail.chosen),)),
        *failed_checks(result.outcomes),
        *_to_drain(detail),
        *heat_map(result.outcomes),
        *peer_charts(result.outcomes),
        *blame_charts(result.measures),
        *cells_tables(readiness.cells),
        replace(subjects_table(readiness.tree), is_folded=True),
        *_checks(result.outcomes, detail),
        _stages(detail.stages),
        Text(title="Left out", lines=tuple(line for row in detail.stages for line in row.left_out)),
        failures_section(result.failures),
        replace(
            values_table([measure for measure in result.measures if BLAME not in measure.labels]),
            is_folded=True,
        ),
        Text(title="Notes", lines=detail.common.notes),
    ]
    return Page(
        title=detail.common.title,
        verdict=_verdict(result, readiness, detail.rates),
        sections=tuple(section for section in sections if _has_something(section)),
    )


def _has_something(section: Section) -> bool:
    return any(getattr(section, name, None) for name in ("rows", "lines", "notices", "commands", "series"))


def _verdict(result: Result, readiness: Readiness, rates: Sequence[RateRow]) -> Verdict:
    """Return the verdict, its first reason, how many aspects are covered, and the next step."""
    reasons = [reason for reason in readiness.reasons if reason != MEANING]
    is_ready = readiness.word in ("READY", "READY-WITH-EXCLUSIONS") or not reasons
    open_cells = [cell for cell in readiness.cells if cell.standing == "undecided"]
    if is_ready:
        reason, advice = result.headline, None
    elif readiness.word == "INCONCLUSIVE" and open_cells:
        names = units.first_of(list(_open_names(open_cells, rates)), MOST_OPEN)
        shown = shown_by([cell for cell in readiness.cells if cell.standing == "passed"])
        reason = "; ".join(filter(None, (NOTHING_WRONG, shown, f"{STILL_OPEN}: {names}")))
        advice = open_cells[0].next_step
    else:
        reason = reasons[0]
        advice = _next_step(reason, result.outcomes, readiness.cells)
        reason = reason.removeprefix(OPEN).removesuffix(f". {advice}") + units.more_below(len(reasons) - 1)
    num_passed = sum(cell.standing == "passed" for cell in readiness.cells)
    aspects = f"{num_passed} of {len(readiness.cells)} required aspects shown" if readiness.cells else ""
    before_cap = "" if readiness.capped is None else f"before that cap: {readiness.uncapped}"
    return Verdict(
        word=result.verdict,
        tone=WORD_TONES.get(readiness.word, "bad"),
        reason=reason,
        headline="; ".join(filter(None, (aspects, before_cap))),
        advice=advice,
    )


def _open_names(cells: Sequence[AspectCell], rates: Sequence[RateRow]) -> Iterator[str]:
    """List what is undecided: rates with their values, and their data-sheet fractions or the MFU."""
    yield from dict.fromkeys(what_of(cell) for cell in cells if cell.aspect not in RATES)
    for row in (row for row in rates if row.standing == "undecided"):
        sheet = f" ({row.share_of_sheet})" if row.share_of_sheet else ""
        yield f"{row.what} {row.value}{sheet}"


def _next_step(reason: str, judged: Sequence[Judged], cells: Sequence[AspectCell]) -> str | None:
    """Return the next step for a reason, from the check or undecided aspect behind it."""
    steps = [(item.outcome.summary, item.outcome.next_step) for item in judged if item.is_required]
    steps += [(cell.reason or "", cell.next_step) for cell in cells]
    return next((step for summary, step in steps if summary and step and summary in reason), None)


def _reasons(result: Result, readiness: Readiness) -> Iterator[str]:
    """Yield reasons why the verdict is not better, except for undecided aspects, in a few lines each."""
    reasons = [reason for reason in readiness.reasons if not reason.startswith(OPEN)]
    reasons = [named(reason, result.device_indices) for reason in reasons]
    yield from (one_line(reason, room=MOST_OF_REASON) for reason in reasons[:MOST_REASONS])
    if len(reasons) > MOST_REASONS:
        yield f"and {units.count(len(reasons) - MOST_REASONS)} more reasons: the checks below list them all"


def _to_drain(detail: ValidateDetail) -> Iterator[Section]:
    lines = tuple(drain_lines(detail.drain))
    yield Commands(title="To drain in Slurm, if you agree", commands=lines[:MOST_DRAINED])
    if len(lines) > MOST_DRAINED:
        more = units.count(len(lines) - MOST_DRAINED)
        yield Text(title="", lines=(f"and {more} more nodes: {DRAIN_FILE}.txt lists them all",))


def rates_table(rates: Sequence[RateRow]) -> Table:
    """Lay out measurements with their references, data-sheet fractions and limiting factors."""
    return table(
        "Measured",
        rates,
        Column.of("what", lambda row: row.what, align="left"),
        Column.of("of", lambda row: row.of, align="left", folds=True),
        Column.of("value", lambda row: Cell(row.value, "strong")),
        Column.of("", lambda row: Cell(OPEN_WORDS[row.standing], STANDING_TONES[row.standing]), align="left"),
        Column.of("expected", lambda row: row.expected or "–", align="left", folds=True),
        Column.of("others", lambda row: row.published, align="left", folds=True, is_optional=True),
        Column.of("of sheet", lambda row: row.share_of_sheet, is_optional=True),
        Column.of("limited by", lambda row: row.limited_by, align="left", folds=True, is_optional=True),
    )


def _advisory(measures: Sequence[Measure]) -> Iterator[str]:
    """Yield values that buyers compare but verdicts ignore, with the lowest and highest of each."""
    alone = (m for m in measures if m.name in ADVISORY and m.value and not m.labels.get("at_once"))
    by_name = grouped((ADVISORY[m.name].format(m.labels.get("dtype")), m) for m in alone)
    ends = {name: sorted(of, key=lambda measure: measure.value or 0.0) for name, of in by_name.items()}
    texts = [f"{name} {' to '.join(dict.fromkeys((of[0].text, of[-1].text)))}" for name, of in ends.items()]
    if texts:
        yield f"advisory: {', '.join(texts)}"


def still_open(readiness: Readiness) -> Iterator[Section]:
    """Report why aspects are undecided, in one line per reason, and how to decide them.

    A baseline should not be recorded on a machine where something failed.
    """
    cells = readiness.cells
    alike = grouped(((cell.reason, cell.next_step), cell) for cell in cells if cell.standing == "undecided")
    lines = (
        f"{', '.join(dict.fromkeys(map(what_of, of)))}: {reason}\n→ {next_step}"
        for (reason, next_step), of in alike.items()
    )
    yield Text(title="Still open", lines=tuple(lines))
    steps = [step for _, step in alike]
    is_agreeable = readiness.uncapped == "INCONCLUSIVE" and RECORD_OR_AGREE in steps
    commands = (*((RESUME,) if RESUMED in steps else ()), *(AGREE if is_agreeable else ()))
    yield Commands(title="To close what is open", commands=commands)


def failed_checks(judged: Sequence[Judged]) -> Iterator[Section]:
    """Lay out the required checks that failed or reached no verdict, collapsed if there are many."""
    for section in outcome_sections("Failed checks", [item for item in judged if is_grave(item)]):
        is_long = isinstance(section, Table) and len(section.rows) > MOST_FAILED
        yield replace(section, is_folded=True) if isinstance(section, Table) and is_long else section


def is_grave(item: Judged) -> bool:
    """Report whether a required check failed or reached no verdict."""
    return item.is_required and item.outcome.status in ("FAIL", "ERROR")


def cells_tables(cells: Sequence[AspectCell]) -> Iterator[Table]:
    """Lay out what READY requires, collapsed: first what failed or is undecided, then what passed."""
    title = "What READY needs"
    for name, kind in (("failed", "failed"), ("open", "undecided"), ("passed", "passed")):
        of_kind = [cell for cell in cells if cell.standing == kind]
        yield replace(_cells_table(f"{title}: {len(of_kind)} {name}", of_kind), is_folded=True)


def _cells_table(title: str, cells: Sequence[AspectCell]) -> Table:
    """Lay out aspects with their subjects, and the detectable loss or how to evaluate them."""
    alike = grouped(((cell.aspect, cell.name, cell.standing, _how(cell)), cell) for cell in cells)
    return table(
        title,
        list(alike.values()),
        Column.of("aspect", lambda row: row[0].aspect, align="left"),
        Column.of("of", lambda row: row[0].name, align="left", folds=True),
        Column.of("subjects", _subjects, align="left", folds=True),
        Column.of("", lambda row: _standing(row[0].standing), align="left"),
        Column.of("would have shown", _resolutions, is_optional=True),
        Column.of("by, or why not", _ways, align="left", folds=True),
    )


def _subjects(cells: Sequence[AspectCell]) -> str:
    """Name a single subject, or count several; reasons list the undecided subjects."""
    if cells[0].subject == WHOLE:
        return "all"
    kind = NOUNS.get(kind_of(cells[0].subject), "subjects")
    return cells[0].subject if len(cells) == 1 else f"{units.count(len(cells))} {kind}"


def _resolutions(cells: Sequence[AspectCell]) -> str:
    losses = [cell.resolution for cell in cells if cell.resolution is not None]
    return units.share(max(losses)) if losses else ""


def _ways(cells: Sequence[AspectCell]) -> str:
    agreed = [f"{name}, measured {figures}" for name, figures in agreements(cells).items()]
    return "\n".join(agreed) or _how(cells[0])


def _how(cell: AspectCell) -> str:
    if cell.standing == "passed":
        return cell.contract or cell.reason or ", ".join(cell.decided_by)
    return cell.reason or ""


def _hosts_text(hosts: ChosenHosts) -> Text:
    return Text(title="Where to run", lines=tuple(lines_of(hosts)))


def subjects_table(tree: Branch) -> Table:
    """Lay out the result of each host and device; if many have the same result, they share a row."""
    return table(
        "By subject: all, host, device",
        list(_rows([tree], 0)),
        Column.of("subject", lambda row: f"{'· ' * row[0]}{_subject_text(row[1])}", align="left", folds=True),
        Column.of("", lambda row: _standing(row[1][0].standing), align="left"),
        Column.of("passed", lambda row: units.count(sum(branch.num_passed for branch in row[1]))),
        Column.of("why", lambda row: _reason(row[1][0]), align="left", folds=True),
    )


def _rows(branches: Sequence[Branch], depth: int) -> Iterator[tuple[int, Sequence[Branch]]]:
    """Yield branches with their children; many with the same result are merged into one row."""
    alike = grouped((_row_key(branch), branch) for branch in branches)
    for group in alike.values():
        for shown in [group] if len(group) > MOST_ALONE else [[branch] for branch in group]:
            yield depth, shown
            yield from _rows([part for branch in shown for part in branch.branches], depth + 1)


def _row_key(branch: Branch) -> object:
    """Return the content of a branch's row and of the rows below it; identical rows are shown once."""
    parts = frozenset(_row_key(part) for part in branch.branches)
    return branch.standing, branch.failed, branch.undecided, parts


def _subject_text(branches: Sequence[Branch]) -> str:
    if branches[0].subject == WHOLE:
        return "all"
    many = f"{units.count(len(branches))}: " if len(branches) > 1 else ""
    return f"{many}{listed([branch.subject for branch in branches])}"


def _reason(branch: Branch) -> str:
    """Return the failed and undecided items of a part; the reasons are given further up the page."""
    names = dict.fromkeys(text.partition(": ")[0] for text in branch.undecided)
    return "" if branch.subject == WHOLE else "\n".join((*branch.failed, *names))


def _standing(standing: Standing) -> Cell:
    return Cell(standing, STANDING_TONES[standing])


def _checks(judged: Sequence[Judged], detail: ValidateDetail) -> Iterator[Section]:
    others = (item for item in judged if not is_grave(item))
    rows = sorted(others, key=lambda item: (not item.is_required, GRAVEST_FIRST.index(item.outcome.status)))
    for section in outcome_sections("Checks", rows):
        yield replace(section, is_folded=True) if isinstance(section, Table) else section
    summary = f"{detail.num_rules} metric rules, from {detail.rules_source}"
    yield Text(title="", lines=(summary if detail.num_rules else "no metric rules were given",))


def _stages(rows: Sequence[StageRow]) -> Table:
    stages = table(
        "Stages",
        rows,
        Column.of("stage", lambda row: row.name, align="left"),
        Column.of("", lambda row: "required" if row.is_required else "advisory", align="left"),
        Column.of("launches", lambda row: f"{row.num_done}/{row.num_planned}"),
        Column.of("planned time", lambda row: f"{row.minutes:.1f} min"),
    )
    return replace(stages, is_folded=True)
