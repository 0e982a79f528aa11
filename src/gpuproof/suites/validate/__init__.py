"""The validation suite: is this machine or cluster ready for production?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace, Remaining
from gpuproof.suites.points.plan import PlannedSuite
from gpuproof.suites.validate.options import NAME, ValidateOptions
from gpuproof.suites.validate.plan import StageOrder, begin_order


class ValidateSuite(PlannedSuite):
    """Run stages of recipes; each is evaluated by its own suite, then all are evaluated together."""

    name = NAME
    summary = "check whether this machine or cluster is ready: stages of measurements, rules, one verdict"
    command = "validate"
    scope: Literal["each_host", "whole"] = "whole"
    options = ValidateOptions

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> StageOrder:
        """Plan the stages.

        Raises:
            UsageError: the recipe is not for training or is itself a sweep, a rule cannot be evaluated, or
                there are no hosts to plan for.
        """
        if config.kind != "training" or config.matrix or config.search.kind is not None:
            raise UsageError(
                "a validation has a single training recipe, without matrix or search",
                place="suite",
                next_step="Set kind to training; list other measurements in validate.stages",
            )
        from gpuproof.suites.validate.judging import baseline_of, rules_of
        from gpuproof.verdict.references import references_with

        order = begin_order(config, places)
        rules_of(order.options)
        baseline_of(order.options)
        references_with(order.options.references, place="validate.references")
        return order

    def remaining(self, state: Any) -> Remaining:
        """Report what is left in the plan, which does not include the search for slow parts."""
        return Remaining(num_launches=state.num_left, seconds=state.seconds_left, basis="plan")


SUITE = ValidateSuite()
