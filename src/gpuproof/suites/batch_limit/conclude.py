"""Results for the sizes tried: the largest batch that fits, and the knee of the throughput curve."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.base import units
from gpuproof.readings.evidence import Evidence
from gpuproof.records.result import Measure
from gpuproof.suites.base import Conclusion
from gpuproof.suites.batch_limit.plan import KEY, BatchSearch, is_expected, point_at
from gpuproof.suites.points.plan import settle_all
from gpuproof.suites.points.ranking import BatchLimits, batch_limits, rank
from gpuproof.suites.points.results import conclude_points, conclusion_of_points

FITS = "largest that fits"


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a search and its files."""
    config = evidence.config
    settled = [launch for launch in evidence.launches if launch.status != "unfinished"]
    refused = [launch.case.case_id for launch in evidence.launches if is_expected(launch)]
    tried = sorted({launch.case.model_work.data.batch_size for launch in evidence.launches})
    sizes = [point_at(config, batch) for batch in tried]
    points = list(conclude_points(evidence, sizes, refused=refused))
    figures = [point.figures for point in points]
    limits = batch_limits(figures, rank(figures), key=KEY)
    search = settle_all(BatchSearch(config=config), settled)
    return conclusion_of_points(
        "batch_limit",
        evidence,
        points,
        title=[f"{config.model.name} {config.kind} on {config.data.name}, {len(points)} batch sizes"],
        num_planned=len(settled) - len(refused) + search.num_left,
        limits=limits,
        measures=list(_measures(limits)),
    )


def _measures(limits: BatchLimits) -> Iterator[Measure]:
    beyond = "none of the batch sizes that were tried ran out of memory"
    if limits.too_large is not None:
        beyond = f"{units.count(limits.too_large)} ran out of memory"
    yield Measure(
        name=FITS if limits.too_large is not None else "largest that was tried",
        value=limits.largest,
        unit="samples",
        text="none" if limits.largest is None else f"batch {units.count(limits.largest)}",
        detail=beyond,
        better="higher",
    )
    if limits.knee is not None:
        batch = limits.knee.assignment[KEY]
        yield Measure(
            name="knee",
            value=batch,
            unit="samples",
            text=f"batch {units.count(batch)}",
            detail="the smallest batch with 95 % of the best throughput",
        )
