"""What is a metric called in Prometheus, and under which name do DCGM dashboards look for it?

In: the catalogue of `gpuproof.records.metrics`. Out: for each metric a Prometheus name in base units
(bytes, watts, joules, hertz, seconds, ratios of 0 to 1) with its factor, and, where DCGM has the same
quantity, its classic name with the factor to DCGM's unit. DCGM's names are exported as untyped metrics:
its counters lack the `_total` that Prometheus' own rules ask of a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuproof.records.metrics import HOST_METRICS, METRICS, THROTTLE_COUNTERS, Metric, MetricKind, unit_end


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedName:
    """One metric under its name in Prometheus."""

    metric: str
    name: str
    factor: float
    """What a reading is multiplied by."""
    kind: MetricKind
    help: str


_DCGM_FACTORS: Final = {None: 1.0, "ratio": 0.01, "MiB": 2.0**-20, "mJ": 1e3}
DCGM: Final = {
    metric.name: (metric.dcgm, _DCGM_FACTORS[metric.dcgm_unit])
    for metric in METRICS.values()
    if metric.dcgm is not None
}
"""Metric → DCGM's name and the factor to DCGM's unit."""


def exported_name(metric: Metric) -> ExportedName:
    """Return a metric's name, unit factor and kind in Prometheus; counters without their `_total`.

    >>> exported_name(METRICS["power_w"]).name, exported_name(HOST_METRICS["cpu_percent"]).factor
    ('gpuproof_gpu_power_watts', 0.01)
    """
    stem = metric.prometheus or metric.name.removesuffix(unit_end(metric.name))
    return ExportedName(
        metric=metric.name,
        name=f"gpuproof_{metric.owner}_{stem}{metric.unit.prometheus}",
        factor=metric.unit.factor,
        kind=metric.kind,
        help=metric.description,
    )


EXPORTED: Final = {
    name: exported_name(metric) for name, metric in METRICS.items() if name not in THROTTLE_COUNTERS
}
"""Every metric of a device but the times of throttling, which are one metric with a label `reason`."""
EXPORTED_OF_HOST: Final = {name: exported_name(metric) for name, metric in HOST_METRICS.items()}
