"""The results of a serving run: the highest rate as a range, goodput, latencies, and the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor, inf

import numpy as np

from gpuproof.base import units
from gpuproof.config.models import RunConfig
from gpuproof.launches.bounds import ALL, RISK, BoundStanding, bounds_judged
from gpuproof.launches.served import PERCENTILES, Served
from gpuproof.records.result import LaunchValue, Measure, MeasureInterval
from gpuproof.statistics.estimate import Numbers, Unavailable, as_record
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.suites.base import LaunchKey, launch_key
from gpuproof.suites.results import with_interval
from gpuproof.suites.serving.search import RateSearch, ServingRun

OUTCOMES = {
    "met": "met",
    "missed": "missed",
    "undecided": "undecided",
    "client": "cannot tell: client",
}
COMPARED = (50.0, 99.0)
"""Percentiles by which servers are compared if no bound is set: one for most requests, one for the tail."""
SAMPLES: Mapping[str, tuple[str, str]] = {
    "time per token": ("requests", ", after the first token"),
    "inter-token latency": ("gaps between chunks", ""),
}
"""What a percentile's samples are, and from when they are measured, unless requests from their arrival."""
METHOD = "batch means over launches of fresh arrivals; confirmed at the low end, refuted at the high end"


def measures_of(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return all results, the highest rate or the latencies first; `positions` orders launches in time."""
    main = run.main
    measures = _search_measures(run)
    if not main:
        return measures
    first = main[0]
    rates = [served.requests_per_s for served in main]
    rate = sum(rates) / len(rates)
    text = units.rate(rate, "requests")
    throughput = with_interval(
        "answered",
        rate,
        "requests/s",
        text,
        interval_of_rates(rates),
        better="higher",
        launches=_launch_values(main, positions, rates),
    )
    latencies = percentiles(run, positions, "latency", lambda served: served.latencies_s, PERCENTILES)
    if run.search is None and first.window.scenario == "server":
        measures += [*latencies, throughput, *_goodput(run, positions)]
    else:
        measures += [throughput, *_goodput(run, positions), *latencies]
    return [
        *measures,
        *_bound_measures(run, positions),
        *_generator_measures(first),
    ]


def _launch_values(
    launches: Sequence[Served], positions: Mapping[LaunchKey, int], values: Iterable[float]
) -> tuple[LaunchValue, ...]:
    return tuple(
        LaunchValue(
            replicate=served.case.replicate,
            order=positions[launch_key(served.case)],
            value=value,
            start=served.case.start,
        )
        for served, value in zip(launches, values, strict=True)
    )


def _goodput(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return the requests per second that met all bounds, if there are bounds."""
    if run.is_of_before or run.main[0].goodput_per_s is None:
        return []
    rates = [served.goodput_per_s or 0.0 for served in run.main]
    rate = sum(rates) / len(rates)
    measure = with_interval(
        "goodput",
        rate,
        "requests/s",
        units.rate(rate, "requests"),
        interval_of_rates(rates),
        better="higher",
        launches=_launch_values(run.main, positions, rates),
    )
    within = sum(served.num_within or 0 for served in run.main)
    total = sum(served.window.num_requests for served in run.main)
    share = f"{units.count(within)} of {units.count(total)} requests"
    detail = f"{share} with {limits_together(run.config)}; {measure.detail}"
    return [replace(measure, detail=detail)]


def _bound_measures(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return each evaluated bound: the percentile, and its interval for all future requests."""
    if run.judgement is None:
        return []
    bounds = bounds_judged(run.main[0].spec)
    return [
        _with_replicates(
            _bound_measure(standing), run, positions, [bound.percentile(served.series) for served in run.main]
        )
        for standing, bound in zip(run.judgement.standings, bounds, strict=True)
    ]


def _with_replicates(
    measure: Measure, run: ServingRun, positions: Mapping[LaunchKey, int], values: Iterable[float | None]
) -> Measure:
    """Return a percentile of all requests, with each launch's percentile for comparisons.

    A search ends at a rate that it chose, so its percentiles should not be compared with the percentiles of
    other runs.
    """
    numbers = [value for value in values if value is not None and value < inf]
    if run.search is not None or len(numbers) < len(run.main):
        return measure
    interval = interval_of_rates(numbers)
    return replace(
        measure,
        launches=_launch_values(run.main, positions, numbers),
        interval=None if isinstance(interval, Unavailable) else as_record(interval),
    )


def _bound_measure(standing: BoundStanding) -> Measure:
    what = f"p{standing.q:g} {standing.name}"
    at_most = (
        "no upper bound"
        if standing.percentile_at_most is None
        else f"at most {bound_value(standing.percentile_at_most, standing)} ({1 - RISK:.0%})"
    )
    worth = (
        f", equivalent to {units.count(round(standing.effective_requests))} independent requests"
        if standing.effective_requests
        else ""
    )
    parts = [
        f"{OUTCOMES[standing.outcome]}: under {bound_value(standing.limit, standing)}",
        at_most,
        f"{units.count(standing.num_requests)} requests{worth}",
        f"{units.share(standing.num_over / standing.num_requests)} over the bound",
        *needed_text(standing),
    ]
    return Measure(
        name=f"bound on {what}",
        value=standing.percentile,
        unit=bound_unit(standing),
        text=bound_value(standing.percentile, standing),
        detail="; ".join(parts),
        better="lower",
        missing=None if standing.percentile is not None else "the percentile falls on a failed request",
    )


def needed_text(standing: BoundStanding) -> list[str]:
    """Report what would be needed to decide an undecided bound."""
    if standing.outcome != "undecided":
        return []
    more = standing.needed_requests
    if more is None or more == inf:
        return [standing.reason or "too few requests"]
    return [f"{standing.reason}; about {units.count(round(more))} in total would be enough"]


def bound_unit(standing: BoundStanding) -> str:
    """Return the unit of the value that is compared with a bound."""
    return "s" if standing.name != ALL else "of its bound"


def bound_value(value: float | None, standing: BoundStanding) -> str:
    """Format a value compared with a bound, in seconds or as a fraction of the nearest bound."""
    if standing.name != ALL:
        return units.seconds(value)
    return units.MISSING if value is None else f"{units.share(value)} of the nearest bound"


def _search_measures(run: ServingRun) -> list[Measure]:
    search = run.search
    if search is None or search.ceiling_per_s is None:
        return []
    measures = [
        _highest_rate(run, search),
        Measure(
            name="offline rate",
            value=search.ceiling_per_s,
            unit="requests/s",
            text=_rate(search.ceiling_per_s),
            detail=_offline_detail(run),
        ),
    ]
    if run.knee_per_s is not None:
        measures.append(
            Measure(
                name="knee",
                value=run.knee_per_s,
                unit="requests/s",
                text=_rate(run.knee_per_s),
                detail=f"the rate at which the median latency starts to rise, out of {len(run.curve)} rates",
            )
        )
    return measures


def _offline_detail(run: ServingRun) -> str:
    """Say whether the offline rate is the server's maximum: it is not if requests failed."""
    windows = [served.window for served in run.launches if served.window.scenario == "offline"]
    failed, total = (sum(getattr(x, name) for x in windows) for name in ("num_failed", "num_requests"))
    if not failed:
        return "all requests at once, in full batches: the maximum rate that the server can reach"
    return (
        f"all requests at once, {units.count(failed)} of {units.count(total)} of which failed: the "
        "server may reach more, but the search tries no higher rate"
    )


def _highest_rate(run: ServingRun, search: RateSearch) -> Measure:
    """Return the highest confirmed rate; the true rate is between it and the lowest refuted rate."""
    met, refuted, client = search.met_per_s, search.not_met_per_s, search.client_limit_per_s
    condition = bounds_text(run.config)
    upper = "no rate was refuted" if refuted is None else f"refuted at {_rate(refuted)}"
    upper = upper if client is None else f"{OUTCOMES['client']} from {_rate(client)} on"
    if run.is_of_before:
        condition += ": from one launch per rate, as in earlier versions"
        upper = "" if refuted is None else f"not met at {_rate(refuted)}"
    elif met is None:
        condition += ": none of the rates tried is confirmed"
    else:
        launches = run.at(met)
        requests = sum(served.window.num_requests for served in launches)
        condition += (
            f": confirmed by {len(launches)} launches of fresh arrivals, {units.count(requests)} requests"
        )
    between = [f"undecided at {_rate(rate)}" for rate in search.untold] if not run.is_of_before else []
    unfinished = [] if search.is_finished else ["the search is not finished"]
    return Measure(
        name="highest rate",
        value=None if client is not None else met,
        unit="requests/s",
        text=_rate(met) if met is not None else units.MISSING,
        detail="; ".join(part for part in (condition, upper, *between, *unfinished) if part),
        uncertainty=None if run.is_of_before else f"confirmed; {upper}" if met is not None else upper,
        better="higher",
        interval=None
        if met is None or refuted is None or client is not None or run.is_of_before
        else MeasureInterval(low=met, high=refuted, level=1 - RISK, kind="bound", method=METHOD),
        missing=_why_none(search, upper),
    )


def _why_none(search: RateSearch, upper: str) -> str | None:
    """Report why the highest rate is unknown: the client is the bottleneck, or no rate is confirmed."""
    met = search.met_per_s
    if search.client_limit_per_s is not None:
        return f"{upper}; {'none' if met is None else _rate(met)} is confirmed, and the server may reach more"
    return None if met is not None else f"{upper}, and none is confirmed: {_remedy(search.not_met_per_s)}"


def _remedy(refuted_per_s: float | None) -> str:
    """Report what may help to confirm a rate if none is confirmed: more time, or another bound."""
    if refuted_per_s is None:
        return "give it more time (serving.search_time_s, serving.time_at_a_rate_s)"
    return "the bound is too tight for this server, or serving.search_lowest_per_s too high"


def bounds_text(config: RunConfig) -> str:
    """Describe the bounds that requests must meet."""
    percentile_of_all = config.serving.bounds.goodput_percentile
    if percentile_of_all is not None:
        return f"{percentile_of_all:g} % of requests with {limits_together(config)}"
    return " and ".join(f"p{q:g} {name} under {units.seconds(limit)}" for name, limit, q in _limits(config))


def limits_together(config: RunConfig) -> str:
    """Describe what a request must meet to count towards goodput: every limit that is set."""
    return " and ".join(f"{name} under {units.seconds(limit)}" for name, limit, _ in _limits(config))


def _limits(config: RunConfig) -> list[tuple[str, float, float]]:
    """Return the limits that are set: name, seconds, and the percentile compared with each."""
    serving, bounds = config.serving, config.serving.bounds
    limits = (
        ("latency", serving.latency_bound_s, serving.latency_percentile),
        ("time to first token", bounds.ttft_s, bounds.ttft_percentile),
        ("time per token", bounds.tpot_s, bounds.tpot_percentile),
    )
    return [(name, limit, q) for name, limit, q in limits if limit is not None]


def percentiles(
    run: ServingRun,
    positions: Mapping[LaunchKey, int],
    name: str,
    times_s: Callable[[Served], Numbers],
    qs: Sequence[float],
) -> list[Measure]:
    """Return percentiles over all launches; compared only if no bound applies to the same times."""
    is_judged = run.search is not None or name in {limit for limit, _, _ in _limits(run.config)}
    pooled_s = np.concatenate([np.asarray(times_s(served), dtype=np.float64) for served in run.main])
    measures = [_percentile_measure(name, percentile(pooled_s, q)) for q in qs]
    return [
        _with_replicates(
            replace(measure, better="lower" if q in COMPARED and not is_judged else None),
            run,
            positions,
            [percentile(times_s(served), q).value for served in run.main],
        )
        for measure, q in zip(measures, qs, strict=True)
    ]


def _percentile_measure(what: str, figure: Percentile) -> Measure:
    of, since = SAMPLES.get(what, ("requests", ", from the scheduled arrival"))
    detail = f"of {units.count(figure.num_samples)} {of}{since}"
    if figure.value is not None and figure.bound is not None:
        detail += f"; at most {units.seconds(figure.bound)} ({figure.confidence:.0%})"
    if figure.value is None:
        detail = (
            f"p{figure.q:g} needs {units.count(figure.num_needed)} {of} (have "
            f"{units.count(figure.num_samples)})"
        )
        if figure.bound is not None and figure.bound_q is not None:
            detail += f"; p{floor(figure.bound_q)} is at most {units.seconds(figure.bound)}"
    return Measure(
        name=f"p{figure.q:g} {what}",
        value=figure.value,
        unit="s",
        text=units.seconds(figure.value),
        detail=detail,
    )


def _generator_measures(served: Served) -> list[Measure]:
    late = percentile(served.lateness_s, 99)
    measures = [
        Measure(
            name="p99 lateness",
            value=late.value,
            unit="s",
            text=units.seconds(late.value),
            detail="of the load generator, from schedule to issue; included in the latency",
        )
    ]
    if served.mean_batch is not None:
        text = units.significant(served.mean_batch)
        measures.append(
            Measure(
                name="mean batch", value=served.mean_batch, unit="requests", text=text, detail="run together"
            )
        )
    return measures if served.window.offered_per_s is not None else measures[1:]


def _rate(rate_per_s: float) -> str:
    return units.rate(rate_per_s, "requests")
