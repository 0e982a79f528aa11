"""The search for the largest batch that fits: up a ladder until memory is out, then between the last two.

It ends when the largest batch that fits is known to within `search.step`, when `search.up_to` fits, or when a
launch ended otherwise than well or for want of memory, since nothing can be told of what lies beyond it.
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
    """How far the search is."""

    config: RunConfig
    tried: Mapping[int, BatchOutcome] = field(default_factory=dict)
    """How each batch size ended: the worst of its launches counts."""
    launched: frozenset[LaunchKey] = frozenset()
    hosts: frozenset[str] = frozenset()
    """Hosts that told what they have."""

    def settle(self, launch: CaseRecords) -> BatchSearch:
        """Return the search after a launch ended."""
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
        """Launches up to the batch size that comes next: more may follow."""
        return len(self.left())

    def left(self) -> list[tuple[int, int]]:
        """Return batch size and replicate of the launches that the search is known to need, in order."""
        following = next_batch(self.config.search, self.tried)
        return [
            (batch, replicate)
            for batch in [*self.tried, *([] if following is None else [following])]
            # Once is enough where it did not fit: its other launches would meet the same fate.
            if self.tried.get(batch, "fits") == "fits"
            for replicate in range(self.config.run.repeats)
            if (case_id_at(batch), replicate) not in self.launched
        ]

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches of the batch size that comes next, or those of the last one that are missing."""
        left = self.left()
        for batch, replicate in left:
            if batch == left[0][0] and (case_id_at(batch), replicate) not in running:
                point = point_at(self.config, batch)
                case = build_case(point.config, replicate, case_id=point.case_id, is_sweep=True)
                yield describing(case, self.hosts)


def case_id_at(batch: int) -> str:
    """Name the launches of a batch size."""
    return f"batch_size={batch}"


def point_at(config: RunConfig, batch: int) -> Point:
    """Return the recipe of one batch size; an epoch holds at least one batch."""
    held = max(config.data.samples_per_epoch, batch)
    return Point(
        case_id=case_id_at(batch),
        assignment={KEY: batch},
        config=config_at(config, {KEY: batch, "data.samples_per_epoch": held}),
    )


def is_expected(failed: CaseRecords) -> bool:
    """Say whether a launch ended as the search means it to end: out of memory."""
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
    """Halve the distance, in whole steps; below the first batch of all, down to one sample."""
    if fits == 0:
        return too_large // 2 or None
    if too_large - fits <= step:
        return None
    middle = fits + (too_large - fits) // 2 // step * step
    return middle if middle > fits else fits + step


def begin(config: RunConfig, _places: Sequence[HostPlace]) -> BatchSearch:
    """Begin below the first batch.

    Raises:
        UsageError: it cannot be run.
    """
    search = BatchSearch(config=config)
    next(search.next(()))  # a recipe that cannot be run is refused here
    return search
