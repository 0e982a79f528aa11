"""The load suite: twelve tests of two models, each in training and inference at three batch sizes."""

from __future__ import annotations

from gpuproof.config.models import RunConfig
from gpuproof.suites.points.plan import PlannedSuite


class LoadSuite(PlannedSuite):
    """Run twelve tests, each with a fresh, seeded model."""

    name = "load"
    summary = "twelve tests of two models under training and inference load"
    command = "load"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Accept recipes of kind load."""
        return config.kind == "load"


SUITE = LoadSuite()
