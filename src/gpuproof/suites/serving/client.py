"""What the load client does by itself, and whether a search ended at it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.base import units
from gpuproof.records.result import Doubt, Measure
from gpuproof.suites.serving.measures import OUTCOMES
from gpuproof.suites.serving.run import ServingRun
from gpuproof.verdict.doubts.base import suspect


def client_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield the client's highest rate and its lateness at half of it, against a twin of the endpoint."""
    for alone in [served.window.client for served in run.launches if served.window.client][:1]:
        rate = units.rate(alone.rate_per_s, "requests")
        yield Measure(
            name="client ceiling",
            value=alone.highest_per_s,
            unit="requests/s",
            text=units.rate(alone.highest_per_s, "requests"),
            detail="of this client with a local server that answers at once, on the same cores",
        )
        yield Measure(
            name="client p99 lateness",
            value=alone.p99_late_s,
            unit="s",
            text=units.seconds(alone.p99_late_s),
            detail=f"from schedule to issue, at {rate} of that server",
        )


def client_doubts(run: ServingRun) -> Iterator[Doubt]:
    """Say that the search ended where the client is at its own limit, and not the server."""
    limit_per_s = run.search.client_limit_per_s if run.search else None
    alone = next((served.window.client for served in run.launches if served.window.client), None)
    if limit_per_s is not None:
        by = (
            f"half of the {units.rate(alone.highest_per_s, 'requests')} that it reaches alone"
            if alone is not None and limit_per_s == alone.rate_per_s
            else "where it issued requests too late"
        )
        yield suspect(
            code="client-limit",
            reason=f"{OUTCOMES['client']} from {units.rate(limit_per_s, 'requests')} on, {by}: "
            "the server may do more",
            remedy="Run the client on a host of its own, or on several, each with a part of the rate",
        )
