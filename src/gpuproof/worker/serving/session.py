"""One serving case: prepare, warm up, serve a window of requests, and record each request.

Individual requests are not recorded while they are in flight. The number of completed requests is written
twice a second, and the times of all requests at the end.
"""

from __future__ import annotations

import gc
import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.devices.other_processes import other_users
from gpuproof.processes.granted import usable_cpus
from gpuproof.records.case import Case, ServingWork
from gpuproof.records.run import DeviceSharing, HostLoad, Progress
from gpuproof.records.serving import Requests, ServingWindow
from gpuproof.records.work.serving import ServingSpec
from gpuproof.worker.engine.loop import paused_collector
from gpuproof.worker.host.host_load import load_between, read_load
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.batching import (
    BatchingRule,
    RunBatch,
    ServedRequests,
    model_target,
    run_nothing,
    serve,
    warm,
)
from gpuproof.worker.serving.clients import clients, num_clients, run_precisely
from gpuproof.worker.serving.endpoint import EndpointLoad, reporting
from gpuproof.worker.serving.generator import TrafficPlan, traffic, traffic_plan
from gpuproof.worker.serving.prompts import Prompts
from gpuproof.worker.serving.twin import measure_client

if TYPE_CHECKING:
    from gpuproof.worker.step.preparation import Prepared

LEAD_S = 0.5
"""Time from the start of the generator to the window's start, during which the generator imports modules and
draws its schedule."""
LEAD_PER_REQUEST_S = 1e-6
TRACE_LEAD_S = 2.0
"""Additional time for reading a trace: reading tens of thousands of lines takes a second."""
CHUNK = 2_000
MICROSECOND_DIGITS = 6
MOST_FAILURES = 20
"""Maximum number of kinds of failures reported separately, since servers put varying numbers in their
messages."""
BEAT_S = 0.5


def run_serving_case(
    case: Case, work: ServingWork, *, identity: RankIdentity, recorder: Recorder, run_folder: Path
) -> Prepared | None:
    """Run a case that serves requests; return what must be released, or None if there is no model."""
    spec, seed = work.serving, work.seed_of(case.replicate)
    prepared: Prepared | None = None
    run_batch: RunBatch = run_nothing
    device_uuid = None
    with recorder.phase("prepare"):
        if case.capture_env:
            recorder.describe_host(case.placement.device)
        if spec.target == "model":
            from gpuproof.accelerators.choose import accelerator_of
            from gpuproof.worker.step.preparation import prepare, setup_record

            prepared = prepare(case, identity=identity, run_folder=run_folder)
            run_batch = model_target(prepared)
            device_uuid = accelerator_of(prepared.device).properties(prepared.device).uuid
            recorder.write(setup_record(prepared))
    if prepared is not None:
        _warm_up(spec, run_batch, recorder)
    if spec.target == "endpoint":
        _measure_endpoint(spec, recorder, seed=seed)
    else:
        _measure(spec, run_batch, recorder, seed=seed, device_uuid=device_uuid)
    recorder.finish()
    return prepared


def _rule(spec: ServingSpec) -> BatchingRule:
    return BatchingRule(
        samples_per_request=spec.samples_per_request, max_batch=spec.max_batch, max_wait_s=spec.max_wait_s
    )


def _warm_up(spec: ServingSpec, run_batch: RunBatch, recorder: Recorder) -> None:
    rule = _rule(spec)
    with recorder.phase("warmup", expected_steps=rule.max_requests + 1):
        warm(
            run_batch,
            samples_per_request=rule.samples_per_request,
            max_requests=rule.max_requests,
            on_batch=lambda num_done: recorder.heartbeat.beat(steps_done=num_done),
        )
        gc.collect()


def _measure(
    spec: ServingSpec, run_batch: RunBatch, recorder: Recorder, *, seed: int, device_uuid: str | None
) -> None:
    """Serve the window's requests, issued by a generator in a separate process."""
    plan, beat = _plan(spec, seed), ProgressBeat(recorder)
    with recorder.phase("measure", **_expected(plan, spec)):
        before = read_load()
        begin_s = plan.begin_monotonic_s
        with traffic(plan) as source, paused_collector():
            served = serve(source, run_batch, _rule(spec), begin_s=begin_s, on_batch=beat.update)
            issued_s = source.issue_times_s()
        load = load_between(before, read_load())
        end_s = monotonic()
        scheduled_s = plan.schedule() if plan.concurrency is None else issued_s
        rows = _request_times(spec, scheduled_s, issued_s, served)
        window = _write_requests(recorder, spec, plan, rows, end_s=end_s, load=load, device_uuid=device_uuid)
        recorder.write(replace(window, batches=tuple(sorted(served.batches.items()))))


