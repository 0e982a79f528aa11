"""The throughput–latency curve of a search as a picture: p50 and p99 of the latency at every rate offered.

A percentile that a window had too few requests for is not drawn. The bound is a level line, the highest rate
that met it and the knee of the median are upright ones. The scale of the latency is logarithmic: over the
highest rate the queue grows for as long as the window is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.launches.served import Served
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.serving.run import ServingRun

MIN_RATES = 2
DRAWN = (50.0, 99.0)
Points = tuple[tuple[float, float], ...]
"""Rate and latency, by rate."""


def serving_curve(run: ServingRun) -> Picture | None:
    """Return the picture; None where it is no search, or one with fewer than two rates."""
    curves = {q: curve_points(run.launches, q) for q in _quantiles(run)}
    if run.search is None or not run.config.serving.curve or len(curves[50.0]) < MIN_RATES:
        return None
    highest = max(rate for points in curves.values() for rate, _ in points)
    chart = Chart(
        title="",
        kind="line",
        x=Axis(label="requests offered a second", reach=(0.0, highest * 1.05)),
        y=Axis(label="latency", unit="s", is_logarithmic=True),
        series=tuple(series for q, points in curves.items() for series in _series(f"p{q:g}", points)),
        references=tuple(_references(run)),
    )
    return Picture(title="Latency against the rate offered", subtitle=_subtitle(run), charts=(chart,))


def _quantiles(run: ServingRun) -> tuple[float, ...]:
    """Return the percentiles to draw, the one that the bound is for among them."""
    return tuple(sorted({*DRAWN, run.config.serving.latency_percentile}))


def curve_points(launches: Sequence[Served], q: float) -> Points:
    """Return rate and percentile of every schedule with enough requests for it, repeats side by side."""
    points = ((served.window.offered_per_s, percentile(served.latencies_s, q).value) for served in launches)
    return tuple(sorted((rate, value) for rate, value in points if rate is not None and value is not None))


def _series(name: str, points: Points) -> Iterator[Series]:
    """Yield every launch, and a line through the medians of each rate."""
    if points:
        joined = [(rate, median(latencies_s)) for rate, latencies_s in grouped(points).items()]
        yield Series(name=name, points=tuple(joined), form="line")
        yield Series(name=name, points=points, form="points")


def _references(run: ServingRun) -> Iterator[Reference]:
    """Yield the bound, the highest rate and the knee."""
    serving, highest = run.config.serving, run.search.met_per_s if run.search else None
    if serving.latency_bound_s is not None:
        bound = f"bound: p{serving.latency_percentile:g} under {units.seconds(serving.latency_bound_s)}"
        yield Reference(label=bound, y=serving.latency_bound_s)
    if highest is not None:
        yield Reference(label=f"highest rate: {units.rate(highest, 'requests')}", x=highest)
    if run.knee_per_s is not None:
        yield Reference(label=f"knee: {units.rate(run.knee_per_s, 'requests')}", x=run.knee_per_s)


def _subtitle(run: ServingRun) -> str:
    serving, setup = run.config.serving, run.launches[0].setup
    served = {"endpoint": f"{serving.endpoint.model}, an endpoint", "noop": "a no-op server"}
    device = f" on {setup.device.name}, {setup.precision}" if setup else ""
    target = served.get(serving.target, f"{run.config.model.name}{device}")
    return f"{target}; {serving.arrivals} arrivals, each latency from the scheduled one"
