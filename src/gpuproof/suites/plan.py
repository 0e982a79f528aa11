"""Which suite a recipe asks for, and what every suite answers: which launches come next.

A suite is a pure function of the config and of the launches so far (`results`: those that are not to be
launched again, whatever became of them). An empty answer ends the campaign; a search answers with what its
results call for.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites import batch_ladder, loadtest, matrix, serving, training
from gpuproof.suites.matrix import Point
from gpuproof.suites.training import launch_key


def next_cases(config: RunConfig, results: Sequence[CaseRecords]) -> list[Case]:
    """Return the launches that come next, in order; none when the suite is finished.

    Raises:
        UsageError: the recipe, or a point of it, cannot be run.
    """
    if config.kind == "serving":
        return serving.next_cases(config, results)
    if config.kind == "load":
        return loadtest.next_cases(config, results)
    if config.matrix:
        return matrix.next_cases(config, results)
    if config.search.kind == "batch_size":
        return batch_ladder.next_cases(config, results)
    return training.next_cases(config, results)


def is_sweep(config: RunConfig) -> bool:
    """Say whether the recipe has more than one point."""
    return bool(config.matrix) or config.search.kind is not None or config.kind == "load"


def is_expected_failure(config: RunConfig, records: CaseRecords) -> bool:
    """Say whether a launch failed as its suite means it to: a search for a limit has to cross it."""
    return config.search.kind is not None and batch_ladder.is_expected(records)


def num_launches_left(config: RunConfig, results: Sequence[CaseRecords]) -> int:
    """Count the launches that a sweep still asks for. No workload is looked up: a report needs none."""
    if config.search.kind is None:
        launched = {launch_key(records.case) for records in results}
        return len(points_of(config, results)) * config.run.repeats - len(launched)
    return batch_ladder.num_launches_left(config, results)


def points_of(config: RunConfig, results: Sequence[CaseRecords]) -> list[Point]:
    """Return the points of a sweep: of a search those that were tried, by size, of others all."""
    if config.kind == "load":
        return loadtest.points_of(config)
    if config.matrix:
        return matrix.points_of(config)
    tried = sorted({records.case.data.batch_size for records in results})
    return [batch_ladder.point_at(config, batch) for batch in tried]
