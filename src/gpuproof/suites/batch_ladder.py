"""The search for the largest batch that fits: up a ladder until memory is out, then between the last two.

In: the config and the launches so far. Out: the launches of the next batch size; none when the largest batch
that fits is known to within `search.step`, when `search.up_to` fits, or when a launch ended otherwise than
well or for want of memory, since nothing can be told of what lies beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.config.sections.search import SearchConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.matrix import Point, config_at
from gpuproof.suites.training import case_of, launch_key

KEY = "data.batch_size"
Outcome = Literal["fits", "out of memory", "unknown"]


def next_cases(config: RunConfig, results: Sequence[CaseRecords]) -> list[Case]:
    """Return the launches of the batch size that comes next, or those of the last one that are missing.

    Raises:
        UsageError: the recipe cannot be run.
    """
    for batch, replicates in _left(config, results).items():
        if replicates:
            point = point_at(config, batch)
            cases = [case_of(point.config, r, case_id=point.case_id, is_sweep=True) for r in replicates]
            return [replace(case, capture_env=case.capture_env and not results) for case in cases]
    return []


def num_launches_left(config: RunConfig, results: Sequence[CaseRecords]) -> int:
    """Count the launches that the search is known to need: up to the batch that comes next."""
    return sum(len(replicates) for replicates in _left(config, results).values())


def _left(config: RunConfig, results: Sequence[CaseRecords]) -> dict[int, list[int]]:
    """Return the replicates still to launch by batch size, in the order of the search."""
    found = outcomes(results)
    following = next_batch(config.search, found)
    launched = {launch_key(records.case) for records in results}
    return {
        batch: [r for r in range(config.run.repeats) if (point_at(config, batch).case_id, r) not in launched]
        for batch in [*found, *([] if following is None else [following])]
        # Once is enough where it did not fit: its other launches would meet the same fate.
        if found.get(batch, "fits") == "fits"
    }


def point_at(config: RunConfig, batch: int) -> Point:
    """Return the recipe of one batch size; an epoch holds at least one batch."""
    held = max(config.data.samples_per_epoch, batch)
    return Point(
        case_id=f"batch_size={batch}",
        assignment={KEY: batch},
        config=config_at(config, {KEY: batch, "data.samples_per_epoch": held}),
    )


def is_expected(failed: CaseRecords) -> bool:
    """Say whether a launch ended as the search means it to end: out of memory."""
    failure = failed.primary_failure
    return failed.status == "failed" and failure is not None and failure.cause == "out_of_memory"


def outcomes(results: Sequence[CaseRecords]) -> dict[int, Outcome]:
    """Say of each batch size that was launched how it ended: the worst of its launches counts."""
    found: dict[int, Outcome] = {}
    for records in results:
        outcome: Outcome = "out of memory" if is_expected(records) else "unknown"
        batch = records.case.data.batch_size
        if records.status != "done":
            found[batch] = outcome
        else:
            found.setdefault(batch, "fits")
    return found


def next_batch(search: SearchConfig, tried: Mapping[int, Outcome]) -> int | None:
    """Choose the next batch size; None when the search is over."""
    if "unknown" in tried.values():
        return None
    largest = max((batch for batch, outcome in tried.items() if outcome == "fits"), default=0)
    too_large = min((batch for batch, outcome in tried.items() if outcome != "fits"), default=None)
    if not tried:
        return search.start
    if too_large is None:
        return None if largest >= search.up_to else min(search.up_to, ceil(largest * search.factor))
    return _between(largest, too_large, step=search.step or search.start)


def _between(fits: int, too_large: int, *, step: int) -> int | None:
    """Halve the distance, in whole steps; below the first batch of all, down to one sample."""
    if fits == 0:
        return too_large // 2 or None
    if too_large - fits <= step:
        return None
    middle = fits + (too_large - fits) // 2 // step * step
    return middle if middle > fits else fits + step
