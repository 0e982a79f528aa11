"""What the launches come to: a rate for each host and for the pair, and the share that the pair keeps.

Each host, and the pair, is concluded as the recipe by itself would be; this adds what only the suite knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpuproof import units
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import WHOLE, Measure
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.base import Conclusion, Export, read_places
from gpuproof.suites.cases import placed_name
from gpuproof.suites.exports import csv_text, json_export
from gpuproof.suites.measures import with_interval
from gpuproof.suites.points.plan import Point
from gpuproof.suites.points.results import PointResult, conclude_points, read_at_points
from gpuproof.suites.results import benchmark_result, shared_conditions
from gpuproof.suites.sections import Common, notes_of_setup, torn_notes, without_effect
from gpuproof.verdict.doubts.rules import invalid_first
from gpuproof_example_toy.plan import ALONE, PAIR, ToyState, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyDetail:
    """What the page needs beyond the result: words. Its figures are the result's measures."""

    common: Common
    chosen: tuple[str, ...]
    """The hosts of the pair; empty where there was none."""
    why: str
    """Why these, or why none."""
    is_slow: bool


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result and the files of a run."""
    state = plan_again(evidence)
    cases = {placed_name(ALONE, place): place.name or "this machine" for place in state.places}
    if state.pair:
        cases[placed_name(PAIR, *state.pair)] = " + ".join(place.name for place in state.pair)
    points = list(conclude_points(evidence, [_point(state, case_id) for case_id in cases]))
    rates = [rate for point in points for rate in _throughput(point, cases[point.point.case_id])]
    kept = [_kept(state, rates)] if state.pair else []
    detail = ToyDetail(
        common=_common(evidence, points),
        chosen=tuple(place.name for place in state.pair),
        why=_why(state),
        is_slow=any(m.value is not None and m.value < state.options.least_kept for m in kept),
    )
    result = benchmark_result(
        "toy",
        evidence,
        measures=[*kept, *sorted(rates, key=lambda rate: -rate.labels["num_hosts"])],
        doubts=invalid_first(
            replace(doubt, reason=f"{cases[point.point.case_id]}: {doubt.reason}")
            for point in points
            for doubt in point.result.doubts
        ),
        failures=[failure for point in points for failure in point.result.failures],
        num_launches=sum(len(point.launches) for point in points),
        num_planned=state.options.rounds * (len(state.places) + (len(state.places) > 1)),
        conditions=shared_conditions([point.result for point in points]),
        detail=to_json(detail),
        headline_text=kept[0].detail if kept and kept[0].value is not None else None,
    )
    return Conclusion(result=result, exports=tuple(_exports(rates, detail.chosen)))


def plan_again(evidence: Evidence) -> ToyState:
    """Plan the run again from its own config, places and launches: its pair is the one that was launched."""
    state = plan(evidence.config, read_places(evidence.description))
    for launch in evidence.launches:
        state = state.settle(launch)
    return state


def _point(state: ToyState, case_id: str) -> Point:
    """Return the recipe without the suite, with as many launches as there are rounds."""
    run = replace(state.config.run, repeats=state.options.rounds)
    config = state.config.model_copy(update={"suite": None, "suite_options": {}, "run": run})
    return Point(case_id=case_id, assignment={}, config=config)


def _throughput(point: PointResult, where: str) -> Iterator[Measure]:
    """Yield the rate of a host by itself, or of the pair as a whole."""
    for measure in point.result.measures:
        if (measure.name, measure.subject) == ("throughput", WHOLE):
            is_pair, is_placed = " + " in where, "@" in measure.case
            yield replace(
                measure,
                name=where,
                subject=f"host/{where}" if is_placed and not is_pair else WHOLE,
                labels={"num_hosts": 2 if is_pair else 1, **measure.labels},
            )


def _kept(state: ToyState, rates: Sequence[Measure]) -> Measure:
    """Return the share of both hosts' throughput that is left when they are one job, round by round."""
    first, second = (place.name for place in state.pair)
    pair = next((rate for rate in rates if rate.labels["num_hosts"] > 1), None)
    alone = sum(rate for place in state.pair if (rate := state.rate_alone(place)))
    shares = (
        tuple(replace(rate, value=rate.value / alone) for rate in pair.launches) if pair and alone else ()
    )
    value = fmean(share.value for share in shares) if shares else None
    share = with_interval(
        "kept by the pair",
        value,
        "share",
        units.share(value),
        interval_of_launches([share.value for share in shares]),
        better="higher",
        launches=shares,
    )
    detail = f"{units.share(value)} of the throughput of {first} and {second} is kept by one job"
    return replace(
        share,
        case=placed_name(PAIR, *state.pair),
        subject=f"link/{first}>{second}",
        statistic="mean",
        detail=detail if shares else "",
        missing=None if shares else "no launch of the pair measured, or none of its hosts alone",
        validity=pair.validity if pair else None,
    )


def _why(state: ToyState) -> str:
    if not state.pair:
        measured = sum(state.rate_alone(place) is not None for place in state.places)
        return f"a pair needs two hosts that measured alone, and {measured} did"
    return f"the {state.options.pair} of {len(state.places)} hosts alone"


def _common(evidence: Evidence, points: Sequence[PointResult]) -> Common:
    launches = [launch for point in points for launch in point.launches]
    num_hosts = sum(point.point.case_id.startswith(ALONE) for point in points)
    work = f"toy: {evidence.config.model.name} on {num_hosts} hosts"
    return Common(
        title=", ".join([work, *(launch.setup.device.name for launch in launches[:1])]),
        work=work,
        names_cases=True,
        not_applied=without_effect([launch.setup for launch in launches], evidence.description["origins"]),
        notes=(*notes_of_setup(launches), *torn_notes(evidence.launches)),
        **read_at_points(points),
    )


def _exports(rates: Sequence[Measure], chosen: Sequence[str]) -> Iterator[Export]:
    rows = [
        {
            "where": rate.name,
            "hosts": rate.labels["num_hosts"],
            "round": launch.replicate + 1,
            "items_per_s": launch.value,
        }
        for rate in rates
        for launch in rate.launches
    ]
    yield Export(name="toy_rounds.csv", content=csv_text(rows))
    yield json_export("toy.json", {"pair": chosen, "rounds": rows})
