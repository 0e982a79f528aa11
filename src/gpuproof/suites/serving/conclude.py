"""What windows of requests come to: the rate that was found, or the latency at a rate, and every doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor

from gpuproof import units
from gpuproof.analysis.explanations import LaunchExplanation, explain_launch
from gpuproof.analysis.loadgen import find_knee
from gpuproof.analysis.serving import STREAM_PERCENTILES, Served, summarize_requests
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import Doubt, LaunchValue, Measure
from gpuproof.records.run import Failure
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.suites.base import Conclusion, LaunchKey, launch_key
from gpuproof.suites.measures import positions_in_time, with_interval
from gpuproof.suites.results import benchmark_result
from gpuproof.suites.sections import ON_CPU, Common, read_during, torn_notes, without_effect
from gpuproof.suites.serving.exports import serving_exports
from gpuproof.suites.serving.plan import RateSearch, ServingPlan, Trial, is_search, search_so_far
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about, doubts_about_readings

OUTCOMES = {
    "met": "met",
    "missed": "missed",
    "undecided": "too few requests to tell",
}
INDEPENDENCE = (
    "percentiles and bounds take requests as independent; those of one busy spell are not, "
    "so a single short window may look better or worse than it is"
)

WITHOUT_FIELD = {
    "ignore_eos": "the endpoint refuses ignore_eos: an answer may end before new_tokens tokens",
    "stream_options": "the endpoint refuses stream_options: tokens are the events of its stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsRow:
    """One window in the table of windows of requests."""

    case_id: str
    replicate: int
    scenario: str
    offered_per_s: float | None
    """Requests a second of the schedule; None where there is none."""
    answered_per_s: float
    num_requests: int
    num_failed: int
    p50_latency_s: float | None
    p99_latency_s: float | None
    """None with too few requests."""
    mean_batch: float | None
    busy_share: float | None
    """Of the window, with a batch under way."""
    bound: str | None
    """Whether the latency bound was met; None where none was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDetail:
    """What the page of a serving run needs beyond the result."""

    common: Common
    requests: tuple[RequestsRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A run of kind serving, with what its report is made from."""

    config: RunConfig
    launches: tuple[Served, ...]
    failures: tuple[Failure, ...]
    doubts: tuple[Doubt, ...]
    search: RateSearch | None
    """None where the recipe names a rate or a scenario without one."""
    num_planned: int

    @property
    def main(self) -> tuple[Served, ...]:
        """The launches that the run is about: at the rate that was found, or of the one scenario."""
        if self.search is None:
            return self.launches
        return tuple(s for s in self.launches if s.window.offered_per_s == self.search.met_per_s)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Rate and median latency of every schedule that was answered, by rate."""
        points = [
            (served.window.offered_per_s, found.value)
            for served in self.launches
            if served.window.offered_per_s is not None
            and (found := percentile(served.latencies_s, 50)).value is not None
        ]
        return sorted((rate, value) for rate, value in points if value is not None)

    @property
    def knee_per_s(self) -> float | None:
        """The rate at which the curve turns up; None where it has no clear bend."""
        index = find_knee(self.curve)
        return None if index is None else self.curve[index][0]


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a serving run and its files."""
    config = evidence.config
    explanations = _explain(evidence)
    run = _serving_run(evidence, doubts_about_readings(explanations))
    launches = run.launches
    setup = launches[0].setup if launches else None
    detail = ServingDetail(
        common=_common(evidence, run, explanations), requests=tuple(map(requests_row, launches))
    )
    result = benchmark_result(
        "serving",
        evidence,
        measures=[
            replace(measure, labels={**measure.labels, "target": config.serving.target})
            for measure in _measures(run, positions_in_time(evidence.launches))
        ],
        doubts=run.doubts,
        failures=run.failures,
        num_launches=len(launches),
        num_planned=run.num_planned,
        conditions={
            "kind": "serving",
            "model": config.model.name,
            "target": config.serving.target,
            "scenario": config.serving.scenario,
            "precision": config.training.precision,
            "device": setup.device.name if setup else None,
        },
        detail=to_json(detail),
    )
    return Conclusion(result=result, exports=tuple(serving_exports(evidence, run, result)))


def _common(evidence: Evidence, run: ServingRun, explanations: Sequence[LaunchExplanation]) -> Common:
    setups = [launch.setup for launch in run.launches if launch.setup]
    return Common(
        title=_title(run),
        work=_work(run),
        names_cases=True,
        not_applied=without_effect(setups, evidence.description["origins"]),
        notes=(*_notes(run), *torn_notes(evidence.launches)),
        **read_during(explanations),
    )


def _explain(evidence: Evidence) -> list[LaunchExplanation]:
    found = (served for launch in evidence.launches if (served := summarize_requests(launch)) is not None)
    return [
        explain_launch(served.as_launch(), evidence)
        for served in found
        if served.setup is not None and served.case.monitor is not None
    ]


def _serving_run(evidence: Evidence, observed: Sequence[Doubt]) -> ServingRun:
    """Put the launches together; `observed` are doubts from readings beside them."""
    config, cases = evidence.config, evidence.launches
    launches = [served for launch in cases if (served := summarize_requests(launch)) is not None]
    settled = [launch for launch in cases if launch.status != "unfinished"]
    trials = [Trial.of(served) for served in launches]
    searches = is_search(config.serving)
    left = ServingPlan(config=config)
    for launch in settled:
        left = left.settle(launch)
    run = ServingRun(
        config=config,
        launches=tuple(sorted(launches, key=lambda served: served.window.offered_per_s or 0.0)),
        failures=tuple(f for x in cases if x.status != "done" and (f := x.primary_failure)),
        doubts=(),
        search=search_so_far(trials, precision=config.serving.search_precision) if searches else None,
        num_planned=len(settled) + left.num_left,
    )
    # A rate over the highest overloads the server by intent: doubts count where figures are used.
    used = run.main or launches
    doubts = [doubt for x in used for doubt in doubts_about(Measured(launch=x.as_launch(), served=x))]
    return replace(run, doubts=tuple({doubt.code: doubt for doubt in (*observed, *doubts)}.values()))


def _work(run: ServingRun) -> str:
    """Say what was served."""
    serving, config = run.config.serving, run.config
    if serving.target == "endpoint":
        return f"{serving.endpoint.model} at {serving.endpoint.url}"
    if serving.target == "noop":
        return "the server that does nothing"
    return f"{config.model.name} on {config.data.name}"


def _title(run: ServingRun) -> str:
    serving, parts = run.config.serving, [_work(run)]
    setup = run.launches[0].setup if run.launches else None
    if serving.target == "model":
        parts += [setup.device.name, setup.precision] if setup else []
        parts.append(f"up to {serving.max_batch} a batch")
    scenario = serving.scenario.replace("_", " ")
    how = f"{serving.arrivals} arrivals" if serving.scenario == "server" else scenario
    return ", ".join([*parts, how])


def _measures(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    main = run.main
    found = _search_measures(run)
    if not main:
        return found
    first = main[0]
    rates = interval_of_launches([served.requests_per_s for served in main])
    rate = sum(served.requests_per_s for served in main) / len(main)
    text = units.rate(rate, "requests")
    launches = tuple(
        LaunchValue(
            replicate=served.case.replicate,
            order=positions[launch_key(served.case)],
            value=served.requests_per_s,
        )
        for served in main
    )
    throughput = with_interval(
        "answered", rate, "requests/s", text, rates, better="higher", launches=launches
    )
    latencies = _latency_measures(first)
    if run.search is None and first.window.scenario not in ("offline", "closed_loop"):
        found += [*latencies, throughput]
    else:
        found += [throughput, *latencies]
    return [*found, *_stream_measures(first), *_token_measures(first), *_generator_measures(first)]


def _search_measures(run: ServingRun) -> list[Measure]:
    search = run.search
    if search is None or search.ceiling_per_s is None:
        return []
    serving = run.config.serving
    bound = f"p{serving.latency_percentile:g} under {units.seconds(serving.latency_bound_s)}"
    missed = "" if search.not_met_per_s is None else f"; not met at {_rate(search.not_met_per_s)}"
    if search.met_per_s is not None:
        text, detail = _rate(search.met_per_s), f"{bound}: met here{missed}"
        if not search.is_finished:
            detail += "; the search is not finished"
    else:
        text, detail = units.MISSING, f"{bound}: no rate that was tried met it{missed}"
    measures = [
        Measure(name="highest rate", value=search.met_per_s, unit="requests/s", text=text, detail=detail),
        Measure(
            name="offline rate",
            value=search.ceiling_per_s,
            unit="requests/s",
            text=_rate(search.ceiling_per_s),
            detail="everything at once, in full batches: what the server can do at all",
        ),
    ]
    if run.knee_per_s is not None:
        measures.append(
            Measure(
                name="knee",
                value=run.knee_per_s,
                unit="requests/s",
                text=_rate(run.knee_per_s),
                detail=f"where the median latency turns up, of {len(run.curve)} rates",
            )
        )
    return measures


def _latency_measures(served: Served) -> list[Measure]:
    return [_percentile_measure("latency", found) for found in served.latency_percentiles()]


def _percentile_measure(what: str, found: Percentile) -> Measure:
    detail = f"of {units.count(found.num_samples)} requests, from the scheduled arrival"
    if found.value is not None and found.bound is not None:
        detail += f"; at most {units.seconds(found.bound)} ({found.confidence:.0%})"
    if found.value is None:
        detail = f"needs {units.count(found.num_needed)} requests, have {units.count(found.num_samples)}"
        if found.bound is not None and found.bound_q is not None:
            detail += f"; p{floor(found.bound_q)} is at most {units.seconds(found.bound)}"
    return Measure(
        name=f"p{found.q:g} {what}",
        value=found.value,
        unit="s",
        text=units.seconds(found.value),
        detail=detail,
    )


def _stream_measures(served: Served) -> list[Measure]:
    q = STREAM_PERCENTILES.get(served.window.scenario)
    if q is None:
        return []
    value = served.stream_latency_s
    return [
        Measure(
            name=f"MLPerf p{q:g}",
            value=value,
            unit="s",
            text=units.seconds(value),
            detail="by LoadGen's early-stopping rule at 99 %"
            if value is not None
            else "too few requests for LoadGen's early-stopping rule at 99 %",
        )
    ]


def _token_measures(served: Served) -> list[Measure]:
    if not served.tokens:
        return []
    rate = served.tokens_per_s
    measures = [
        _percentile_measure(what, percentile(times, q))
        for what, times in (("time to first token", served.first_token_s), ("time per token", served.token_s))
        for q in (50.0, 99.0)
    ]
    return [
        Measure(
            name="tokens",
            value=rate,
            unit="tokens/s",
            text=units.rate(rate, "tokens"),
            detail=f"{units.count(served.tokens)} made for {units.count(len(served.latencies_s))} requests",
        ),
        *measures,
    ]


def _generator_measures(served: Served) -> list[Measure]:
    late = percentile(served.lateness_s, 99)
    measures = [
        Measure(
            name="p99 lateness",
            value=late.value,
            unit="s",
            text=units.seconds(late.value),
            detail="of the generator, from schedule to issue; latency has it in",
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


def requests_row(served: Served) -> RequestsRow:
    """Return a window's row of the table of requests."""
    by_q = {found.q: found.value for found in served.latency_percentiles()}
    verdict = served.verdict
    return RequestsRow(
        case_id=served.case.case_id,
        replicate=served.case.replicate,
        scenario=served.window.scenario,
        offered_per_s=served.window.offered_per_s,
        answered_per_s=served.requests_per_s,
        num_requests=served.window.num_requests,
        num_failed=served.window.num_failed,
        p50_latency_s=by_q[50.0],
        p99_latency_s=by_q[99.0],
        mean_batch=served.mean_batch,
        busy_share=None if served.busy_s is None else served.busy_s / served.window.wall_s,
        bound=OUTCOMES[verdict.outcome] if verdict else None,
    )


def _notes(run: ServingRun) -> list[str]:
    notes = [INDEPENDENCE] if run.launches else []
    refused = {name for served in run.launches for name in served.window.refused_fields}
    notes += [note for name, note in WITHOUT_FIELD.items() if name in refused]
    setup = run.launches[0].setup if run.launches else None
    if setup is not None:
        notes += setup.notes
    if setup is not None and setup.device.kind == "cpu":
        notes.append(ON_CPU)
    if len(run.main) == 1:
        notes.append("one launch: set run.repeats to 3 or more to see how launches differ")
    return notes


def _rate(rate_per_s: float) -> str:
    return units.rate(rate_per_s, "requests")
