"""Results of one request window: rates, latencies from the scheduled arrival, warnings.

A latency is measured from when a request was due, not from when it could be sent or was accepted. Failed
requests have no latency: they count as exceeding every bound. The delay of the load generator is reported
separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from gpuproof.launches.bounds import (
    BoundVerdict,
    RateJudgement,
    RequestSeries,
    bounds_judged,
    judge_bound,
    judge_rate,
    num_within,
    separate_bounds,
)
from gpuproof.launches.launch import Launch, throughput
from gpuproof.records.case import Case, ServingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Setup, Window
from gpuproof.records.serving import Requests, ServingWindow
from gpuproof.records.work.serving import ServingSpec
from gpuproof.statistics.estimate import FloatArray
from gpuproof.statistics.percentiles import Percentile, percentile

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
LATENESS_SHARE = 0.05
"""Fraction of the median latency; a load generator that lags by more than this distorts what it measures …"""
LATENESS_S = 1e-3
"""… provided that it is also later than this delay, which the host's scheduler alone may cause."""
PROMPT_SHARE, PROMPT_TOKENS_OFF = 0.05, 2
"""Maximum deviation of a prompt from the requested number of tokens: not all words are split the same way."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens in the prompts or in the responses of answered requests."""

    asked: tuple[int, ...] = ()
    """Requested token counts; empty if no endpoint is loaded."""
    counted: tuple[int, ...] = ()
    """As counted by the endpoint; empty if it did not count all of them."""
    num_off: int = 0
    """Number of counts that differ from the requested number by more than a certain fraction and amount."""

    @classmethod
    def of_prompts(cls, rows: Sequence[_Row]) -> TokenCounts:
        """Combine the prompts sent to an endpoint."""
        pairs = [(asked, row.prompt_tokens) for row in rows if (asked := row.prompt_tokens_asked)]
        return cls._of(pairs, share=PROMPT_SHARE, tokens=PROMPT_TOKENS_OFF)

    @classmethod
    def of_answers(cls, rows: Sequence[_Row]) -> TokenCounts:
        """Combine an endpoint's responses, each of which should have exactly the requested token count."""
        return cls._of([(asked, row.tokens) for row in rows if (asked := row.tokens_asked)])

    @classmethod
    def _of(
        cls, pairs: Sequence[tuple[int, int | None]], *, share: float = 0.0, tokens: int = 0
    ) -> TokenCounts:
        counted = [count for _, count in pairs if count is not None]
        off = (abs(count - asked) > max(tokens, share * asked) for asked, count in pairs if count is not None)
        is_whole = len(counted) == len(pairs)
        return cls(tuple(asked for asked, _ in pairs), tuple(counted) if is_whole else (), sum(off))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A launch in which requests were served."""

    case: Case
    spec: ServingSpec
    window: ServingWindow
    latencies_s: tuple[float, ...]
    """Latencies of answered requests, in order of arrival."""
    lateness_s: tuple[float, ...]
    """Time of issue minus scheduled time, for all requests."""
    first_token_s: tuple[float, ...]
    """Latency of each request's first token; empty if no tokens are generated."""
    first_content_s: tuple[float, ...]
    """Latency of each request's first non-reasoning token; empty if no endpoint is loaded."""
    token_s: tuple[float, ...]
    """Mean time per token after the first, for each request with at least two tokens per sequence."""
    tokens: int | None
    """Tokens in all responses; None if an endpoint did not count all of them."""
    chunks: int
    """Number of stream chunks sent by an endpoint; 0 if no endpoint is loaded."""
    num_miscounted: int
    """Number of responses with more text chunks than tokens counted by the endpoint."""
    prompts: TokenCounts
    answers: TokenCounts
    """Tokens in an endpoint's prompts and responses, as requested and as counted by the endpoint."""
    sent_late_s: tuple[float, ...]
    """When each request got a connection, minus its scheduled time; empty if no endpoint is loaded."""
    busy_s: float | None
    """Time during which batches ran; None if another server runs them."""
    setup: Setup | None
    """Setup of the server; None if the server is not our own."""
    series: RequestSeries
    """All requests, including failed ones, in the form used for comparison with bounds."""

    @property
    def requests_per_s(self) -> float:
        """Number of requests with responses, divided by the window's length."""
        return throughput(len(self.latencies_s), self.window.wall_s)

    @property
    def samples_per_s(self) -> float:
        """Number of samples answered, divided by the window's length."""
        return self.requests_per_s * self.window.samples_per_request

    @property
    def tokens_per_s(self) -> float | None:
        """Number of generated tokens, divided by the window's length; None without tokens."""
        return throughput(self.tokens, self.window.wall_s) if self.tokens else None

    @property
    def gaps_s(self) -> FloatArray:
        """Return the times between chunks, one sample per gap, sorted by length."""
        lengths, counts = zip(*self.window.gaps, strict=True) if self.window.gaps else ((), ())
        return np.repeat(np.array(lengths, dtype=np.float64), np.array(counts, dtype=np.int64))

    @property
    def mean_batch(self) -> float | None:
        """Mean number of requests per batch; None if another server does the batching."""
        batches = sum(number for _, number in self.window.batches)
        return sum(size * number for size, number in self.window.batches) / batches if batches else None

    @property
    def lateness_allowed_s(self) -> float:
        """Maximum p99 request delay, in seconds, that does not distort the latencies."""
        return max(LATENESS_S, LATENESS_SHARE * float(np.median(self.latencies_s)))

    @property
    def is_client_late(self) -> bool:
        """Whether endpoint requests were later than allowed, given the latencies and the tightest bound."""
        late_s = percentile(self.lateness_s, 99).value
        limits = [bound.limit for bound in separate_bounds(self.spec) if bound.name != "time per token"]
        allowed_s = max(self.lateness_allowed_s, LATENESS_SHARE * min(limits, default=0.0))
        return self.spec.target == "endpoint" and late_s is not None and late_s > allowed_s

    @property
    def verdict(self) -> BoundVerdict | None:
        """Whether the latency bound was met; None if there is no bound."""
        if self.spec.latency_bound_s is None:
            return None
        bound_s = self.spec.latency_bound_s
        return judge_bound(
            num_requests=self.window.num_requests,
            num_over=self.window.num_failed + sum(latency > bound_s for latency in self.latencies_s),
            bound_s=bound_s,
            q=self.spec.latency_percentile,
        )

    @property
    def arrival_seed(self) -> int | None:
        """The seed from which arrivals and prompts were drawn; None for older versions."""
        return self.case.work.arrival_seed if isinstance(self.case.work, ServingWork) else None

    @property
    def is_of_before(self) -> bool:
        """Whether a launch is from an older version (one launch per rate, different arrival times)."""
        return self.arrival_seed is None

    @property
    def num_within(self) -> int | None:
        """Return the number of requests within all bounds; None if there are no bounds."""
        bounds = separate_bounds(self.spec)
        return num_within(self.series, bounds) if bounds else None

    @property
    def goodput_per_s(self) -> float | None:
        """Number of requests within all bounds, divided by the window's length."""
        within = self.num_within
        return None if within is None else throughput(within, self.window.wall_s)

    @property
    def standing(self) -> RateJudgement:
        """This launch's own result for all bounds that have to be evaluated."""
        return judge_rate([self.series], bounds_judged(self.spec), confirmations=1)

    def latency_percentiles(self) -> tuple[Percentile, ...]:
        """Return the latency percentiles for which there are enough requests."""
        return tuple(percentile(self.latencies_s, q) for q in PERCENTILES)

    def as_launch(self) -> Launch:
        """Return the window as if it were one rank's, with batches as steps, to combine with readings."""
        window, batches = self.window, sum(number for _, number in self.window.batches)
        samples = len(self.latencies_s) * window.samples_per_request
        items = samples * (1 if self.setup is None else self.setup.items_per_sample)
        return Launch(
            case=self.case,
            windows=(
                Window(
                    rank=0,
                    host=window.host,
                    num_steps=batches or window.num_requests,
                    requested_steps=None,
                    requested_s=None,
                    items=self.tokens or items,
                    wall_s=window.wall_s,
                    steps_s=window.wall_s if self.busy_s is None else self.busy_s,
                    clock="host",
                    stop_reason="all requests answered",
                    begin_monotonic_s=window.begin_monotonic_s,
                    end_monotonic_s=window.end_monotonic_s,
                    load=window.load,
                    neighbours=window.neighbours,
                    peak_allocated_bytes=None,
                    peak_reserved_bytes=None,
                    peak_with_warmup_bytes=None,
                ),
            ),
            setups=() if self.setup is None else (self.setup,),
            step_times_s=(),
        )


