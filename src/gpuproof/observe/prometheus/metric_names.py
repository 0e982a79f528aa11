"""What is a metric called in Prometheus, and under which name do DCGM dashboards look for it?

In: the catalogue of `gpuproof.records.metrics`. Out: for each metric a Prometheus name in base units
(bytes, watts, joules, hertz, seconds, ratios of 0 to 1) with its factor, and, where DCGM has the same
quantity, its classic name with the factor to DCGM's unit. DCGM's names are exported as untyped metrics:
its counters lack the `_total` that Prometheus' own rules ask of a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuproof.records.metrics import METRICS, THROTTLE_COUNTERS, MetricKind

_PREFIX: Final = "gpuproof_gpu_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedName:
    """One metric under its name in Prometheus."""

    metric: str
    name: str
    factor: float
    """What a reading is multiplied by."""
    kind: MetricKind
    help: str


_UNITS: Final[dict[str, tuple[str, float]]] = {
    "_percent": ("_ratio", 0.01),
    "_bytes_per_s": ("_bytes_per_second", 1.0),
    "_bytes": ("_bytes", 1.0),
    "_mhz": ("_hertz", 1e6),
    "_rpm": ("_revolutions_per_minute", 1.0),
    "_w": ("_watts", 1.0),
    "_j": ("_joules", 1.0),
    "_c": ("_celsius", 1.0),
    "_s": ("_seconds", 1.0),
    "_count": ("_events", 1.0),
}
_DCGM_FACTORS: Final = {None: 1.0, "ratio": 0.01, "MiB": 2.0**-20, "mJ": 1e3}
DCGM: Final = {
    metric.name: (metric.dcgm, _DCGM_FACTORS[metric.dcgm_unit])
    for metric in METRICS.values()
    if metric.dcgm is not None
}
"""Metric → DCGM's name and the factor to DCGM's unit."""


def exported_name(metric: str) -> ExportedName:
    """Give a metric's name, unit factor and kind in Prometheus; counters without their `_total`.

    >>> exported_name("power_w").name, exported_name("util_gpu_percent").factor
    ('gpuproof_gpu_power_watts', 0.01)

    Raises:
        KeyError: the catalogue has no such metric.
    """
    known = METRICS[metric]
    end = next((end for end in _UNITS if metric.endswith(end)), "")
    unit, factor = _UNITS.get(end, ("", 1.0))
    stem = metric.removesuffix(end)
    if end == "_count":
        unit = ""
    name = f"{_PREFIX}{known.prometheus or stem}{unit}"
    return ExportedName(metric=metric, name=name, factor=factor, kind=known.kind, help=known.description)


EXPORTED: Final = {metric: exported_name(metric) for metric in METRICS if metric not in THROTTLE_COUNTERS}
"""Every metric but the times of throttling, which are one metric with a label `reason`."""
