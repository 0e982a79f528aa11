"""The metric catalogue (`metrics.csv`): every name that a reading may carry, what it means, its other names.

A name ends in its unit (`_bytes`, `_w`, `_j`, `_mhz`, `_c`, `_percent`, `_s`) or says what it counts. A
`gauge` is a value of the moment, a `counter` only grows (until a driver reload), a `static` fact is read
once and stands in `DeviceIdentity.static`.

>>> METRICS["energy_j"].kind, METRICS["energy_j"].lane
('counter', 'fast')
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gpuproof.files import packaged_rows
from gpuproof.records.readings import Lane, ThrottleReason

MetricKind = Literal["gauge", "counter", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one name means."""

    name: str
    description: str
    kind: MetricKind
    lane: Lane | None
    """How often it is read; None for static facts."""
    title: str | None = None
    """What people call it, where its name does not say it."""
    prometheus: str | None = None
    """What Prometheus calls it, without prefix and unit, where that is not our name."""
    dcgm: str | None = None
    """What DCGM calls it, where it has it."""
    dcgm_unit: str | None = None
    """DCGM's unit, where it is not ours."""
    nvidia_smi: str | None = None
    """The columns of nvidia-smi, with spaces between them."""

    @property
    def columns(self) -> list[str]:
        """The columns of nvidia-smi that hold it."""
        return (self.nvidia_smi or "").split()


def _catalogue() -> dict[str, Metric]:
    listed = [Metric(**row) for row in packaged_rows("records/metrics.csv")]
    times = [_throttle_time(reason) for reason in get_args(ThrottleReason)]
    in_order = sorted((*listed, *times), key=lambda metric: metric.kind == "static")
    return {metric.name: metric for metric in in_order}


def _throttle_time(reason: ThrottleReason) -> Metric:
    meaning = f"time held below the asked clock: {reason.replace('_', ' ')}"
    return Metric(name=throttle_time_name(reason), kind="counter", lane="slow", description=meaning)


def throttle_time_name(reason: ThrottleReason) -> str:
    """Name the counter of seconds that a reason held a device back."""
    return f"throttle_time_{reason}_s"


METRICS: Final[dict[str, Metric]] = _catalogue()

THROTTLE_COUNTERS: Final = {
    metric: metric.removeprefix("throttle_time_").removesuffix("_s")
    for metric in METRICS
    if metric.startswith("throttle_time_")
}
"""Counter of throttled time → its reason."""


@functools.cache
def names(*, lane: Lane | None = None, kind: MetricKind | None = None) -> tuple[str, ...]:
    """List the metric names of a lane, a kind, or both, in the order of the catalogue."""
    return tuple(
        metric.name
        for metric in METRICS.values()
        if (lane is None or metric.lane == lane) and (kind is None or metric.kind == kind)
    )
