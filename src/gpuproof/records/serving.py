"""The records of serving under load: what was asked for, when each request came and was done.

Times are seconds from the window's begin. `scheduled` is when a request was due, `issued` when the generator
got to it, `begun` when the server took it up, `done` when its answer was complete. Latency: done − scheduled.
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
    """A stretch of requests in order of arrival. `first_request` counts from 0 in the window.

    Columns of tokens are empty where no tokens are made. A request that failed has None for `done_s`, and one
    whose tokens the endpoint did not count None for `tokens`.
    """

    first_request: int
    scheduled_s: tuple[float, ...]
    issued_s: tuple[float, ...]
    begun_s: tuple[float, ...]
    done_s: tuple[float | None, ...]
    first_token_s: tuple[float | None, ...] = ()
    tokens: tuple[int | None, ...] = ()
    first_content_s: tuple[float | None, ...] = ()
    """Of an endpoint: the first token that is no reasoning."""
    chunks: tuple[int, ...] = ()
    """Of an endpoint: the parts of its stream with text, each of one token or several."""
    prompt_tokens: tuple[int | None, ...] = ()
    """Of an endpoint, as it counts them; None where it does not."""
    prompt_tokens_asked: tuple[int, ...] = ()
    tokens_asked: tuple[int, ...] = ()
    """What the recipe asked for, of prompt and answer."""

    def __post_init__(self) -> None:
        """Refuse columns that are not of the same requests.

        Raises:
            ValueError: they differ in length, or one was done before it was begun.
        """
        columns = (self.scheduled_s, self.issued_s, self.begun_s, self.done_s)
        of_tokens = (self.first_token_s, self.tokens, self.first_content_s, self.chunks)
        lengths = (self.prompt_tokens, self.prompt_tokens_asked, self.tokens_asked)
        optional = [column for column in (*of_tokens, *lengths) if column]
        if len({len(column) for column in (*columns, *optional)}) > 1:
            raise ValueError("its columns are of different numbers of requests")
        if any(end is not None and end < begin for begin, end in zip(self.begun_s, self.done_s, strict=True)):
            raise ValueError("a request was done before it was begun")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAlone:
    """What a load client does with a server that answers at once."""

    highest_per_s: float
    """Requests answered a second, in a closed loop."""
    rate_per_s: float
    """Of a schedule, half of that …"""
    p99_late_s: float
    """… and how late its requests were issued."""


@record_kind("serving_window")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWindow:
    """One window of requests, from its begin to the last answer."""

    host: Host
    scenario: Scenario
    offered_per_s: float | None
    """Requests a second of the schedule; None for a closed loop and for all at once."""
    num_requests: Natural
    num_failed: Natural
    samples_per_request: Positive
    begin_monotonic_s: float
    end_monotonic_s: float
    wall_s: Duration
    batches: tuple[tuple[int, int], ...]
    """How many batches of how many requests: (requests, batches), by size."""
    load: HostLoad
    neighbours: DeviceSharing
    failures: dict[str, int] = field(default_factory=dict)
    """What requests failed of, and how many of each."""
    num_with_surplus: Natural = 0
    """Requests for which an endpoint counts, or sent, more tokens than were asked for."""
    num_resent: Natural = 0
    """Requests sent a second time, as the endpoint had closed the connection that was kept for them."""
    refused_fields: tuple[str, ...] = ()
    """What an endpoint took no request with, so that it was left out."""
    api: Api | None = None
    """What an endpoint was asked by."""
    gaps: tuple[tuple[float, int], ...] = ()
    """Seconds from one chunk of an answer to its next, to four digits, and how many gaps had them."""
    client: ClientAlone | None = None
    """Of an endpoint's client before a search: what it does by itself."""
    num_clients: Positive = 1
    """Processes that sent requests to an endpoint."""