def _request_times(
    spec: ServingSpec, scheduled_s: Sequence[float], issued_s: Sequence[float], served: ServedRequests
) -> list[RequestTimes]:
    tokens = spec.samples_per_request * (spec.new_tokens or 0)
    first_token_s = served.first_token_s or [None] * len(served.done_s)
    return [
        RequestTimes(
            scheduled_s=due, issued_s=sent, begun_s=begun, first_token_s=first, done_s=done, tokens=tokens
        )
        for due, sent, begun, first, done in zip(
            scheduled_s, issued_s, served.begun_s, first_token_s, served.done_s, strict=True
        )
    ]


def _measure_endpoint(spec: ServingSpec, recorder: Recorder, *, seed: int) -> None:
    """Load-test an HTTP endpoint from the event loop of this process, or of several client processes.

    Raises:
        EnvironmentUnfitError: the endpoint did not answer any request, or does not report enough for the
            required metrics.
    """
    load = EndpointLoad(spec.endpoint, Prompts(spec, seed))
    with recorder.phase("warmup", expected_steps=1):
        _try_out(load, spec, recorder)
        num = num_clients(spec, cpus=usable_cpus())
        client = measure_client(spec, seed=seed, num=num) if spec.scenario == "offline" else None
    with clients([load] * num) as run:
        plan, beat = _plan(spec, seed), ProgressBeat(recorder)
        with recorder.phase("measure", **_expected(plan, spec)):
            before = read_load()
            with paused_collector():
                rows = run(plan, beat.update)
            window_load = load_between(before, read_load())
            window = _write_requests(recorder, spec, plan, rows, end_s=monotonic(), load=window_load)
            recorder.write(
                replace(
                    window,
                    refused_fields=tuple(load.refused_fields),
                    num_with_surplus=sum(row.has_surplus for row in rows),
                    num_resent=sum(row.is_resent for row in rows),
                    api=load.api,
                    gaps=_gaps(rows),
                    client=client,
                    num_clients=num,
                )
            )
    _require_an_answer(spec, rows)


def _require_an_answer(spec: ServingSpec, rows: Sequence[RequestTimes]) -> None:
    if all(row.done_s is None for row in rows):
        counted = Counter(row.failure for row in rows).most_common(1)
        most = counted[0][0] if counted else "none was sent, since serving.window_s is too short"
        raise EnvironmentUnfitError(
            f"{spec.endpoint.url} answered none of {len(rows)} requests; most common failure: {most}",
            place="serving.endpoint.url",
            next_step="Check the server's log; send fewer requests per second, or raise "
            "serving.endpoint.timeout_s",
        )


def _try_out(load: EndpointLoad, spec: ServingSpec, recorder: Recorder) -> None:
    run_precisely(reporting(load.try_out(), recorder.heartbeat.beat))
    if spec.bounds.tpot_s is not None and not load.expects_usage:
        raise EnvironmentUnfitError(
            f"{spec.endpoint.url} does not send token counts (usage), so the time per token is unknown",
            place="serving.bounds.tpot_s",
            next_step="Set it to null, or make the server honour stream_options.include_usage",
        )


def _plan(spec: ServingSpec, seed: int) -> TrafficPlan:
    expected = max(spec.min_requests, (spec.rate_per_s or 0) * spec.window_s)
    lead_s = LEAD_S + LEAD_PER_REQUEST_S * expected + (TRACE_LEAD_S if spec.trace else 0.0)
    return traffic_plan(spec, begin_monotonic_s=monotonic() + lead_s, seed=seed)


def _expected(plan: TrafficPlan, spec: ServingSpec) -> dict[str, Any]:
    """Return the expected steps and duration of the window for the progress bar."""
    expected_s = spec.window_s if plan.concurrency is not None else None
    return {"expected_steps": plan.num_requests, "expected_s": expected_s}


