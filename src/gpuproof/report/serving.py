"""The report of requests under load: the rate that was found, or the latency at a rate, and every doubt.

In: a config and its launches. Out: the same `ReportModel` as of any run, with a row for each window of
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from gpuproof import units
from gpuproof.analysis.explanations import LaunchExplanation
from gpuproof.analysis.loadgen import find_knee
from gpuproof.analysis.serving import STREAM_PERCENTILES, Served, findings_of_serving, served_of
from gpuproof.analysis.validity import Finding, worst
from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure
from gpuproof.report.measure import Measure, with_interval
from gpuproof.report.model import LaunchRow, ReportModel, RequestsRow, next_commands
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.suites.serving import Search, is_search, next_cases, search_so_far

OUTCOMES = {
    "met": "met",
    "missed": "missed",
    "undecided": "too few requests to tell",
}
INDEPENDENCE = (
    "percentiles and bounds take requests as independent; those of one busy spell are not, "
    "so a single short window may flatter or blame"
)

WITHOUT_FIELD = {
    "ignore_eos": "the endpoint refuses ignore_eos: an answer may end before new_tokens tokens",
    "stream_options": "the endpoint refuses stream_options: tokens are the events of its stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A run of kind serving, with what its report is made from."""

    config: RunConfig
    launches: tuple[Served, ...]
    failures: tuple[Failure, ...]
    findings: tuple[Finding, ...]
    search: Search | None
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


def serving_run(
    config: RunConfig, cases: Sequence[CaseRecords], observed: Sequence[Finding] = ()
) -> ServingRun:
    """Put the launches of a serving recipe together; `observed` are doubts from readings beside them."""
    launches = tuple(served for records in cases if (served := served_of(records)) is not None)
    settled = [records for records in cases if records.status != "unfinished"]
    searches = is_search(config.serving)
    search = search_so_far(launches, precision=config.serving.search_precision) if searches else None
    run = ServingRun(
        config=config,
        launches=tuple(sorted(launches, key=lambda served: served.window.offered_per_s or 0.0)),
        failures=tuple(f for records in cases if records.status != "done" and (f := records.primary_failure)),
        findings=(),
        search=search,
        num_planned=len(settled) + len(next_cases(config, settled)),
    )
    # A rate over the highest overloads the server by intent: doubts count where figures are used.
    used = run.main or launches
    doubts = [finding for served in used for finding in findings_of_serving(served)]
    return ServingRun(
        config=config,
        launches=run.launches,
        failures=run.failures,
        findings=tuple({finding.code: finding for finding in (*observed, *doubts)}.values()),
        search=search,
        num_planned=run.num_planned,
    )


def build_serving_report(
    served_run: ServingRun,
    *,
    run: str,
    description: Mapping[str, Any],
    files: Sequence[str],
    explanations: Sequence[LaunchExplanation],
    torn: Sequence[str],
) -> ReportModel:
    """Build the report of a serving run."""
    launches = served_run.launches
    setup = launches[0].setup if launches else None
    not_applied = setup.not_applied if setup else ()
    origins = description["origins"]
    return ReportModel(
        schema_version=1,
        title=_title(served_run),
        run=run,
        validity=worst(served_run.findings) if launches else None,
        measures=tuple(_measures(served_run)),
        launches=tuple(_launch_row(served) for served in launches),
        num_planned=served_run.num_planned,
        findings=served_run.findings,
        failures=served_run.failures,
        explanations=tuple(explanations),
        not_applied=tuple(item for item in not_applied if origins.get(item.key, "default") != "default"),
        notes=(*_notes(served_run), *torn),
        files=tuple(files),
        next_commands=next_commands(
            served_run.failures, run=run, is_complete=len(launches) >= served_run.num_planned
        ),
        requests=tuple(requests_row(served) for served in launches),
    )


def _title(run: ServingRun) -> str:
    serving, config = run.config.serving, run.config
    setup = run.launches[0].setup if run.launches else None
    if serving.target == "endpoint":
        parts = [f"{serving.endpoint.model} at {serving.endpoint.url}"]
    elif serving.target == "noop":
        parts = ["the server that does nothing"]
    else:
        parts = [f"{config.model.name} on {config.data.name}"]
        parts += [setup.device.name, setup.precision] if setup else []
        parts.append(f"up to {serving.max_batch} a batch")
    scenario = serving.scenario.replace("_", " ")
    how = f"{serving.arrivals} arrivals" if serving.scenario == "server" else scenario
    return ", ".join([*parts, how])


def _measures(run: ServingRun) -> list[Measure]:
    main = run.main
    found = _search_measures(run)
    if not main:
        return found
    first = main[0]
    rates = interval_of_launches([served.requests_per_s for served in main])
    rate = sum(served.requests_per_s for served in main) / len(main)
    throughput = with_interval("answered", rate, "requests/s", units.rate(rate, "requests"), rates)
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


def _launch_row(served: Served) -> LaunchRow:
    window = served.as_launch().slowest
    return LaunchRow(
        replicate=served.case.replicate,
        items_per_s_total=served.samples_per_s,
        mean_step_s=window.steps_s / window.num_steps,
        num_steps=window.num_steps,
        window_s=window.wall_s,
        stop_reason=window.stop_reason,
        case_id=served.case.case_id,
    )


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
        notes.append("measured on the CPU: no figure of any GPU")
    if len(run.main) == 1:
        notes.append("one launch: set run.repeats to 3 or more to see how launches differ")
    return notes


def _rate(rate_per_s: float) -> str:
    return units.rate(rate_per_s, "requests")