def summarize_requests(records: CaseRecords) -> Served | None:
    """Return a launch's results; None if it did not finish normally, or answered no request."""
    windows, work = records.of(ServingWindow), records.case.work
    if records.status != "done" or len(windows) != 1 or not isinstance(work, ServingWork):
        return None
    sequences = windows[0].samples_per_request
    rows = [row for chunk in records.of(Requests) for row in _rows(chunk)]
    answered = [row for row in rows if row.done_s is not None]
    if not answered:
        return None
    return Served(
        case=records.case,
        spec=work.serving,
        window=windows[0],
        latencies_s=_latencies(answered, "done_s"),
        lateness_s=tuple(row.issued_s - row.scheduled_s for row in rows),
        first_token_s=_latencies(answered, "first_token_s"),
        first_content_s=_latencies(answered, "first_content_s"),
        token_s=tuple(time_s for row in answered if (time_s := row.time_per_token_s(sequences)) is not None),
        tokens=None
        if any(row.tokens is None for row in answered)
        else sum(row.tokens or 0 for row in answered),
        chunks=sum(row.chunks for row in answered),
        num_miscounted=sum(row.tokens is not None and row.chunks > row.tokens for row in answered),
        prompts=TokenCounts.of_prompts(answered),
        answers=TokenCounts.of_answers(answered),
        sent_late_s=tuple(row.begun_s - row.scheduled_s for row in rows if row.tokens_asked),
        # All requests in a batch share its start and end.
        busy_s=sum(done - begun for begun, done in {(row.begun_s, row.done_s) for row in rows} if done)
        if windows[0].batches
        else None,
        setup=next(iter(records.setups), None),
        series=_series(rows, sequences),
    )


