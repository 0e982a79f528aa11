"""Is it ready? Roll up verdict cells and check outcomes from device to link to host to system.

In: the cells that a recipe requires (`verdict.aspects`) and the outcome of every check for every subject.
Out: a verdict with its reasons, and the tree behind it. READY means that readiness was demonstrated: each
required cell was evaluated as precisely as the recipe demands, and passed. An additional failure never
improves the verdict.

>>> roll_up([]).word
'INCONCLUSIVE'
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.base.errors import ExitCode
from gpuproof.base.groups import grouped
from gpuproof.base.units import first_of
from gpuproof.records.outcome import Judged, parent_of
from gpuproof.records.result import WHOLE
from gpuproof.verdict.aspects import (
    OF_STATUS,
    RATES,
    STANDINGS,
    AspectCell,
    AspectTable,
    Standing,
    why_of,
    with_status,
)

ReadinessWord = Literal["READY", "READY-WITH-EXCLUSIONS", "INCONCLUSIVE", "NOT-READY"]
WORDS: tuple[ReadinessWord, ...] = ("READY", "READY-WITH-EXCLUSIONS", "INCONCLUSIVE", "NOT-READY")
"""Ordered from best to worst."""
MOST_LISTED = 8
"""Maximum number of subjects to list when something applies to many."""
NOTHING_REQUIRED = "no aspect is required: whatever was measured, nothing needed proof (validate.aspects)"
NOT_JUDGED = "no required check judged it"
OPEN = "open: "
"""Prefix of the reason for undecided cells; the first line states it separately."""


NOTHING = AspectTable(cells=(), covered=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A subject, its combined status including everything below it, and the reasons."""

    subject: str
    standing: Standing
    """The worst status among its own checks and its parts."""
    failed: tuple[str, ...]
    """Its own required checks that failed, with the reasons."""
    undecided: tuple[str, ...]
    """Its own required checks that neither passed nor failed, with the reasons."""
    num_passed: int
    """Its own required checks that passed."""
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The verdict of a validation."""

    word: ReadinessWord
    reasons: tuple[str, ...]
    """Reasons why the verdict is not better, most severe first."""
    tree: Branch
    excluded: tuple[str, ...] = ()
    """Hosts and devices that failed, when the remaining ones can be used."""
    cells: tuple[AspectCell, ...] = ()
    """The requirements, and the result for each of them."""
    capped: str | None = None
    """Reason why the verdict cannot be better than INCONCLUSIVE; None if it is not capped."""
    uncapped: ReadinessWord = "INCONCLUSIVE"
    """The verdict that would apply without the cap."""


def roll_up(
    judged: Sequence[Judged],
    *,
    table: AspectTable = NOTHING,
    subjects: Iterable[str] = (),
    members: Mapping[str, Collection[str]] | None = None,
    capped: str | None = None,
) -> Readiness:
    """Combine cells and outcomes into one verdict.

    `table` contains the recipe's requirements. `subjects` are the hosts and devices that exist: each must be
    evaluated, directly or through its parts. `members` maps CASE/REPLICATE to the subjects that took part in
    the launch: a result for several subjects applies to those that remain only if no excluded subject took
    part. `capped` is the reason why the verdict cannot be better than INCONCLUSIVE.
    """
    required = [item for item in judged if item.is_required]
    tree = _tree(required, table, subjects)
    excluded = tuple(_excluded(tree))
    shared = tuple(_measured_with(excluded, table.cells, members or {}))
    word = _word(tree, required, excluded, is_lacking=not table.cells or bool(shared))
    shown = word if capped is None else max(word, "INCONCLUSIVE", key=WORDS.index)
    lacking = (*(() if table.cells else (NOTHING_REQUIRED,)), *shared)
    return Readiness(
        word=shown,
        reasons=() if shown == "READY" else tuple(_all_reasons(required, tree, table, lacking, capped)),
        tree=tree,
        excluded=excluded if word == "READY-WITH-EXCLUSIONS" else (),
        cells=table.cells,
        capped=capped,
        uncapped=word,
    )


def _tree(required: Sequence[Judged], table: AspectTable, subjects: Iterable[str]) -> Branch:
    """Return the tree of subjects, each with its outcomes and cells; cells replace metric rules."""
    checks = grouped((item.outcome.subject, item) for item in required)
    cells = grouped((cell.subject, cell) for cell in table.cells)
    return _branch(WHOLE, _parts([*subjects, *checks, *cells]), checks, cells, table.covered)


def _holds_back(item: Judged, covered: Collection[tuple[str, str]]) -> bool:
    """Report whether an inconclusive outcome leaves something undecided that no cell covers."""
    is_figure = item.measure is not None and item.basis != "none"
    is_covered = is_figure and (item.basis == "peers" or (item.name, item.outcome.subject) in covered)
    return OF_STATUS[item.outcome.status] == "undecided" and not is_covered


def _measured_with(
    excluded: Collection[str], cells: Iterable[AspectCell], members: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Yield the cells for several subjects that were measured together with an excluded subject."""
    for cell in cells:
        of_these = [name for name in excluded if _is_part(name, cell.subject)]
        together = [
            name for record in cell.records for name in of_these if name in members.get(record, of_these)
        ]
        if cell.standing == "passed" and cell.aspect in RATES and together:
            names = listed(list(dict.fromkeys(together)))
            yield _of_subjects([cell.subject], f"{cell.title} was measured with {names}: repeat it without")