class ProgressBeat:
    """Reports how many requests are done: to the watchdog and, twice a second, to the journal."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._written_s = monotonic()

    def update(self, num_done: int) -> None:
        """Record how many requests are done so far."""
        self._recorder.heartbeat.beat(steps_done=num_done)
        now_s = monotonic()
        if now_s - self._written_s >= BEAT_S:
            self._written_s = now_s
            self._recorder.write(
                Progress(rank=self._recorder.rank, phase="measure", steps_done=num_done, monotonic_s=now_s)
            )


def _write_requests(
    recorder: Recorder,
    spec: ServingSpec,
    plan: TrafficPlan,
    rows: Sequence[RequestTimes],
    *,
    end_s: float,
    load: HostLoad,
    device_uuid: str | None = None,
) -> ServingWindow:
    """Write all requests; return the record of the window."""
    for first in range(0, len(rows), CHUNK):
        recorder.write(_chunk(first, rows[first : first + CHUNK]))
    return ServingWindow(
        host=socket.gethostname(),
        scenario=spec.scenario,
        offered_per_s=plan.offered_per_s,
        num_requests=len(rows),
        num_failed=sum(row.done_s is None for row in rows),
        samples_per_request=spec.samples_per_request,
        begin_monotonic_s=plan.begin_monotonic_s,
        end_monotonic_s=end_s,
        wall_s=max(_wall_s(rows), plan.min_s) or end_s - plan.begin_monotonic_s,
        batches=(),
        load=load,
        neighbours=_other_processes(spec, device_uuid),
        failures=_failures(rows),
    )


def _wall_s(rows: Sequence[RequestTimes]) -> float:
    """Return the time to the last answer, or to the last failed request if due later; 0 without answers.

    A server that stops answering has not answered at its earlier rate for the rest of the window.
    """
    if all(row.done_s is None for row in rows):
        return 0.0
    return max(row.scheduled_s if row.done_s is None else row.done_s for row in rows)


def _other_processes(spec: ServingSpec, device_uuid: str | None) -> DeviceSharing:
    if spec.target != "model":
        reason = f"no device on this host is used: the target is {spec.target}"
        return DeviceSharing(other_processes=None, other_memory_bytes=None, missing=reason)
    return other_users(device_uuid, our_pids=(os.getpid(),))


def _chunk(first: int, rows: Sequence[RequestTimes]) -> Requests:
    has_tokens = any(row.tokens or row.first_token_s is not None for row in rows)
    has_chunks = any(row.chunks for row in rows)
    return Requests(
        first_request=first,
        scheduled_s=tuple(round(row.scheduled_s, MICROSECOND_DIGITS) for row in rows),
        issued_s=tuple(round(row.issued_s, MICROSECOND_DIGITS) for row in rows),
        begun_s=tuple(round(row.begun_s, MICROSECOND_DIGITS) for row in rows),
        done_s=_rounded(row.done_s for row in rows),
        first_token_s=_rounded(row.first_token_s for row in rows) if has_tokens else (),
        tokens=tuple(row.tokens for row in rows) if has_tokens else (),
        first_content_s=_rounded(row.first_content_s for row in rows) if has_chunks else (),
        chunks=tuple(len(row.chunks) for row in rows) if has_chunks else (),
        prompt_tokens=tuple(row.prompt_tokens for row in rows) if has_chunks else (),
        prompt_tokens_asked=tuple(row.prompt_tokens_asked for row in rows) if has_chunks else (),
        tokens_asked=tuple(row.tokens_asked for row in rows) if has_chunks else (),
    )


def _rounded(times_s: Iterable[float | None]) -> tuple[float | None, ...]:
    return tuple(None if time_s is None else round(time_s, MICROSECOND_DIGITS) for time_s in times_s)


def _gaps(rows: Sequence[RequestTimes]) -> tuple[tuple[float, int], ...]:
    """Count the gaps between chunks over all responses, by length rounded to four digits."""
    return tuple(sorted(Counter(float(f"{gap:.4g}") for row in rows for gap in row.gaps_s).items()))


def _failures(rows: Sequence[RequestTimes]) -> dict[str, int]:
    """Count failures by reason; only the most frequent reasons are listed separately."""
    counted = Counter(row.failure for row in rows if row.failure).most_common()
    rest = sum(number for _, number in counted[MOST_FAILURES:])
    return {**dict(counted[:MOST_FAILURES]), **({"other failures": rest} if rest else {})}