def _latencies(rows: Sequence[_Row], name: str) -> tuple[float, ...]:
    """Return one of the times minus the scheduled time, for each request that recorded it."""
    times = ((getattr(row, name), row.scheduled_s) for row in rows)
    return tuple(time_s - due_s for time_s, due_s in times if time_s is not None)


def _series(rows: Sequence[_Row], sequences: int) -> RequestSeries:
    """Return all rows as numbers; None in a record becomes NaN."""
    due, done, first, tokens = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("scheduled_s", "done_s", "first_token_s", "tokens")
    )
    steps = tokens // sequences - 1
    failed = np.isnan(done)
    token_s = np.where(steps <= 0, 0.0, (done - first) / np.maximum(steps, 1))
    return RequestSeries(
        latency_s=np.where(failed, inf, done - due),
        first_token_s=np.where(failed | np.isnan(first), inf, first - due),
        token_s=np.where(failed | np.isnan(token_s), inf, token_s),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    scheduled_s: float
    issued_s: float
    begun_s: float
    done_s: float | None
    first_token_s: float | None
    tokens: int | None
    first_content_s: float | None
    chunks: int
    prompt_tokens: int | None
    prompt_tokens_asked: int
    tokens_asked: int

    def time_per_token_s(self, sequences: int) -> float | None:
        """Return the mean time between the tokens of a sequence; all sequences grow in lockstep."""
        steps = 0 if self.tokens is None else self.tokens // sequences - 1
        if self.done_s is None or self.first_token_s is None or steps < 1:
            return None
        return (self.done_s - self.first_token_s) / steps


def _rows(chunk: Requests) -> list[_Row]:
    number = len(chunk.scheduled_s)
    nothing, zeros = (None,) * number, (0,) * number
    optional = (
        chunk.first_token_s or nothing,
        chunk.tokens or (nothing if chunk.first_token_s else zeros),
        chunk.first_content_s or nothing,
        chunk.chunks or zeros,
        chunk.prompt_tokens or nothing,
        chunk.prompt_tokens_asked or zeros,
        chunk.tokens_asked or zeros,
    )
    times = (chunk.scheduled_s, chunk.issued_s, chunk.begun_s, chunk.done_s)
    return [_Row(*values) for values in zip(*times, *optional, strict=True)]
