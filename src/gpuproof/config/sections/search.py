"""`search`: points that are chosen by what the points before them gave."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection


class SearchConfig(ConfigSection):
    """Which value is searched for, and where."""

    kind: Literal["batch_size"] | None = None
    """batch_size: raise data.batch_size until memory runs out, then find the largest that fits."""
    start: int = Field(default=16, ge=1, le=2**20)
    """The first batch size that is tried."""
    factor: float = Field(default=2.0, ge=1.1, le=16)
    """Each batch is so many times the one before, while they fit."""
    up_to: int = Field(default=65_536, ge=1, le=2**20)
    """No larger batch is tried."""
    step: int | None = Field(default=None, ge=1, le=2**20)
    """Find the largest batch that fits to within so many samples; null is search.start."""
