"""Was a collective slow, wrong, or did it not end? What asks for a search of who is to blame.

Slow is told by the rules (`judging.short_of_rules`), against other hosts' own collectives, and against the
launches of the same collective. What none of these can tell is said, and is not taken for fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import median, stdev
from typing import Any

from gpuproof.base import units
from gpuproof.launches.collectives import CollectiveFigures, summarize_collectives
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import TRANSIENT_CAUSES, Start, is_host_failure
from gpuproof.suites.validate.blaming import bytes_per_s
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import StageCase

LEAST_NOISE = 0.02
"""Of one test, however alike the launches were: few of them show it too small."""
CLEAR = 3.0
"""A host is slower than its peers by so many standard deviations of a test, and by LEAST_SLOWER."""
LEAST_SLOWER = 0.05
APART = 0.2
"""By so much of the fastest, launches of one collective differ too far."""
MIN_PEERS, MIN_LAUNCHES = 3, 3
SOUGHT_SHARE = 0.8
"""Of what was observed: part of a group may be slower by less than all of it were."""
NOTHING_THROUGH = 0.9
"""Sought where results are wrong or a job hangs: figures of such tests are 0."""
MOST_NOISE = 0.9
"""Figures that scatter by more are told apart no worse."""
TWO_SIDED_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSeen:
    """What a launch of the collective stage came to."""

    records: CaseRecords
    points: tuple[CollectiveFigures, ...]
    failure: str | None
    """What became of it, where it began and did not end well by itself."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that it was placed on."""
        return self.records.case.placement.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """In what a collective falls short."""

    why: str | None
    """None where nothing is wrong, and a search was asked for."""
    share: float
    """Of what it should do; 1 where nothing right gets through."""
    operation: str | None = None
    size_bytes: int | None = None
    """None is what was asked for first, at its largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCollective:
    """Somebody makes this collective slow or wrong, or it is asked whether somebody does."""

    case: StageCase
    hosts: tuple[str, ...]
    reason: Shortfall
    slowdown: float
    """That is sought, as a share."""
    noise: float


def collective_seen(launch: CaseRecords) -> CollectiveSeen:
    """Return the points and the failure of one launch."""
    figures, failure = summarize_collectives(launch), launch.primary_failure
    message = None
    is_of_launch = failure is not None and launch.status != "done" and bool(launch.of(Start))
    if is_of_launch and failure is not None and not is_host_failure(failure):
        message = None if failure.cause in TRANSIENT_CAUSES else f"{failure.cause}: {failure.message}"
    return CollectiveSeen(
        records=launch,
        points=() if figures is None else figures.figures,
        failure=message,
    )


def _error_of_median(times: Sequence[float]) -> float:
    """Return the relative standard error of a median: from the ranks between which it lies 95 times in 100.

    A few iterations that stall, as on a link that loses packets, leave the median where it is: the standard
    deviation would be many times the median.
    """
    ordered, num = sorted(times), len(times)
    reach = TWO_SIDED_95 * sqrt(num) / 2
    low, high = max(0, floor(num / 2 - reach)), min(num - 1, ceil(num / 2 + reach))
    return (ordered[high] - ordered[low]) / (2 * TWO_SIDED_95) / median(ordered)


def suspicions(
    cases: Sequence[StageCase],
    seen: Mapping[str, Sequence[CollectiveSeen]],
    short: Mapping[str, Shortfall],
    options: ValidateOptions,
) -> Iterator[SlowCollective]:
    """Yield what to search for after the collective stage.

    `seen` has the launches of each case, `short` the rule that a case failed.
    """
    if options.blame == "never":
        return
    noise = noise_of([launch for launches in seen.values() for launch in launches])
    best = {case_id: rate for case_id, launches in seen.items() if (rate := _best(launches))}
    for case in cases:
        launches = seen.get(case.case_id, ())
        if not launches:
            continue
        peers = [
            best[other.case_id]
            for other in cases
            if other.name == case.name
            and other.ranks_per_host == case.ranks_per_host
            and other.case_id in best
        ]
        reason = _breakage(launches) or short.get(case.case_id) or _slow(launches, peers, noise)
        if reason is None and options.blame == "always":
            reason = Shortfall(why=None, share=LEAST_SLOWER)
        if reason is not None:
            yield _sought(case, launches[-1].hosts, reason, noise)


def _sought(case: StageCase, hosts: tuple[str, ...], reason: Shortfall, noise: float) -> SlowCollective:
    sought = min(NOTHING_THROUGH, SOUGHT_SHARE * reason.share)
    slowdown = NOTHING_THROUGH if reason.share >= 1 else sought if reason.why else LEAST_SLOWER
    return SlowCollective(case=case, hosts=hosts, reason=reason, slowdown=slowdown, noise=noise)


def noise_of(launches: Sequence[CollectiveSeen]) -> float:
    """Return the relative standard deviation of one test: between launches, or within where there is one."""
    by_point: dict[tuple[Any, ...], list[float]] = {}
    for launch in launches:
        for point in _largest(launch):
            by_point.setdefault((launch.hosts, point.operation), []).append(bytes_per_s(point))
    between = [stdev(v) / median(v) for v in by_point.values() if len(v) > 1]
    pooled = sqrt(sum(s * s for s in between) / len(between)) if between else 0.0
    within = [_error_of_median(point.iterations_s) for launch in launches for point in _largest(launch)]
    return min(MOST_NOISE, max(LEAST_NOISE, pooled, median(within) if within else 0.0))


def _largest(launch: CollectiveSeen) -> list[CollectiveFigures]:
    """Return the first operation's point at the largest size; nothing of a launch without figures."""
    points = [point for point in launch.points if point.operation == launch.points[0].operation]
    return [max(points, key=lambda point: point.size_bytes)] if points else []


def _best(launches: Sequence[CollectiveSeen]) -> float | None:
    figures = [bytes_per_s(point) for launch in launches for point in _largest(launch)]
    return median(figures) if figures else None


def _breakage(launches: Sequence[CollectiveSeen]) -> Shortfall | None:
    """Find wrong results, and a job that did not end."""
    for point in (point for launch in launches for point in launch.points if point.num_wrong):
        why = f"{point.num_wrong} elements of {point.operation} of {point.size_bytes:,} bytes are wrong"
        return Shortfall(why=why, share=1.0, operation=point.operation, size_bytes=point.size_bytes)
    failure = next((launch.failure for launch in launches if launch.failure), None)
    return None if failure is None else Shortfall(why=f"it did not end ({failure})", share=1.0)


def _slow(launches: Sequence[CollectiveSeen], peers: Sequence[float], noise: float) -> Shortfall | None:
    """Return by how much it is slower than on other hosts, or than its own other launches."""
    best, bound = _best(launches), max(LEAST_SLOWER, CLEAR * noise)
    if best is not None and len(peers) >= MIN_PEERS and best < median(peers) * (1 - bound):
        short = 1 - best / median(peers)
        return Shortfall(
            why=f"it is {units.share(short)} slower than on most of {len(peers)} hosts", share=short
        )
    figures = [bytes_per_s(point) for launch in launches for point in _largest(launch)]
    if len(figures) >= MIN_LAUNCHES and min(figures) < (1 - APART) * max(figures):
        short = 1 - min(figures) / max(figures)
        return Shortfall(why=f"its launches differ by {units.share(short)}", share=short)
    return None
