"""Summarise the launches: a rate for each host and the pair, and the fraction the pair retains.

Each host, and the pair, is concluded as if its recipe had run alone; this module adds what only the suite
knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpuproof.base import units
from gpuproof.readings.evidence import Evidence
from gpuproof.records.result import WHOLE, Measure
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.base import Conclusion, Export, read_places
from gpuproof.suites.cases import placed_name
from gpuproof.suites.points.plan import Point, config_at, settle_all
from gpuproof.suites.points.results import PointResult, common_of_points, conclude_points, result_of_points
from gpuproof.suites.results import csv_text, json_export, with_interval
from gpuproof.suites.sections import Common
from gpuproof_example_toy.plan import ALONE, PAIR, ToyState, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyDetail:
    """Text that the page needs in addition to the result. Its values are the result's measures."""

    common: Common
    chosen: tuple[str, ...]
    """Hosts of the pair; empty if there was none."""
    why: str
    """Why these hosts were chosen, or why there are none."""
    is_slow: bool


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result and files of a run; planning is repeated to find the pair that was launched."""
    state = settle_all(plan(evidence.config, read_places(evidence.description)), evidence.launches)
    cases = {placed_name(ALONE, place): place.name or "this machine" for place in state.places}
    if state.pair:
        cases[placed_name(PAIR, *state.pair)] = " + ".join(place.name for place in state.pair)
    alone = {"suite": None, "suite_options": {}, "run.repeats": state.options.rounds}
    recipe = config_at(state.config, alone)  # without the suite, for each case
    wanted = [Point(case_id=case_id, assignment={}, config=recipe) for case_id in cases]
    points = list(conclude_points(evidence, wanted))
    rates = [rate for point in points if (rate := _rate(point, cases[point.point.case_id]))]
    kept = [_kept(state, rates)] if state.pair else []
    work = f"toy: {evidence.config.model.name} on {len(state.places)} hosts"
    detail = ToyDetail(
        common=common_of_points(evidence, points, title=[work]),
        chosen=tuple(place.name for place in state.pair),
        why=_why(state),
        is_slow=any(m.value is not None and m.value < state.options.least_kept for m in kept),
    )
    result = result_of_points(
        "toy",
        evidence,
        points,
        measures=[*kept, *sorted(rates, key=lambda rate: -rate.labels["num_hosts"])],
        num_planned=state.options.rounds * (len(state.places) + (len(state.places) > 1)),
        detail=detail,
        headline_text=kept[0].detail if kept and kept[0].value is not None else None,
    )
    return Conclusion(result=result, exports=tuple(_exports(rates, detail.chosen)))


def _rate(point: PointResult, where: str) -> Measure | None:
    """Return the rate of a host alone, or of both hosts as a pair; None if nothing was measured."""
    rate, num_hosts = point.figures.rate, 1 + (" + " in where)
    if rate is None:
        return None
    subject = f"host/{where}" if num_hosts == 1 and "@" in rate.case else WHOLE
    return replace(rate, name=where, subject=subject, labels={"num_hosts": num_hosts, **rate.labels})


def _kept(state: ToyState, rates: Sequence[Measure]) -> Measure:
    """Return the fraction of both hosts' throughput that remains when they run as one job, per round."""
    first, second = (place.name for place in state.pair)
    pair = next((rate for rate in rates if rate.labels["num_hosts"] > 1), None)
    alone = sum(state.rate_alone(place) or 0.0 for place in state.pair)
    launches = pair.launches if pair and alone else ()
    shares = tuple(replace(launch, value=launch.value / alone) for launch in launches)
    value = fmean(share.value for share in shares) if shares else None
    words = f"one job keeps {units.share(value)} of the throughput of {first} and {second}"
    return with_interval(
        "kept by the pair",
        value,
        "share",
        units.share(value),
        interval_of_launches([share.value for share in shares]),
        better="higher",
        launches=shares,
        case=placed_name(PAIR, *state.pair),
        subject=f"link/{first}>{second}",
        statistic="mean",
        detail=words if shares else "",
        missing=None if shares else "no launch of the pair was measured, or neither host was measured alone",
        validity=pair.validity if pair else None,
    )


def _why(state: ToyState) -> str:
    if state.pair:
        return f"the {state.options.pair} of {len(state.places)} hosts alone"
    measured = sum(state.rate_alone(place) is not None for place in state.places)
    return f"a pair needs two hosts measured alone, and only {measured} were"


def _exports(rates: Sequence[Measure], chosen: Sequence[str]) -> Iterator[Export]:
    rows = [
        {
            "where": rate.name,
            "hosts": rate.labels["num_hosts"],
            "round": n.replicate + 1,
            "items_per_s": n.value,
        }
        for rate in rates
        for n in rate.launches
    ]
    yield Export(name="toy_rounds.csv", content=csv_text(rows))
    yield json_export("toy.json", {"pair": chosen, "rounds": rows})
