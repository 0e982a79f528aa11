"""Windows of requests written down by hand: each with the latency that a test gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from gpuproof.records.case import CASE_SCHEMA_VERSION, Case, ServingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import RankResult, Start
from gpuproof.records.serving import ClientAlone, Requests, ServingWindow
from gpuproof.records.work.serving import ServingSpec
from gpuproof.records.work.window import ProfilingSpec
from records_by_hand import ALONE, DATA, LAUNCHES, MODEL, PARALLEL, QUIET, TRAINING, WINDOW

SPEC = ServingSpec(
    target="model",
    scenario="server",
    arrivals="constant",
    rate_per_s=100.0,
    concurrency=1,
    samples_per_request=2,
    max_batch=8,
    max_wait_s=0.0,
    min_requests=1,
    window_s=1.0,
    latency_bound_s=0.05,
    latency_percentile=99.0,
)
START = Start(
    rank=0,
    world_size=1,
    local_rank=0,
    local_world_size=1,
    host="here",
    pid=1,
    start="exec",
    gpuproof_version="0",
    unix_s=0.0,
    monotonic_s=0.0,
)


def records(
    latencies_s: Sequence[float | None],
    *,
    late_s: float = 0.0,
    spec: ServingSpec = SPEC,
    case_id: str = "main",
    client: ClientAlone | None = None,
) -> CaseRecords:
    """Requests at the rate of `spec`, all at once without one; None is the latency of one that failed."""
    rate = spec.rate_per_s
    due_s = [(k + 1) / rate if rate else 0.0 for k in range(len(latencies_s))]
    done_s = [None if wait is None else due + wait for due, wait in zip(due_s, latencies_s, strict=True)]
    case = Case(
        schema_version=CASE_SCHEMA_VERSION,
        case_id=case_id,
        replicate=0,
        capture_env=False,
        work=ServingWork(
            model=MODEL,
            data=DATA,
            training=TRAINING,
            window=WINDOW,
            profiling=ProfilingSpec(),
            parallel=PARALLEL,
            serving=spec,
        ),
    )
    requests = Requests(
        first_request=0,
        scheduled_s=tuple(due_s),
        issued_s=tuple(due + late_s for due in due_s),
        begun_s=tuple(due_s),
        done_s=tuple(done_s),
    )
    window = ServingWindow(
        host="here",
        scenario=spec.scenario,
        offered_per_s=rate,
        num_requests=len(latencies_s),
        num_failed=latencies_s.count(None),
        samples_per_request=spec.samples_per_request,
        begin_monotonic_s=0.0,
        end_monotonic_s=9.0,
        wall_s=max(done for done in done_s if done is not None),
        batches=((1, 2), (4, 3)),
        load=QUIET,
        neighbours=ALONE,
        failures={"HTTP 500": latencies_s.count(None)} if None in latencies_s else {},
        client=client,
    )
    result = RankResult(rank=0, monotonic_s=9.0, last_loss=None)
    return CaseRecords(case=case, records=(replace(START, pid=next(LAUNCHES)), requests, window, result))


OFFLINE = replace(SPEC, scenario="offline", rate_per_s=None, latency_bound_s=None)
NUM_REQUESTS = 1000


def spec_in(case: Case) -> ServingSpec:
    """What a case of kind `serving` is asked."""
    assert isinstance(case.work, ServingWork)
    return case.work.serving


def answered(
    case: Case,
    *,
    offline_per_s: float,
    highest_per_s: float,
    client_per_s: float | None = None,
    late_from_per_s: float = inf,
) -> CaseRecords:
    """A server that does `offline_per_s`, and meets the bound of 50 ms up to `highest_per_s`.

    Its client alone reaches `client_per_s`, and is 3 ms late from a rate on.
    """
    spec = spec_in(case)
    client = None
    if client_per_s is not None:
        client = ClientAlone(highest_per_s=client_per_s, rate_per_s=client_per_s / 2, p99_late_s=1e-4)
    if spec.rate_per_s is None:
        ended = records([(k + 1) / offline_per_s for k in range(NUM_REQUESTS)], spec=spec, client=client)
    else:
        # Latencies that differ, so that how requests depend on each other can be told.
        part = 0.2 if spec.rate_per_s <= highest_per_s else 4.0
        latencies = [0.05 * part * (1 + (37 * k % 100) / 100) for k in range(NUM_REQUESTS)]
        ended = records(latencies, spec=spec, late_s=0.003 if spec.rate_per_s >= late_from_per_s else 0.0)
    return replace(ended, case=case)
