"""Several client processes send one schedule: each request once, with the text that one client would send."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from time import monotonic

import pytest

from fakes.completions_server import CompletionsServer, running
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.serving import EndpointSpec, ServingSpec
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.clients import clients, num_clients
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.prompts import Prompts
from gpuproof.worker.serving.twin import measure_client

NUM = 60
PLAN = TrafficPlan(begin_monotonic_s=0.0, seed=4, arrivals="poisson", rate_per_s=100.0, num_requests=NUM)


def sent(num: int, plan: TrafficPlan) -> tuple[CompletionsServer, list[RequestTimes], list[int]]:
    """Send a plan by so many clients; return also how many requests were said to be done, as it went on."""
    told: list[int] = []
    with running(CompletionsServer(first_token_s=0.002)) as server:
        spec = EndpointSpec(url=server.url, model="tiny", max_connections=9)
        load = EndpointLoad(spec, Prompts(ServingSpec(new_tokens=2, prompt_tokens=20), 4))
        with clients([load] * num) as run:
            rows = run(replace(plan, begin_monotonic_s=monotonic() + 0.2), told.append)
    return server, rows, told


def test_clients_send_what_one_would_send_at_the_times_of_one_schedule() -> None:
    alone, rows_alone, _ = sent(1, PLAN)
    server, rows, told = sent(3, PLAN)
    assert (
        [row.scheduled_s for row in rows] == [row.scheduled_s for row in rows_alone] == list(PLAN.schedule())
    )
    prompts, prompts_alone = (Counter(str(x["prompt"]) for x in s.requests) for s in (server, alone))
    assert prompts == prompts_alone
    assert len(prompts) == NUM
    assert all(row.failure is None and row.issued_s >= row.scheduled_s for row in rows)
    assert (told[-1], told == sorted(told)) == (NUM, True)
    assert server.num_connections >= 3  # each has its own, and all of them 9


def test_users_of_a_closed_loop_are_shared_out() -> None:
    plan = TrafficPlan(begin_monotonic_s=0.0, seed=4, concurrency=5, min_requests=30, max_s=60.0)
    assert [part.concurrency for part in plan.split(3)] == [2, 2, 1]
    server, rows, _ = sent(3, plan)
    assert len(rows) >= 30
    assert server.most_at_once <= 5
    assert [row.scheduled_s for row in rows] == sorted(row.scheduled_s for row in rows)
    assert len({str(request["prompt"]) for request in server.requests}) == len(rows)


def test_connections_are_shared_out() -> None:
    load = EndpointLoad(
        EndpointSpec(url="http://h/v1", model="m", max_connections=8), Prompts(ServingSpec(), 1)
    )
    assert [load.share_of(part, 3)._room._value for part in range(3)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("spec", "cpus", "num"),
    [
        (ServingSpec(clients=5), 1, 5),
        (ServingSpec(clients=5, scenario="closed_loop", concurrency=3), 1, 3),
        (ServingSpec(), 1000, 16),
    ],
)
def test_as_many_clients_as_are_requested_but_no_more_than_users(
    spec: ServingSpec, cpus: int, num: int
) -> None:
    asked = replace(spec, endpoint=EndpointSpec(url="http://there/v1", model="m"))
    assert num_clients(asked, cpus=cpus) == num


def test_clients_alone_have_a_twin_each() -> None:
    alone = measure_client(ServingSpec(target="endpoint", new_tokens=1), seed=1, num=2)
    assert alone.highest_per_s > 0


def test_a_client_that_ends_is_said() -> None:
    unread = EndpointLoad(EndpointSpec(url="http://there/v1", model="m"), Prompts(ServingSpec(), 1))
    with clients([unread] * 2) as run, pytest.raises(EnvironmentUnfitError, match="a client process exited"):
        run(replace(PLAN, arrivals="trace", trace="/not/there", max_s=1.0), lambda _: None)
