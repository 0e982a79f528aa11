"""Is it ready? Outcomes of checks, rolled up from device to link to host to all.

In: what every check said of every subject. Out: a word with its reasons, and the tree that it comes from.
READY is what was shown: each required check passed (or has evidence that there is nothing to check), each
known subject was judged, and each figure was held against an absolute expectation or the fleet's baseline.
Peers alone cannot make a uniformly slow fleet READY, and no word is better for a failure more.

>>> roll_up([]).word
'INCONCLUSIVE'
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.errors import ExitCode
from gpuproof.records.outcome import Judged, Status
from gpuproof.records.result import WHOLE

ReadinessWord = Literal["READY", "READY-WITH-EXCLUSIONS", "INCONCLUSIVE", "NOT-READY"]
WORDS: tuple[ReadinessWord, ...] = ("READY", "READY-WITH-EXCLUSIONS", "INCONCLUSIVE", "NOT-READY")
"""From the best to the worst."""
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
"""Of a required check. WARN is neither shown to be right nor shown to be wrong; SKIP was not measured."""
MOST_LISTED = 8
"""Subjects that are named where something is said of many."""
NO_EXPECTATION = (
    "no figure was compared with an absolute expectation or a baseline: record a baseline on machines "
    "that are known to be good (gpuproof baseline record NAME RUN…, then --baseline NAME), or give rules "
    "with figures "
    "(--rules FILE)"
)
NOT_JUDGED = "no required check judged it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A subject, how it and all below it stand, and why."""

    subject: str
    standing: Standing
    """The worst of its own checks and of its parts."""
    failed: tuple[str, ...]
    """Its own required checks that failed, and on what ground."""
    undecided: tuple[str, ...]
    """Its own required checks that neither passed nor failed, and why."""
    num_passed: int
    """Its own required checks that passed."""
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The verdict of a validation."""

    word: ReadinessWord
    reasons: tuple[str, ...]
    """Why it is no better, the gravest first."""
    tree: Branch
    excluded: tuple[str, ...] = ()
    """Hosts and devices that failed while what is left can be used."""
    minimum_detectable: float | None = None
    """The largest of the smallest slowdowns that required checks of figures could have shown, as a share."""
    not_detectable: tuple[str, ...] = ()
    """Required checks that passed on figures of which nobody knows how small a slowdown they show."""
    capped: str | None = None
    """Why nothing better than INCONCLUSIVE can be said here; None where no cap was set."""
    uncapped: ReadinessWord = "INCONCLUSIVE"
    """What it would have been without the cap."""


def roll_up(
    judged: Sequence[Judged], *, subjects: Iterable[str] = (), capped: str | None = None
) -> Readiness:
    """Roll outcomes up to one verdict.

    `subjects` are the hosts and devices that there are: each has to be judged, by itself or in its parts.
    `capped` says why the word may be INCONCLUSIVE at best.
    """
    required = [item for item in judged if item.is_required]
    checks: dict[str, list[Judged]] = {}
    for item in required:
        checks.setdefault(item.outcome.subject, []).append(item)
    tree = _branch(WHOLE, _parts([*subjects, *checks]), checks)
    lacking = tuple(_lacking(required))
    excluded = tuple(_excluded(tree))
    found = _word(tree, required, excluded, is_lacking=bool(lacking))
    word = found if capped is None else max(found, "INCONCLUSIVE", key=WORDS.index)
    detectable = [x for x in required if x.outcome.status == "PASS" and x.basis != "none"]
    known = [x.outcome.minimum_detectable for x in detectable if x.outcome.minimum_detectable is not None]
    return Readiness(
        word=word,
        reasons=() if word == "READY" else tuple(_all_reasons(required, tree, lacking, capped)),
        tree=tree,
        excluded=excluded if found == "READY-WITH-EXCLUSIONS" else (),
        minimum_detectable=max(known, default=None),
        not_detectable=tuple(
            dict.fromkeys(x.name for x in detectable if x.outcome.minimum_detectable is None)
        ),
        capped=capped,
        uncapped=found,
    )


def exit_code_of(readiness: Readiness, *, allow_exclusions: bool) -> ExitCode:
    """Return 0 where it is ready, or ready with exclusions that are allowed; 3 and 4 as everywhere."""
    if readiness.word == "INCONCLUSIVE":
        return ExitCode.INCONCLUSIVE
    is_good = readiness.word == "READY" or (readiness.word == "READY-WITH-EXCLUSIONS" and allow_exclusions)
    return ExitCode.DONE if is_good else ExitCode.FAILED


def parent_of(subject: str) -> str:
    """Return what a subject is a part of: a device of its host, a link of the host that both ends are on.

    >>> parent_of("host/a/gpu/1"), parent_of("link/host/a/gpu/1>host/a/gpu/2"), parent_of("link/a>b")
    ('host/a', 'host/a', 'whole')
    """
    if subject.startswith("link/"):
        ends = {_host_of(end) for end in subject.removeprefix("link/").split(">", 1)}
        return next(iter(ends)) or WHOLE if len(ends) == 1 else WHOLE
    return _host_of(subject) or WHOLE if "/gpu/" in subject else WHOLE


def _host_of(subject: str) -> str | None:
    host, separator, _ = subject.partition("/gpu/")
    return host if separator and host.startswith("host/") else None


def _parts(subjects: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of each subject, hosts included of which only a device is known."""
    parts: dict[str, list[str]] = {}
    for name in dict.fromkeys(subjects):
        child = name
        while child != WHOLE and child not in parts.setdefault(parent_of(child), []):
            parts[parent_of(child)].append(child)
            child = parent_of(child)
    return parts


