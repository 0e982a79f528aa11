"""The records of serving under load: the requests, and when each one arrived and completed.

Times are seconds from the start of the window. `scheduled` is when a request was due, `issued` when the
generator issued it, `begun` when the server started it, and `done` when its response was complete. Latency is
done − scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuproof.records.codec import Duration, Host, Natural, Positive
from gpuproof.records.journal import record_kind
from gpuproof.records.run import DeviceSharing, HostLoad
from gpuproof.records.work.serving import Api, Scenario


@record_kind("requests")
@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A range of requests in order of arrival. `first_request` is counted from 0 within the window.

    Token columns are empty if no tokens are generated. For a failed request, `done_s` is None; for a request
    without a token count from the endpoint, `tokens` is None.
    """

    first_request: int
    scheduled_s: tuple[float, ...]
    issued_s: tuple[float, ...]
    begun_s: tuple[float, ...]
    done_s: tuple[float | None, ...]
    first_token_s: tuple[float | None, ...] = ()
    tokens: tuple[int | None, ...] = ()
    first_content_s: tuple[float | None, ...] = ()
    """For an endpoint: time of the first token that is not a reasoning token."""
    chunks: tuple[int, ...] = ()
    """For an endpoint: number of stream chunks that contain text, each with one or more tokens."""
    prompt_tokens: tuple[int | None, ...] = ()
    """For an endpoint: number of prompt tokens as counted by the endpoint; None if it does not count."""
    prompt_tokens_asked: tuple[int, ...] = ()
    tokens_asked: tuple[int, ...] = ()
    """Requested token counts for prompt and response."""

    def __post_init__(self) -> None:
        """Reject columns that do not belong to the same requests.

        Raises:
            ValueError: they differ in length, or a request completed before it started.
        """
        columns = (self.scheduled_s, self.issued_s, self.begun_s, self.done_s)
        of_tokens = (self.first_token_s, self.tokens, self.first_content_s, self.chunks)
        lengths = (self.prompt_tokens, self.prompt_tokens_asked, self.tokens_asked)
        optional = [column for column in (*of_tokens, *lengths) if column]
        if len({len(column) for column in (*columns, *optional)}) > 1:
            raise ValueError("its columns have different numbers of requests")
        if any(end is not None and end < begin for begin, end in zip(self.begun_s, self.done_s, strict=True)):
            raise ValueError("a request completed before it started")
        if any(
            end is not None and first is not None and not begin <= first <= end
            for column in (self.first_token_s, self.first_content_s)
            for begin, first, end in zip(self.begun_s, column, self.done_s, strict=False)
        ):
            raise ValueError("a request's first token did not arrive between its start and its end")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAlone:
    """Capacity of a load client against a server that responds immediately."""

    highest_per_s: float
    """Requests answered per second, in a closed loop."""
    rate_per_s: float
    """Rate of a schedule at half the closed-loop rate …"""
    p99_late_s: float
    """… and how late its requests were issued."""


@record_kind("serving_window")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWindow:
    """One window of requests: from its start to the last answer, or until a later failed request was due."""

    host: Host
    scenario: Scenario
    offered_per_s: Duration | None
    """Requests per second in the schedule; None for a closed loop, and if all requests arrive at once."""
    num_requests: Natural
    num_failed: Natural
    samples_per_request: Positive
    begin_monotonic_s: float
    end_monotonic_s: float
    wall_s: Duration
    batches: tuple[tuple[int, int], ...]
    """Number of batches per batch size: (requests, batches), by size."""
    load: HostLoad
    neighbours: DeviceSharing
    failures: dict[str, int] = field(default_factory=dict)
    """Causes of failed requests, each with the number of requests."""
    num_with_surplus: Natural = 0
    """Requests for which an endpoint counted or sent more tokens than requested."""
    num_resent: Natural = 0
    """Requests sent a second time because the endpoint had closed their keep-alive connection."""
    refused_fields: tuple[str, ...] = ()
    """Options that were omitted because the endpoint rejected them."""
    api: Api | None = None
    """The API used for an endpoint."""
    gaps: tuple[tuple[float, int], ...] = ()
    """Gaps between consecutive chunks of a response, in seconds to four digits, each with its count."""
    client: ClientAlone | None = None
    """For the client of an endpoint, before a search: the client's own capacity."""
    num_clients: Positive = 1
    """Number of processes that sent requests to an endpoint."""
