"""Search for the largest batch: grow until memory runs out, then bisect the last interval.

The search ends in one of three cases: the largest batch that fits is known to within `search.step`,
`search.up_to` fits, or a launch failed for any reason other than running out of memory, since such a failure
provides no information about larger sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

from gpuproof.config.models import RunConfig, SearchConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace, LaunchKey, launch_key
from gpuproof.suites.cases import build_case, described_hosts, describing
from gpuproof.suites.points.plan import Point, config_at

KEY = "data.batch_size"
BatchOutcome = Literal["fits", "out of memory", "unknown"]
FROM_BEST: tuple[BatchOutcome, ...] = ("fits", "out of memory", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The state of the search."""

    config: RunConfig
    tried: Mapping[int, BatchOutcome] = field(default_factory=dict)
    """The outcome of each batch size, taken from its worst launch."""
    launched: frozenset[LaunchKey] = frozenset()
    hosts: frozenset[str] = frozenset()
    """Hosts that have reported their hardware."""

    def settle(self, launch: CaseRecords) -> BatchSearch:
        """Return the updated search after a launch ended."""
        batch = launch.case.model_work.data.batch_size
        outcome: BatchOutcome = "out of memory" if is_expected(launch) else "unknown"
        if launch.status == "done":
            outcome = "fits"
        before = self.tried.get(batch, outcome)
        return replace(
            self,
            tried={**self.tried, batch: max(before, outcome, key=FROM_BEST.index)},
            launched=self.launched | {launch_key(launch.case)},
            hosts=self.hosts | described_hosts(launch),
        )

    @property
    def num_left(self) -> int:
        """Number of launches until the next batch size is chosen; more may follow."""
        return len(self.left())

    def left(self) -> list[tuple[int, int]]:
        """Return the batch size and replicate of each launch known to be needed, in order."""
        following = next_batch(self.config.search, self.tried)
        return [
            (batch, replicate)
            for batch in [*self.tried, *([] if following is None else [following])]
            # If a size did not fit, one launch is enough: further launches would fail the same way.
            if self.tried.get(batch, "fits") == "fits"
            for replicate in range(self.config.run.repeats)
            if (case_id_at(batch), replicate) not in self.launched
        ]

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches of the next batch size, or the launches still missing for the last one."""
        left = self.left()
        for batch, replicate in left:
            if batch == left[0][0] and (case_id_at(batch), replicate) not in running:
                point = point_at(self.config, batch)
                case = build_case(point.config, replicate, case_id=point.case_id, is_sweep=True)
                yield describing(case, self.hosts)


def case_id_at(batch: int) -> str:
    """Return the case name for the launches of a batch size."""
    return f"batch_size={batch}"


def point_at(config: RunConfig, batch: int) -> Point:
    """Return the recipe for one batch size, with an epoch of at least one batch."""
    held = max(config.data.samples_per_epoch, batch)
    return Point(
        case_id=case_id_at(batch),
        assignment={KEY: batch},
        config=config_at(config, {KEY: batch, "data.samples_per_epoch": held}),
    )


def is_expected(failed: CaseRecords) -> bool:
    """Report whether a launch failed the way the search expects: out of memory."""
    failure = failed.primary_failure
    return failed.status == "failed" and failure is not None and failure.cause == "out_of_memory"


def next_batch(search: SearchConfig, tried: Mapping[int, BatchOutcome]) -> int | None:
    """Choose the next batch size; None when the search is over."""
    if "unknown" in tried.values():
        return None
    largest = max((batch for batch, outcome in tried.items() if outcome == "fits"), default=0)
    too_large = min((batch for batch, outcome in tried.items() if outcome != "fits"), default=None)
    if not tried:
        return search.start
    if too_large is None:
        return None if largest >= search.up_to else min(search.up_to, ceil(largest * search.factor))
    return _next_batch(largest, too_large, step=search.step or search.start)


def _next_batch(fits: int, too_large: int, *, step: int) -> int | None:
    """Halve the distance in whole steps; below the very first batch, go down to one sample."""
    if fits == 0:
        return too_large // 2 or None
    if too_large - fits <= step:
        return None
    middle = fits + (too_large - fits) // 2 // step * step
    return middle if middle > fits else fits + step


def begin(config: RunConfig, _places: Sequence[HostPlace]) -> BatchSearch:
    """Build the initial state, before the first batch.

    Raises:
        UsageError: the recipe cannot run.
    """
    search = BatchSearch(config=config)
    next(search.next(()))  # rejects a recipe that cannot run here
    return search
