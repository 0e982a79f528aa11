"""Results of the points of a sweep, side by side."""

from __future__ import annotations

from gpuproof.config.matrix import matrix_keys
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.suites.base import Conclusion
from gpuproof.suites.points.results import conclude_points, conclusion_of_points
from gpuproof.suites.sweep.plan import plan


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a sweep and its files."""
    config: RunConfig = evidence.config
    planned = plan(config)
    points = list(conclude_points(evidence, planned.points.values()))
    what = f"{len(points)} points of {' × '.join(matrix_keys(config.matrix))}"
    return conclusion_of_points(
        "sweep",
        evidence,
        points,
        title=[f"{config.model.name} {config.kind} on {config.data.name}, {what}"],
        num_planned=len(planned.order),
        notes=[f"points were launched in an order shuffled by run.order_seed={config.run.order_seed}"],
    )
