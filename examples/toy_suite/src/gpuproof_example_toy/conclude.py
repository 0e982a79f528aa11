"""What the launches come to: a rate for each host and for the pair, and the share that the pair keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpuproof import units
from gpuproof.analysis.explanations import LaunchExplanation, explain_launches
from gpuproof.hardware import find_peak
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import WHOLE, Doubt, LaunchValue, Measure
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.base import Conclusion, Export, HostPlace, read_places
from gpuproof.suites.cases import placed_name
from gpuproof.suites.exports import csv_text, json_export
from gpuproof.suites.measures import rates_of_launches, with_interval
from gpuproof.suites.results import benchmark_result
from gpuproof.suites.sections import Common, notes_of_setup, read_during, torn_notes, without_effect
from gpuproof.verdict.doubts.rules import doubts_about_readings, invalid_first
from gpuproof.verdict.summary import RunSummary, summarize
from gpuproof_example_toy.plan import ALONE, PAIR, ToyState, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One launch that measured, as a row of the table, a point of the chart and a line of the export."""

    where: str
    hosts: int
    round: int
    items_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyDetail:
    """What the page needs beyond the result."""

    common: Common
    item: str
    rounds: tuple[Round, ...]
    chosen: tuple[str, ...]
    """The hosts of the pair; empty where there was none."""
    why: str
    """Why these, or why none."""
    is_slow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The launches of one host by itself, or of the pair."""

    case_id: str
    where: str
    num_hosts: int
    summary: RunSummary
    rates: tuple[LaunchValue, ...]

    @property
    def item(self) -> str:
        """What is counted; only of a group that measured."""
        return self.summary.launches[0].setup.item


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result and the files of a run."""
    state = plan_again(evidence)
    explanations = explain_launches(evidence)
    groups = [_group(evidence, state, explanations, ALONE, place) for place in state.places]
    pair = _group(evidence, state, explanations, PAIR, *state.pair) if state.pair else None
    together = [*groups, *([] if pair is None else [pair])]
    measured = [group for group in together if group.summary.launches]
    kept = [] if pair is None else [_kept(state, pair)]
    summaries = [group.summary for group in together]
    rounds = tuple(
        Round(where=group.where, hosts=group.num_hosts, round=found.replicate + 1, items_per_s=found.value)
        for group in measured
        for found in group.rates
    )
    detail = ToyDetail(
        common=_common(evidence, together, explanations),
        item=measured[0].item if measured else "",
        rounds=rounds,
        chosen=tuple(place.name for place in state.pair),
        why=_why(state),
        is_slow=any(m.value is not None and m.value < state.options.least_kept for m in kept),
    )
    result = benchmark_result(
        "toy",
        evidence,
        measures=[*kept, *map(_throughput, sorted(measured, key=lambda group: -group.num_hosts))],
        doubts=invalid_first(doubt for group in together for doubt in _doubts(group)),
        failures=[failure for summary in summaries for failure in summary.failures],
        num_launches=sum(len(summary.launches) for summary in summaries),
        num_planned=state.options.rounds * (len(groups) + (len(groups) > 1)),
        conditions=_conditions(evidence, measured),
        detail=to_json(detail),
        headline_text=kept[0].detail if kept and kept[0].value is not None else None,
    )
    rows = [to_json(found) for found in rounds]
    exports = (
        Export(name="toy_rounds.csv", content=csv_text(rows)),
        json_export("toy.json", {"pair": detail.chosen, "rounds": rows}),
    )
    return Conclusion(result=result, exports=exports)


def plan_again(evidence: Evidence) -> ToyState:
    """Plan the run again from its own config, places and launches: its pair is the one that was launched."""
    state = plan(evidence.config, read_places(evidence.description))
    for launch in evidence.launches:
        state = state.settle(launch)
    return state


def _group(
    evidence: Evidence,
    state: ToyState,
    explanations: Sequence[LaunchExplanation],
    name: str,
    *places: HostPlace,
) -> Group:
    case_id = placed_name(name, *places)
    own = evidence.only(case_id=case_id)
    summary = summarize(
        own.launches,
        num_planned=state.options.rounds,
        find_peak=find_peak,
        observed=doubts_about_readings(found for found in explanations if found.case_id == case_id),
    )
    return Group(
        case_id=case_id,
        where=" + ".join(place.name for place in places) or "this machine",
        num_hosts=len(places),
        summary=summary,
        rates=rates_of_launches(evidence.launches, summary.launches),
    )


def _throughput(group: Group) -> Measure:
    """Return the rate of a host by itself, or of the pair as a whole."""
    summary, item, rate = group.summary, group.item, group.summary.items_per_s_total
    found = with_interval(
        group.where,
        rate,
        f"{item}/s",
        units.rate(rate, item) if rate is not None else units.MISSING,
        summary.items_per_s_total_interval,
        better="higher",
        launches=group.rates,
    )
    is_host = group.num_hosts == 1 and "@" in group.case_id
    return replace(
        found,
        case=group.case_id,
        subject=f"host/{group.where}" if is_host else WHOLE,
        statistic="total",
        labels={"num_hosts": group.num_hosts, "num_devices": summary.launches[0].world_size},
        validity=summary.validity,
    )


def _kept(state: ToyState, pair: Group) -> Measure:
    """Return the share of both hosts' throughput that is left when they are one job, round by round."""
    first, second = (place.name for place in state.pair)
    alone = sum(rate for place in state.pair if (rate := state.rate_alone(place)))
    shares = tuple(replace(rate, value=rate.value / alone) for rate in pair.rates if alone)
    value = fmean(share.value for share in shares) if shares else None
    found = with_interval(
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
        found,
        case=pair.case_id,
        subject=f"link/{first}>{second}",
        statistic="mean",
        detail=detail if shares else "",
        missing=None if shares else "no launch of the pair measured, or none of its hosts alone",
        validity=pair.summary.validity,
    )


def _doubts(group: Group) -> Iterator[Doubt]:
    for doubt in group.summary.doubts:
        yield replace(doubt, reason=f"{group.where}: {doubt.reason}")


def _why(state: ToyState) -> str:
    hosts = [(place.name, state.rate_alone(place)) for place in state.places]
    if not state.pair:
        measured = sum(rate is not None for _, rate in hosts)
        return f"a pair needs two hosts that measured alone, and {measured} did"
    return f"the {state.options.pair} of {len(hosts)} hosts alone"


def _conditions(evidence: Evidence, measured: Sequence[Group]) -> dict[str, object]:
    first = measured[0].summary.launches[0] if measured else None
    return {
        "model": evidence.config.model.name,
        "data": evidence.config.data.name,
        "batch_size": evidence.config.data.batch_size,
        "precision": evidence.config.training.precision,
        "device": None if first is None else first.setup.device.name,
    }


def _common(evidence: Evidence, groups: Sequence[Group], explanations: Sequence[LaunchExplanation]) -> Common:
    launches = [launch for group in groups for launch in group.summary.launches]
    work = f"toy: {evidence.config.model.name} on {sum(group.num_hosts == 1 for group in groups)} hosts"
    return Common(
        title=f"{work}{f', {launches[0].setup.device.name}' if launches else ''}",
        work=work,
        names_cases=True,
        not_applied=without_effect([launch.setup for launch in launches], evidence.description["origins"]),
        notes=(*notes_of_setup(launches), *torn_notes(evidence.launches)),
        **read_during(explanations),
    )
