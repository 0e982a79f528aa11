"""Results of request windows: the highest rate found or the latency at a rate, and all warnings.

Text results also include the time to the first token, between chunks and per token, and token counts. The
rate that the load client can achieve on its own is included too, since a search may end at that limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuproof.base import units
from gpuproof.launches.explanations import LaunchExplanation, explain_launch, readings_by_launch
from gpuproof.launches.limits import limits_of_requests
from gpuproof.launches.served import PROMPT_SHARE, PROMPT_TOKENS_OFF, summarize_requests
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.limits import LaunchLimits, with_readings
from gpuproof.records.codec import to_json
from gpuproof.records.result import Doubt, Measure
from gpuproof.suites.base import Conclusion, LaunchKey, launch_key
from gpuproof.suites.results import benchmark_result, positions_in_time
from gpuproof.suites.sections import ON_CPU, Common, read_during, torn_notes, without_effect
from gpuproof.suites.serving.exports import rate_measures, serving_exports, window_measures
from gpuproof.suites.serving.measures import COMPARED, OUTCOMES, limits_together, measures_of, percentiles
from gpuproof.suites.serving.plan import ServingPlan
from gpuproof.suites.serving.search import ServingRun
from gpuproof.verdict.doubts.base import Measured, suspect
from gpuproof.verdict.doubts.rules import doubts_about, doubts_about_readings
from gpuproof.verdict.doubts.serving import lost_requests

INDEPENDENCE = (
    "percentiles of one launch treat its requests as independent; requests that queued together are not, "
    "so a single short window may look better or worse than it is"
)
ONE_LAUNCH_A_RATE = (
    "this run is from a version that judged each rate by one launch, treating its requests as "
    "independent: the highest rate may be too high; run it again to have it confirmed"
)
UNSEEN = 3.0
"""Expected number of occurrences: an event that occurs at random, on average three times per period, is
missed in 5 % of periods."""

WITHOUT_FIELD = {
    "ignore_eos": "the endpoint rejects ignore_eos: an answer may end before new_tokens tokens",
    "stream_options": "the endpoint rejects stream_options: it may send no token counts (usage)",
    "temperature": "the endpoint rejects temperature 0: it samples its answers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDetail:
    """Data for the serving page that is not part of the result."""

    common: Common
    num_headlines: int
    """Number of measures that belong to the run; they precede the measures of rates and windows."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a serving run and its files."""
    config = evidence.config
    explanations = _explain(evidence)
    run = _serving_run(evidence, doubts_about_readings(explanations))
    launches = run.launches
    setup = launches[0].setup if launches else None
    positions = positions_in_time(evidence.launches)
    headlines = [*measures_of(run, positions), *token_measures(run, positions), *client_measures(run)]
    detail = ServingDetail(common=_common(evidence, run, explanations), num_headlines=len(headlines))
    result = benchmark_result(
        "serving",
        evidence,
        measures=[
            replace(measure, labels={**measure.labels, "target": config.serving.target})
            for measure in (*headlines, *rate_measures(run), *window_measures(run))
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
        limits=_limits(run, explanations),
    )
    return Conclusion(result=result, exports=tuple(serving_exports(evidence, run)))


def _limits(run: ServingRun, explanations: Sequence[LaunchExplanation]) -> list[LaunchLimits]:
    """Report what limited the rate: a search ends when latencies grow, and only readings show why."""
    searched = "it is the highest rate within the bounds that a search confirmed"
    is_ours, read = run.config.serving.target != "endpoint", readings_by_launch(explanations)
    return [
        with_readings(
            LaunchLimits(found=(), unknown=searched)
            if run.search is not None and run.main
            else limits_of_requests(served.window.offered_per_s, served.requests_per_s, is_ours=is_ours),
            read.get(launch_key(served.case), ()),
        )
        for served in run.main or run.launches
    ]


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
    launches = (served for launch in evidence.launches if (served := summarize_requests(launch)) is not None)
    return [
        explain_launch(served.as_launch(), evidence)
        for served in launches
        if served.setup is not None and served.case.monitor is not None
    ]


def _serving_run(evidence: Evidence, observed: Sequence[Doubt]) -> ServingRun:
    """Combine the launches; `observed` contains the warnings from readings during the launches."""
    config, cases = evidence.config, evidence.launches
    launches = [served for launch in cases if (served := summarize_requests(launch)) is not None]
    settled = [launch for launch in cases if launch.status != "unfinished"]
    left = ServingPlan(config=config)
    for launch in settled:
        left = left.settle(launch)
    run = ServingRun(
        config=config,
        launches=tuple(sorted(launches, key=lambda served: served.window.offered_per_s or 0.0)),
        failures=tuple(f for x in cases if x.status != "done" and (f := x.primary_failure)),
        doubts=(),
        search=left.search,
        rates=left.rates,
        num_planned=len(settled) + left.num_left,
    )
    # Rates above the highest overload the server on purpose, so warnings only count for results that are
    # used.
    used = run.main or launches
    doubts = [
        *client_doubts(run),
        *offline_doubts(run),
        *(doubt for x in launches for doubt in lost_requests(x)),
    ]
    doubts += [doubt for x in used for doubt in doubts_about(Measured(launch=x.as_launch(), served=x))]
    return replace(run, doubts=tuple({doubt.code: doubt for doubt in (*observed, *doubts)}.values()))


def _work(run: ServingRun) -> str:
    """Describe the serving target."""
    serving, config = run.config.serving, run.config
    if serving.target == "endpoint":
        return f"{serving.endpoint.model} at {serving.endpoint.url}"
    if serving.target == "noop":
        return "a no-op server"
    return f"{config.model.name} on {config.data.name}"


def _title(run: ServingRun) -> str:
    serving, parts = run.config.serving, [_work(run)]
    setup = run.launches[0].setup if run.launches else None
    if serving.target == "model":
        parts += [setup.device.name, setup.precision] if setup else []
        parts.append(f"up to {serving.max_batch} per batch")
    scenario = serving.scenario.replace("_", " ")
    how = f"{serving.arrivals} arrivals" if serving.scenario == "server" else scenario
    return ", ".join([*parts, how])


def _notes(run: ServingRun) -> list[str]:
    notes = [INDEPENDENCE] if run.launches else []
    if run.is_of_before and run.search is not None:
        notes.append(ONE_LAUNCH_A_RATE)
    notes += [*_unseen(run), *_none_within(run)]
    if run.search is not None and run.search.wanted is not None and run.search.next_launch is None:
        time = units.seconds(run.config.serving.search_time_s)
        notes.append(f"the search ended after {time} (serving.search_time_s): more time narrows the range")
    if sending := {served.window.num_clients for served in run.launches if served.chunks}:
        num = max(sending)
        notes.append(f"requests were sent by {num} client process{'es' * (num > 1)}")
    refused = {name for served in run.launches for name in served.window.refused_fields}
    notes += [note for name, note in WITHOUT_FIELD.items() if name in refused]
    if "chat" in {served.window.api for served in run.launches} and run.config.serving.endpoint.api == "auto":
        notes.append("the endpoint rejects /completions: prompts were sent to /chat/completions")
    if num_resent := sum(served.window.num_resent for served in run.launches):
        notes.append(
            f"{units.count(num_resent)} requests were sent again on a new connection, which is included in "
            "their latency: the endpoint had silently closed the existing one; raise its keep-alive time-out"
        )
    setup = run.launches[0].setup if run.launches else None
    if setup is not None:
        notes += setup.notes
    if setup is not None and setup.device.kind == "cpu":
        notes.append(ON_CPU)
    if len(run.main) == 1:
        notes.append("one launch: set run.repeats to 3 or more to see how much launches differ")
    return notes


def _none_within(run: ServingRun) -> list[str]:
    """If no request met the bounds, suggest settings that suit this model."""
    within = [served.num_within for served in run.main]
    if run.is_of_before or run.search is not None or not within or any(num != 0 for num in within):
        return []
    text = (
        ", or for text serving.bounds.ttft_s and serving.bounds.tpot_s,"
        if run.main[0].spec.prompt_tokens
        else ""
    )
    return [
        f"no request had {limits_together(run.config)}: "
        f"set serving.latency_bound_s{text} to what users of this model need"
    ]


def _unseen(run: ServingRun) -> list[str]:
    """Report which stalls the launches at this rate could have missed."""
    rate_per_s = run.main[0].window.offered_per_s if run.judgement else None
    if rate_per_s is None:
        return []
    arrivals_s = sum(served.window.num_requests for served in run.main) / rate_per_s
    return [
        f"{units.seconds(arrivals_s)} of arrivals at {units.rate(rate_per_s, 'requests')}: "
        f"anything rarer than once every {units.seconds(arrivals_s / UNSEEN)}, such as a rare "
        "stall, may have gone undetected"
    ]


def client_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield a client's highest rate, and its lateness at half that rate, against a stand-in endpoint."""
    for alone in [served.window.client for served in run.launches if served.window.client][:1]:
        rate = units.rate(alone.rate_per_s, "requests")
        yield Measure(
            name="client ceiling",
            value=alone.highest_per_s,
            unit="requests/s",
            text=units.rate(alone.highest_per_s, "requests"),
            detail="of this client with a local server that answers immediately, on the same cores",
        )
        yield Measure(
            name="client p99 lateness",
            value=alone.p99_late_s,
            unit="s",
            text=units.seconds(alone.p99_late_s),
            detail=f"from schedule to issue, with {rate} sent to that server",
        )


def offline_doubts(run: ServingRun) -> Iterator[Doubt]:
    """Report that the search ends at a rate that is not the server's maximum, since requests failed."""
    for window in (served.window for served in run.launches if served.window.scenario == "offline"):
        if run.search is not None and window.num_failed:
            causes = "; ".join(f"{number} × {text}" for text, number in list(window.failures.items())[:3])
            yield suspect(
                code="offline-failed",
                reason=f"{units.count(window.num_failed)} of {units.count(window.num_requests)} requests "
                f"that were sent at once, before the search, failed: {causes}; the rate of the others is not "
                "the server's maximum, and the search tries no higher rate",
                remedy="Set serving.endpoint.max_connections to what the server accepts at once",
            )


def client_doubts(run: ServingRun) -> Iterator[Doubt]:
    """Report that the search ended at the client's limit rather than the server's."""
    limit_per_s = run.search.client_limit_per_s if run.search else None
    alone = next((served.window.client for served in run.launches if served.window.client), None)
    if limit_per_s is not None:
        by = (
            f"half of the {units.rate(alone.highest_per_s, 'requests')} that it reaches alone"
            if alone is not None and limit_per_s == alone.rate_per_s
            else "at which it issued requests too late"
        )
        yield suspect(
            code="client-limit",
            reason=f"{OUTCOMES['client']} from {units.rate(limit_per_s, 'requests')} on, {by}: the "
            "server may reach more",
            remedy="Run the client on a separate host, or on several, each with a part of the rate",
        )


def token_measures(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return token times and counts, and prompt and response lengths; none if there are no tokens."""
    if not any(served.first_token_s for served in run.main):
        return []
    measures = [
        _token_rate(run),
        *percentiles(run, positions, "time to first token", lambda served: served.first_token_s, COMPARED),
    ]
    if any(served.chunks for served in run.main):
        measures += percentiles(
            run, positions, "time to first content token", lambda served: served.first_content_s, COMPARED
        )
    measures += percentiles(run, positions, "time per token", lambda served: served.token_s, COMPARED)
    return [*measures, *_gap_measures(run, positions), *_length_measures(run)]


def _token_rate(run: ServingRun) -> Measure:
    counts = [served.tokens for served in run.main if served.tokens is not None]
    answered = sum(len(served.latencies_s) for served in run.main)
    if len(counts) < len(run.main):
        missing = "the endpoint sent no token count (usage) with some or all of its answers"
        return Measure(
            name="tokens", value=None, unit="tokens/s", text=units.MISSING, detail=missing, missing=missing
        )
    rates = [served.tokens_per_s or 0.0 for served in run.main]
    rate, chunks = sum(rates) / len(rates), sum(served.chunks for served in run.main)
    in_chunks = f" in {units.count(chunks)} chunks" if chunks else ""
    return Measure(
        name="tokens",
        value=rate,
        unit="tokens/s",
        text=units.rate(rate, "tokens"),
        detail=f"{units.count(sum(counts))} generated for {units.count(answered)} requests{in_chunks}",
    )


def _length_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield the mean lengths of an endpoint's prompts and responses: as counted and as requested."""
    for name in ("prompts", "answers"):
        sides = [getattr(served, name) for served in run.main]
        asked = [tokens for counts in sides for tokens in counts.asked]
        counted = [tokens for counts in sides for tokens in counts.counted]
        if not asked:
            continue
        missing = (
            None
            if len(counted) == len(asked)
            else "the endpoint did not return a token count with each answer"
        )
        mean = sum(counted) / len(counted) if missing is None else None
        off = units.count(sum(counts.num_off for counts in sides))
        by = f" by over {PROMPT_SHARE:.0%} and {PROMPT_TOKENS_OFF} tokens" if name == "prompts" else ""
        differ = f"{off} of {units.count(len(asked))} differ from the request{by}"
        detail = missing or f"mean, as counted by the endpoint; {differ}"
        yield _mean_tokens(f"tokens of {name}", mean, detail, missing)
        requested = sum(asked) / len(asked)
        yield _mean_tokens(f"tokens of {name}, requested", requested, "mean of the requests answered", None)


def _mean_tokens(name: str, value: float | None, detail: str, missing: str | None) -> Measure:
    text = units.MISSING if value is None else units.significant(value)
    return Measure(name=name, value=value, unit="tokens", text=text, detail=detail, missing=missing)


def _gap_measures(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return the inter-token latency, one sample per gap between chunks, as in vLLM and SGLang."""
    if not any(served.window.gaps for served in run.main):
        return []
    measures = percentiles(run, positions, "inter-token latency", lambda served: served.gaps_s, COMPARED)
    num_gaps = sum(len(served.gaps_s) for served in run.main)
    counted = [(x.tokens, x.chunks) for x in run.main if x.tokens is not None]
    tokens, chunks = (sum(side) for side in zip(*counted, strict=True)) if counted else (0, 0)
    several = f" of {tokens / chunks:.3g} tokens on average" if tokens > chunks > 0 else ""
    detail = f"of {units.count(num_gaps)} gaps between chunks{several}"
    return [replace(x, detail=detail if x.value is not None else x.detail) for x in measures]
