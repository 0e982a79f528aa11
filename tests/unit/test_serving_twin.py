"""The twin of an endpoint: it answers as configured, and shows what the client does by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from time import monotonic

import pytest

from gpuproof.config.models import RunConfig
from gpuproof.launches.served import summarize_requests
from gpuproof.records.serving import ClientAlone
from gpuproof.records.work.serving import EndpointSpec, ServingSpec
from gpuproof.suites.serving.conclude import client_doubts, client_measures
from gpuproof.suites.serving.search import Effort, RateSearch, ServingRun
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.prompts import Prompts
from gpuproof.worker.serving.twin import TwinAnswer, measure_client, twin
from served_by_hand import records


def requests(url: str, *, new_tokens: int) -> list[RequestTimes]:
    spec = EndpointSpec(url=url, model="twin")
    load = EndpointLoad(spec, Prompts(ServingSpec(new_tokens=new_tokens), 1))
    begin_s = monotonic() + 0.01
    plan = TrafficPlan(
        begin_monotonic_s=begin_s, seed=1, arrivals="constant", rate_per_s=50.0, num_requests=5
    )
    return asyncio.run(load.run(plan, lambda _: None))


def test_a_twin_answers_with_the_chunks_and_delays_that_it_is_told() -> None:
    with twin(TwinAnswer(chunks=4, first_s=0.03, gap_s=0.02)) as url:
        rows = requests(url, new_tokens=4)
    for row in rows:
        assert (row.failure, row.tokens, len(row.chunks)) == (None, 4, 4)
        assert row.first_token_s is not None
        assert row.first_token_s - row.begun_s >= 0.03
        assert row.chunks[-1] - row.begun_s >= 0.03 + 3 * 0.02


def test_a_twin_that_answers_at_once_is_a_whole_answer() -> None:
    with twin(TwinAnswer(chunks=32)) as url:
        rows = requests(url, new_tokens=32)
    assert [(row.failure, row.tokens, row.is_closed_by_done) for row in rows] == [(None, 32, True)] * 5


def test_the_client_alone_has_a_rate_and_a_lateness() -> None:
    alone = measure_client(ServingSpec(target="endpoint", new_tokens=1), seed=1)
    assert alone.highest_per_s > 0
    assert alone.rate_per_s == pytest.approx(max(1.0, alone.highest_per_s / 2))
    assert alone.p99_late_s >= 0


def run(highest_per_s: float | None) -> ServingRun:
    """A search that was told nothing of yet, of a client with that highest rate; the server does 700/s."""
    served = summarize_requests(records([0.01] * 20))
    assert served is not None
    client = None
    if highest_per_s is not None:
        client = ClientAlone(highest_per_s=highest_per_s, rate_per_s=highest_per_s / 2, p99_late_s=1e-4)
    effort = Effort(confirmations=3, min_requests=10, window_s=1.0, time_at_a_rate_s=1.0)
    return ServingRun(
        config=RunConfig(),
        launches=(replace(served, window=replace(served.window, client=client)),),
        failures=(),
        doubts=(),
        search=RateSearch(
            ceiling_per_s=700.0,
            rates={},
            precision=0.05,
            effort=effort,
            client_per_s=inf if client is None else client.rate_per_s,
        ),
        rates={},
        num_planned=1,
    )


def test_a_rate_near_the_clients_own_is_not_told() -> None:
    (doubt,) = client_doubts(run(1399.0))
    assert doubt.reason.startswith("cannot tell: client")
    assert list(client_doubts(run(1401.0))) == []
    assert list(client_doubts(run(None))) == []
    ceiling, late = client_measures(run(2000.0))
    assert (ceiling.value, late.value) == (2000.0, 1e-4)
    assert list(client_measures(run(None))) == []


def test_a_client_with_one_connection_has_a_rate_too() -> None:
    endpoint = EndpointSpec(url="http://there/v1", model="m", max_connections=1)
    alone = measure_client(ServingSpec(target="endpoint", new_tokens=1, endpoint=endpoint), seed=1)
    assert alone.highest_per_s > 0
