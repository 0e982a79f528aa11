"""`search`: points that are chosen by what the points before them gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuproof.records.work.options import Limits, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(Options):
    """Which value is searched for, and where."""

    kind: Literal["batch_size"] | None = None
    """batch_size: raise data.batch_size until memory runs out, then find the largest that fits."""
    start: Annotated[int, Limits(ge=1, le=2**20)] = 16
    """The first batch size that is tried."""
    factor: Annotated[float, Limits(ge=1.1, le=16)] = 2.0
    """Each batch is so many times the one before, while they fit."""
    up_to: Annotated[int, Limits(ge=1, le=2**20)] = 65_536
    """No larger batch is tried."""
    step: Annotated[int, Limits(ge=1, le=2**20)] | None = None
    """Find the largest batch that fits to within so many samples; null is search.start."""
