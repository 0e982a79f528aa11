"""A suite from another package: each host trains alone, then one job runs over two of the hosts.

Everything that the suite needs from gpuproof is imported here and in the three files next to this one;
`PlannedSuite` calls their `plan.begin`, `conclude.conclude` and `page.page`.
"""

from __future__ import annotations

from typing import Literal

from gpuproof.suites.points.plan import PlannedSuite
from gpuproof_example_toy.plan import ToyOptions


class Toy(PlannedSuite):
    """Train on each host alone, then on the two slowest or fastest hosts as one job."""

    name = "toy"
    summary = "each host alone, then one job over the two slowest or fastest"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = ToyOptions


TOY = Toy()
