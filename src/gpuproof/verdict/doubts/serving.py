"""Is a window of requests reliable: requests on time, no growing queue, no failing requests?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import mean, median

from gpuproof.base.units import count, seconds, share
from gpuproof.launches.served import Served
from gpuproof.records.result import Doubt
from gpuproof.statistics.percentiles import percentile
from gpuproof.verdict.doubts.base import Measured, Rule, invalid, suspect

GROWTH = 2.0
"""A queue counts as growing if the last quarter's median latency divided by the first's is above this."""
HEAD = 20
"""Fraction of a window that is compared with the rest to find a slow start."""
FAILED_SHARE = 0.001
OTHER_SHARE = 0.01
"""Allowed fraction of prompts or responses with lengths that differ from the requested ones."""
STEADY = ("poisson", "constant", "gamma")
"""Arrivals at a constant rate: a growing queue shows that the rate is too high."""


def unfair_requests(measured: Measured) -> Iterator[Doubt]:
    """Find reasons why the latencies in a window do not represent the server."""
    if measured.served is not None:
        for rule in (
            _surplus_tokens,
            _miscounted_tokens,
            _other_lengths,
            _late_trace,
            _late_generator,
            _growing_queue,
            _slow_start,
            _failed_requests,
        ):
            yield from rule(measured.served)


OF_REQUESTS: tuple[Rule, ...] = (unfair_requests,)
"""Applies to launches that answer requests: a batch is not a step with a fixed workload."""


def lost_requests(served: Served) -> Iterator[Doubt]:
    """Find requests of a window that have no record, or more than one."""
    rows, window = len(served.lateness_s), served.window
    failed = rows - len(served.latencies_s)
    if (rows, failed) != (window.num_requests, window.num_failed):
        yield invalid(
            "requests-lost",
            f"{count(rows)} requests were stored, {count(failed)} of them failed; the window counts "
            f"{count(window.num_requests)}, {count(window.num_failed)} failed",
        )


def _surplus_tokens(served: Served) -> Iterator[Doubt]:
    if served.window.num_with_surplus:
        yield invalid(
            code="tokens-surplus",
            reason=f"for {count(served.window.num_with_surplus)} of "
            f"{count(served.window.num_requests)} requests the server counted, or sent, "
            "more tokens than requested",
            remedy="Check whether the server obeys max_tokens, and what it counts as completion_tokens",
        )


def _miscounted_tokens(served: Served) -> Iterator[Doubt]:
    if served.num_miscounted:
        yield suspect(
            code="tokens-miscounted",
            reason=f"for {count(served.num_miscounted)} of {count(len(served.latencies_s))} "
            "answers the server counted fewer tokens than the text chunks that it sent, "
            "each of which has at least one token",
            remedy="Check what it counts as usage.completion_tokens, which time per token depends on",
        )


def _other_lengths(served: Served) -> Iterator[Doubt]:
    """Compare the endpoint's token counts with what was requested."""
    for what, counts, remedy in (
        ("prompts", served.prompts, "Compare by the counted tokens, or set serving.prompt_tokens higher"),
        ("answers", served.answers, "Have the server respect ignore_eos, or compare by the counted tokens"),
    ):
        num = len(counts.asked)
        if counts.num_off <= OTHER_SHARE * num:
            continue
        means = f", counted {mean(counts.counted):.4g}" if counts.counted else ""
        yield suspect(
            code=f"{what}-of-other-length",
            reason=f"{count(counts.num_off)} of {count(num)} {what} ({share(counts.num_off / num)}) "
            "have a length, as counted by the server, that differs from the request: "
            f"requested {mean(counts.asked):.4g} tokens on average{means}",
            remedy=remedy,
        )


def _late_trace(served: Served) -> Iterator[Doubt]:
    """Reject a trace that was not sent on time, since it would then be a different trace."""
    if served.spec.arrivals != "trace" or served.window.scenario != "server":
        return
    late_s = percentile(served.sent_late_s, 99).value
    late_s = max(served.sent_late_s) if late_s is None else late_s
    if late_s > served.lateness_allowed_s:
        yield invalid(
            code="trace-late",
            reason=f"1 % of the trace's requests were sent at least {seconds(late_s)} late: the "
            "client did not keep up with the trace",
            remedy="Give it a dedicated CPU, raise serving.endpoint.max_connections, or send a "
            "shorter or less busy part of the trace",
        )


def _late_generator(served: Served) -> Iterator[Doubt]:
    if served.spec.arrivals == "trace":
        return
    late_s = percentile(served.lateness_s, 99).value
    typical_s = median(served.latencies_s)
    if late_s is None or late_s <= served.lateness_allowed_s:
        return
    yield suspect(
        code="generator-late",
        reason=f"the generator issued 1 % of its requests at least {seconds(late_s)} late; the "
        f"median latency is {seconds(typical_s)}",
        remedy="Give it a dedicated CPU, or lower the rate; latency is measured from the schedule anyway",
    )


def _growing_queue(served: Served) -> Iterator[Doubt]:
    if served.window.scenario != "server" or served.spec.arrivals not in STEADY:
        return
    quarter = len(served.latencies_s) // 4
    if quarter < 10:
        return
    first, last = median(served.latencies_s[:quarter]), median(served.latencies_s[-quarter:])
    rising = all(
        earlier < later
        for earlier, later in pairwise(
            median(served.latencies_s[k * quarter : (k + 1) * quarter]) for k in range(4)
        )
    )
    if not rising or last < GROWTH * first:
        return
    yield suspect(
        code="queue-grows",
        reason=f"the median latency rose from {seconds(first)} in the first quarter of the window to "
        f"{seconds(last)} in the last: requests arrive faster than they are served",
        remedy="Lower serving.rate_per_s, or leave it null to search for the highest rate",
    )


def _slow_start(served: Served) -> Iterator[Doubt]:
    head = len(served.latencies_s) // HEAD
    if served.window.scenario != "server" or served.is_of_before or head < 10:
        return
    first, rest = median(served.latencies_s[:head]), median(served.latencies_s[head:])
    if first < GROWTH * rest:
        return
    yield suspect(
        code="slow-start",
        reason="the first twentieth of the window's requests had a median latency of "
        f"{seconds(first)}, the others {seconds(rest)}: the server was not warm, or was "
        "catching up with a backlog",
        remedy=(
            "Send it requests before the run, or set serving.window_s higher, so that the "
            "first ones matter less"
        ),
    )


def _failed_requests(served: Served) -> Iterator[Doubt]:
    failed, total = served.window.num_failed, served.window.num_requests
    if failed <= FAILED_SHARE * total:
        return
    causes = "; ".join(f"{number} × {text}" for text, number in list(served.window.failures.items())[:3])
    yield suspect(
        code="requests-failed",
        reason=f"{count(failed)} of {count(total)} requests failed ({share(failed / total)}): {causes}",
        remedy="Check the server's log; failed requests end early and make the others look faster",
    )
