"""A suite of another package: each host trains by itself, then one job runs over two that were chosen.

Everything that it needs of gpuproof is named here and in the three files beside this one, of which
`PlannedSuite` calls `plan.begin`, `conclude.conclude` and `page.page`.
"""

from __future__ import annotations

from typing import Literal

from gpuproof.suites.points.plan import PlannedSuite
from gpuproof_example_toy.plan import ToyOptions


class Toy(PlannedSuite):
    """Each host by itself, then the two slowest or fastest as one job."""

    name = "toy"
    summary = "each host by itself, then one job over the two slowest or fastest"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = ToyOptions


TOY = Toy()
