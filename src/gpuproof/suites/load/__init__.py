"""The load suite: twelve tests of two models, trained and run forward at three batch sizes each."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.load.plan import plan
from gpuproof.suites.points.plan import Plan, PlannedSuite, check_points


class LoadSuite(PlannedSuite):
    """Twelve tests, each with a fresh, seeded model."""

    name = "load"
    summary = "twelve tests of two models under training and inference load"
    command = "load"
    is_sweep = False

    def answers(self, config: RunConfig) -> bool:
        """Take recipes of kind load."""
        return config.kind == "load"

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Plan:
        """Plan the twelve tests."""
        return check_points(plan(config))


SUITE = LoadSuite()