def _branch(
    subject: str, parts: Mapping[str, Sequence[str]], checks: Mapping[str, Sequence[Judged]]
) -> Branch:
    below = tuple(_branch(name, parts, checks) for name in parts.get(subject, ()))
    own = checks.get(subject, ())
    said = {
        standing: tuple(_reason(item) for item in own if OF_STATUS[item.outcome.status] == standing)
        for standing in STANDINGS
    }
    undecided = said["undecided"] if own or below else (NOT_JUDGED,)
    standings = [OF_STATUS[item.outcome.status] for item in own] or ["passed" if below else "undecided"]
    return Branch(
        subject=subject,
        standing=max([*standings, *(branch.standing for branch in below)], key=STANDINGS.index),
        failed=said["failed"],
        undecided=undecided,
        num_passed=sum(item.outcome.status == "PASS" for item in own),
        branches=below,
    )


def _reason(item: Judged) -> str:
    return f"{item.name} {item.outcome.status}: {_said(item)}"


def _said(item: Judged) -> str:
    outcome = item.outcome
    return outcome.reason or f"{outcome.measured}, expected {outcome.expected}"


def _lacking(required: Sequence[Judged]) -> Iterator[str]:
    """Yield what no expectation covers: peers that are alike may all be slow."""
    figures = [item for item in required if item.outcome.status == "PASS" and item.basis != "none"]
    covered = {_metric(item) for item in figures if item.basis != "peers"}
    if not covered:
        yield NO_EXPECTATION
    for metric in dict.fromkeys(_metric(item) for item in figures):
        if covered and metric not in covered:
            yield f"{metric} was compared with peers alone, and all of them may be slow"


def _metric(item: Judged) -> str:
    return item.metric or item.name


def _excluded(tree: Branch) -> Iterator[str]:
    """Yield the hosts that failed themselves, in a link within, or in every device, and else the devices."""
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
    """Choose the word. Where anything is open but in what is excluded, what is left was not shown either."""
    is_open = is_lacking or any(
        branch.undecided for branch in _all(tree) if not _is_within(branch.subject, excluded)
    )
    failed = [item.outcome.subject for item in required if item.outcome.status == "FAIL"]
    if not failed:
        return "INCONCLUSIVE" if is_open else "READY"
    left = [item for item in required if not _is_within(item.outcome.subject, excluded)]
    is_usable = any(x.outcome.status == "PASS" and x.outcome.subject.startswith("host/") for x in left)
    if is_open or not is_usable or any(_lacking(left)) or not all(_is_within(x, excluded) for x in failed):
        return "NOT-READY"
    return "READY-WITH-EXCLUSIONS"


def _is_within(subject: str, excluded: Collection[str]) -> bool:
    return subject in excluded or parent_of(subject) in excluded


def _all(tree: Branch) -> Iterator[Branch]:
    yield tree
    for branch in tree.branches:
        yield from _all(branch)


def _all_reasons(
    required: Sequence[Judged], tree: Branch, lacking: Iterable[str], capped: str | None
) -> Iterator[str]:
    """Yield every reason once, failures first; those of parts bear their names."""
    yield from _reasons("failed", required)
    yield from _reasons("undecided", required)
    unjudged = [branch.subject for branch in _all(tree) if NOT_JUDGED in branch.undecided]
    if unjudged:
        yield _of_subjects(unjudged, NOT_JUDGED)
    yield from lacking
    if capped is not None:
        yield capped


def _reasons(kind: Standing, required: Iterable[Judged]) -> Iterator[str]:
    """Yield why checks failed or were undecided; the latter share a reason where it is that of several."""
    found: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for item in required:
        if OF_STATUS[item.outcome.status] == kind:
            key = (item.outcome.status, _said(item), item.name if kind == "failed" else "")
            found.setdefault(key, {}).setdefault(item.name, []).append(item.outcome.subject)
    for (status, said, _), checks in found.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, subjects in checks.items():
            alike.setdefault(tuple(subjects), []).append(name)
        for of, names in alike.items():
            yield _of_subjects(of, f"{listed(names)} {status}: {said}")


def _of_subjects(subjects: Sequence[str], reason: str) -> str:
    return reason if list(subjects) == [WHOLE] else f"{listed(subjects)}: {reason}"


def listed(subjects: Sequence[str]) -> str:
    """Name subjects, or checks, the first of many.

    >>> listed(["host/a", "host/b"]), listed([f"host/{number}" for number in range(512)])[-27:]
    ('host/a, host/b', 'host/6, host/7 and 504 more')
    """
    more = f" and {len(subjects) - MOST_LISTED} more" if len(subjects) > MOST_LISTED else ""
    return f"{', '.join(subjects[:MOST_LISTED])}{more}"
