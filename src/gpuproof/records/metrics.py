"""The metric catalogue (`metrics.csv`): each metric's name, meaning, and names in other tools.

A name ends in its unit (`_bytes`, `_w`, `_j`, `_mhz`, `_c`, `_percent`, `_s`) or is a count. A `gauge` is a
current value, a `counter` only grows (until a driver reload), and a `static` fact is read once and stored in
`DeviceIdentity.static`. Everything that shows, exports or compares metrics uses this catalogue.

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
    """The unit indicated by a name's suffix."""

    symbol: str
    """Symbol of the unit; 1 for counts."""
    prometheus: str = ""
    """The suffix of the Prometheus name, in base units."""
    factor: float = 1.0
    """Conversion factor to Prometheus' base unit."""


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
"""Name suffix → its unit."""
DCGM_FACTORS: Final = {None: 1.0, "ratio": 0.01, "MiB": 2.0**-20, "mJ": 1e3}
"""DCGM's unit, if it differs from ours → factor that converts our values to it."""


def unit_end(name: str) -> str:
    """Return the unit suffix of a name; "" for a count."""
    return next((end for end in UNITS if name.endswith(end)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The meaning of one metric name, and how the metric is displayed."""

    name: str
    description: str
    kind: MetricKind
    """Kind of the metric, which determines how it is aggregated: gauges have a time-weighted mean and
    extremes, counters an increase."""
    owner: Literal["gpu", "host"] = "gpu"
    lane: Lane | None
    """The lane in which the metric is read; None for static facts."""
    title: str | None = None
    """A readable name, if the key is not readable enough."""
    prometheus: str | None = None
    """The Prometheus name, without prefix and unit, if it differs from ours."""
    dcgm: str | None = None
    """The DCGM name, if DCGM has this metric."""
    dcgm_unit: str | None = None
    """DCGM's unit, if it differs from ours."""
    nvidia_smi: str | None = None
    """The nvidia-smi columns, separated by spaces."""
    compared: str | None = None
    """Whether comparisons of two recordings include the metric."""
    drawn: str | None = None
    """Whether the metric is plotted over time: as a large chart in the live view, and when comparing two
    recordings."""
    top: str | None = None
    """The maximum of the chart: a number, or the name of a static fact."""
    live: str | None = None
    """For a GPU, the position among the live view's values, or `rate`; for the host, the label of the
    rate."""

    @property
    def unit(self) -> Unit:
        """The metric's unit."""
        return UNITS.get(unit_end(self.name), Unit("1"))

    @property
    def exported(self) -> str:
        """The Prometheus name, in base units (`unit.factor` converts); for a counter, without `_total`.

        >>> METRICS["power_w"].exported, HOST_METRICS["cpu_percent"].exported
        ('gpuproof_gpu_power_watts', 'gpuproof_host_cpu_busy_ratio')
        """
        stem = self.prometheus or self.name.removesuffix(unit_end(self.name))
        return f"gpuproof_{self.owner}_{stem}{self.unit.prometheus}"

    @property
    def columns(self) -> list[str]:
        """The nvidia-smi columns that contain the metric."""
        return (self.nvidia_smi or "").split()


_ROWS: Final = tuple(Metric(**row) for row in packaged_rows("records/metrics.csv"))
HOST_METRICS: Final = {row.name: row for row in _ROWS if row.owner == "host"}


def _catalogue() -> dict[str, Metric]:
    times = [_throttle_time(reason) for reason in get_args(ThrottleReason)]
    listed = [row for row in _ROWS if row.owner == "gpu"]
    in_order = sorted((*listed, *times), key=lambda metric: metric.kind == "static")
    return {metric.name: metric for metric in in_order}


def _throttle_time(reason: ThrottleReason) -> Metric:
    meaning = f"time throttled below the requested clock: {reason.replace('_', ' ')}"
    return Metric(name=throttle_time_name(reason), kind="counter", lane="slow", description=meaning)


def throttle_time_name(reason: ThrottleReason) -> str:
    """Return the name of the counter of seconds throttled for a reason."""
    return f"throttle_time_{reason}_s"


METRICS: Final[dict[str, Metric]] = _catalogue()
"""Device metrics only, because some host metrics have the same names."""

THROTTLE_COUNTERS: Final = {
    metric: metric.removeprefix("throttle_time_").removesuffix("_s")
    for metric in METRICS
    if metric.startswith("throttle_time_")
}
"""Counter of throttled time → its reason."""


@functools.cache
def names(*, lane: Lane | None = None, kind: MetricKind | None = None) -> tuple[str, ...]:
    """List the metric names of a lane, a kind, or both, in catalogue order."""
    return tuple(
        metric.name
        for metric in METRICS.values()
        if (lane is None or metric.lane == lane) and (kind is None or metric.kind == kind)
    )
