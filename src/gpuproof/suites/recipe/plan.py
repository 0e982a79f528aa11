"""The launches of one recipe: all alike, each a fresh process unless `run.start` says otherwise."""

from __future__ import annotations

from gpuproof.config.models import RunConfig
from gpuproof.suites.points.plan import Plan, Point

CASE_ID = "main"


def plan(config: RunConfig) -> Plan:
    """Plan `run.repeats` launches of the recipe."""
    return Plan(
        points={CASE_ID: Point(case_id=CASE_ID, assignment={}, config=config)},
        order=tuple((CASE_ID, replicate) for replicate in range(config.run.repeats)),
        is_sweep=False,
    )
