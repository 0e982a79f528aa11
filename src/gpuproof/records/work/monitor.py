"""`monitoring`: how often devices and host are read beside each launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuproof.records.work.options import Limits, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSpec(Options):
    """What is read of devices and host beside the work."""

    enabled: bool = True
    """Record devices and host beside each launch."""
    interval_s: Annotated[float, Limits(ge=0.01, le=3600)] = 0.2
    """Seconds between two readings."""
    host_interval_s: Annotated[float, Limits(ge=0.01, le=3600)] | None = None
    """Seconds between two readings of the host, interval_s at least; null is 1."""