def _is_part(subject: str, of: str) -> bool:
    while subject != WHOLE:
        subject = parent_of(subject)
        if subject == of:
            return True
    return False


def exit_code_of(readiness: Readiness, *, allow_exclusions: bool) -> ExitCode:
    """Return 0 if ready, or if ready with allowed exclusions; otherwise 3 or 4, as elsewhere."""
    if readiness.word == "INCONCLUSIVE":
        return ExitCode.INCONCLUSIVE
    is_good = readiness.word == "READY" or (readiness.word == "READY-WITH-EXCLUSIONS" and allow_exclusions)
    return ExitCode.DONE if is_good else ExitCode.FAILED


def _parts(subjects: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of each subject, including hosts known only through a device."""
    parts: dict[str, list[str]] = {}
    for name in dict.fromkeys(subjects):
        child = name
        while child != WHOLE and child not in parts.setdefault(parent_of(child), []):
            parts[parent_of(child)].append(child)
            child = parent_of(child)
    return parts


def _branch(
    subject: str,
    parts: Mapping[str, Sequence[str]],
    checks: Mapping[str, Sequence[Judged]],
    cells: Mapping[str, Sequence[AspectCell]],
    covered: Collection[tuple[str, str]],
) -> Branch:
    below = tuple(_branch(name, parts, checks, cells, covered) for name in parts.get(subject, ()))
    items, of_cells = checks.get(subject, ()), cells.get(subject, ())
    failed = tuple(why_of(item) for item in items if OF_STATUS[item.outcome.status] == "failed")
    undecided = (
        *(why_of(item) for item in items if _holds_back(item, covered)),
        *(f"{cell.title}: {cell.reason}" for cell in of_cells if cell.standing == "undecided"),
    )
    if not items and not of_cells and not below:
        undecided = (NOT_JUDGED,)
    standing: Standing = "failed" if failed else "undecided" if undecided else "passed"
    return Branch(
        subject=subject,
        standing=max([standing, *(branch.standing for branch in below)], key=STANDINGS.index),
        failed=failed,
        undecided=undecided,
        num_passed=sum(item.outcome.status == "PASS" for item in items),
        branches=below,
    )


def _excluded(tree: Branch) -> Iterator[str]:
    """Yield hosts where the host, an internal link or every device failed; else failed devices."""
    for host in (branch for branch in tree.branches if branch.subject.startswith("host/")):
        links = [branch for branch in host.branches if branch.subject.startswith("link/")]
        devices = [branch for branch in host.branches if branch not in links]
        failed = [device.subject for device in devices if device.failed]
        is_link_failed = any(link.failed for link in links)
        if host.failed or is_link_failed or (devices and len(failed) == len(devices)):
            yield host.subject
        else:
            yield from failed


def _word(
    tree: Branch, required: Sequence[Judged], excluded: Collection[str], *, is_lacking: bool
) -> ReadinessWord:
    """Choose the verdict. If anything but the excluded subjects is undecided, the rest is unproven."""
    is_open = is_lacking or any(
        branch.undecided for branch in _all(tree) if not _is_within(branch.subject, excluded)
    )
    failed = [item.outcome.subject for item in required if item.outcome.status == "FAIL"]
    if not failed:
        return "INCONCLUSIVE" if is_open else "READY"
    left = [item for item in required if not _is_within(item.outcome.subject, excluded)]
    is_usable = any(x.outcome.status == "PASS" and x.outcome.subject.startswith("host/") for x in left)
    if is_open or not is_usable or not all(_is_within(x, excluded) for x in failed):
        return "NOT-READY"
    return "READY-WITH-EXCLUSIONS"


def _is_within(subject: str, excluded: Collection[str]) -> bool:
    ends = subject.removeprefix("link/").split(">") if subject.startswith("link/") else (subject,)
    return any(name in excluded or parent_of(name) in excluded for name in (subject, *ends))


def _all(tree: Branch) -> Iterator[Branch]:
    yield tree
    for branch in tree.branches:
        yield from _all(branch)


def _all_reasons(
    required: Sequence[Judged], tree: Branch, table: AspectTable, lacking: Iterable[str], capped: str | None
) -> Iterator[str]:
    """Yield each reason once, failures first; reasons from parts start with the part's name."""
    yield from _reasons("failed", required)
    yield from _reasons("undecided", [item for item in required if _holds_back(item, table.covered)])
    yield from _open_cells(table.cells)
    unjudged = [branch.subject for branch in _all(tree) if NOT_JUDGED in branch.undecided]
    if unjudged:
        yield _of_subjects(unjudged, NOT_JUDGED)
    yield from lacking
    if capped is not None:
        yield capped


def _reasons(kind: Standing, required: Iterable[Judged]) -> Iterator[str]:
    """Yield reasons for failed and undecided checks; undecided ones with equal reasons are combined."""
    reasons: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for item in required:
        if OF_STATUS[item.outcome.status] == kind:
            key = (item.outcome.status, item.outcome.summary, item.name if kind == "failed" else "")
            reasons.setdefault(key, {}).setdefault(item.name, []).append(item.outcome.subject)
    for (status, reason, _), checks in reasons.items():
        alike = grouped((tuple(subjects), name) for name, subjects in checks.items())
        for of, names in alike.items():
            yield _of_subjects(of, f"{with_status(listed(names), status)}: {reason}")


def _open_cells(cells: Iterable[AspectCell]) -> Iterator[str]:
    """Yield why cells are undecided and how to resolve them, grouping cells with the same reason."""
    alike: dict[tuple[str | None, str | None], dict[str, list[str]]] = {}
    for cell in cells:
        if cell.standing == "undecided":
            names = alike.setdefault((cell.reason, cell.next_step), {})
            names.setdefault(cell.name, []).append(cell.subject)
    for (reason, next_step), names in alike.items():
        of_all = ", ".join(name if of == [WHOLE] else f"{name} ({listed(of)})" for name, of in names.items())
        yield f"{OPEN}{of_all}: {reason}. {next_step}"


def _of_subjects(subjects: Sequence[str], reason: str) -> str:
    return reason if list(subjects) == [WHOLE] else f"{listed(subjects)}: {reason}"


def listed(subjects: Sequence[str]) -> str:
    """List subjects or checks; a long list is shortened.

    >>> listed(["host/a", "host/b"]), listed([f"host/{number}" for number in range(512)])[-27:]
    ('host/a, host/b', 'host/6, host/7 and 504 more')
    """
    return first_of(subjects, MOST_LISTED)
