"""The metric catalogue (`metrics.csv`): every name that a reading may carry, what it means, its other names.

A name ends in its unit (`_bytes`, `_w`, `_j`, `_mhz`, `_c`, `_percent`, `_s`) or says what it counts. A
`gauge` is a value of the moment, a `counter` only grows (until a driver reload), a `static` fact is read
once and stands in `DeviceIdentity.static`. Whatever shows, exports or compares metrics reads it from here.

>>> METRICS["energy_j"].kind, METRICS["energy_j"].lane, METRICS["energy_j"].unit.symbol
('counter', 'fast', 'J')
>>> HOST_METRICS["net_tx_bytes"].title
'sent by network'
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gpuproof.base.files import packaged_rows
from gpuproof.records.readings import Lane, ThrottleReason

MetricKind = Literal["gauge", "counter", "static"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a name's end means."""

    symbol: str
    """1 where something is counted."""
    prometheus: str = ""
    """How a name of Prometheus ends, which has base units."""
    factor: float = 1.0
    """What a value is multiplied by for Prometheus."""


UNITS: Final[Mapping[str, Unit]] = {
    "_percent": Unit("%", "_ratio", 0.01),
    "_bytes_per_s": Unit("B/s", "_bytes_per_second"),
    "_bytes": Unit("B", "_bytes"),
    "_mhz": Unit("MHz", "_hertz", 1e6),
    "_rpm": Unit("rpm", "_revolutions_per_minute"),
    "_w": Unit("W", "_watts"),
    "_j": Unit("J", "_joules"),
    "_c": Unit("°C", "_celsius"),
    "_s": Unit("s", "_seconds"),
    "_count": Unit("1"),
}
"""End of a name → its unit."""
DCGM_FACTORS: Final = {None: 1.0, "ratio": 0.01, "MiB": 2.0**-20, "mJ": 1e3}
"""DCGM's unit, where it is not ours → what a value is multiplied by for it."""


def unit_end(name: str) -> str:
    """Return the end of a name that is its unit; "" where it says what it counts."""
    return next((end for end in UNITS if name.endswith(end)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one name means, and how it is shown."""

    name: str
    description: str
    kind: MetricKind
    """How it is aggregated, too: a gauge has a mean over time and extremes, a counter what it gained."""
    owner: Literal["gpu", "host"] = "gpu"
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
    compared: str | None = None
    """Whether two recordings are compared by it."""
    drawn: str | None = None
    """Whether it is drawn over time: large in the live view, and of two recordings."""
    top: str | None = None
    """The top of its chart: a number, or a static fact."""
    live: str | None = None
    """Of a GPU its place among the live view's values, or `rate`; of the host the label of its rate."""

    @property
    def unit(self) -> Unit:
        """Its unit."""
        return UNITS.get(unit_end(self.name), Unit("1"))

    @property
    def exported(self) -> str:
        """Its name in Prometheus, in base units (`unit.factor` gives them); a counter's lacks its `_total`.

        >>> METRICS["power_w"].exported, HOST_METRICS["cpu_percent"].exported
        ('gpuproof_gpu_power_watts', 'gpuproof_host_cpu_busy_ratio')
        """
        stem = self.prometheus or self.name.removesuffix(unit_end(self.name))
        return f"gpuproof_{self.owner}_{stem}{self.unit.prometheus}"

    @property
    def columns(self) -> list[str]:
        """The columns of nvidia-smi that hold it."""
        return (self.nvidia_smi or "").split()


_ROWS: Final = tuple(Metric(**row) for row in packaged_rows("records/metrics.csv"))
HOST_METRICS: Final = {row.name: row for row in _ROWS if row.owner == "host"}


def _catalogue() -> dict[str, Metric]:
    times = [_throttle_time(reason) for reason in get_args(ThrottleReason)]
    listed = [row for row in _ROWS if row.owner == "gpu"]
    in_order = sorted((*listed, *times), key=lambda metric: metric.kind == "static")
    return {metric.name: metric for metric in in_order}


def _throttle_time(reason: ThrottleReason) -> Metric:
    meaning = f"time held below the asked clock: {reason.replace('_', ' ')}"
    return Metric(name=throttle_time_name(reason), kind="counter", lane="slow", description=meaning)


def throttle_time_name(reason: ThrottleReason) -> str:
    """Name the counter of seconds that a reason held a device back."""
    return f"throttle_time_{reason}_s"


METRICS: Final[dict[str, Metric]] = _catalogue()
"""Of devices; some of the host have the same names."""

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
