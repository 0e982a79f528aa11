"""Options of a case of kind `serving`: its target, how requests arrive, and batching."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gpuproof.records.work.options import MAX_TOKENS, Limits, Options, Seconds, Text

Scenario = Literal["server", "closed_loop", "offline", "single_stream", "multi_stream"]
"""The last two scenarios occur only in runs from before 2026-12."""
PROMPT_TOKENS, NEW_TOKENS = 128, 64
"""Values used in place of null when text is generated."""
Rate = Annotated[float, Limits(gt=0, le=1e7)]
Percent = Annotated[float, Limits(ge=50, lt=100)]
ServingTarget = Literal["model", "noop", "endpoint"]
Api = Literal["completions", "chat"]
Arrivals = Literal["poisson", "constant", "gamma", "ramp", "trace"]
Spread = Annotated[float, Limits(ge=0, le=10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec(Options):
    """An HTTP server with OpenAI's completions or chat API and support for streaming."""

    url: (
        Annotated[str, Limits(pattern=r"^https?://[^\s/]+\S*$", max_length=2048, form="web-address")] | None
    ) = None
    """URL up to and including the version, e.g. http://host:8000/v1."""
    model: Text | None = None
    """The model's name on the server."""
    api: Literal["completions", "chat", "auto"] = "auto"
    """The API to use: /completions, or /chat/completions with the prompt as the user's message; auto tries
    one request to /completions, and uses chat if the server rejects it."""
    api_key_variable: Text | None = None
    """The environment variable that contains the API key; null sends no key."""
    timeout_s: Seconds = 120.0
    """Seconds after which a request counts as failed, from when it has a connection slot
    (max_connections)."""
    max_connections: Annotated[int, Limits(ge=1, le=65_536)] = 1024
    """Maximum number of concurrent connections; further requests wait, and their waiting time counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsSpec(Options):
    """Bounds for text generation, in addition to the bound on the latency of whole responses."""

    ttft_s: Seconds | None = None
    """Bound for the time to first token at its percentile, counted from the scheduled time."""
    ttft_percentile: Percent = 99.0
    """The percentile for the bound on the time to first token."""
    tpot_s: Seconds | None = None
    """Bound, at its percentile, on the mean time per token after the first token of a response."""
    tpot_percentile: Percent = 99.0
    """The percentile for the bound on the time per token."""
    goodput_percentile: Percent | None = None
    """Percentage of requests that must meet all bounds simultaneously; if null, each bound is checked at its
    own percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsSpec(Options):
    """How an endpoint's prompt and response lengths vary; serving.trace uses the lengths in its file."""

    shape: Literal["uniform", "lognormal"] = "uniform"
    """Distribution of lengths. uniform: evenly over mean · (1 ± spread); lognormal: the spread is the
    standard deviation divided by the mean."""
    prompt_spread: Spread = 0.0
    """Spread of prompt lengths around serving.prompt_tokens; 0 makes all lengths equal."""
    new_spread: Spread = 0.0
    """Spread of response lengths around serving.new_tokens; 0 makes all lengths equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixSpec(Options):
    """Prefixes shared by an endpoint's prompts, to exercise a prefix cache."""

    share: Annotated[float, Limits(ge=0, le=0.99)] = 0.0
    """Fraction of each prompt that is a shared prefix; 0 disables prefixes."""
    number: Annotated[int, Limits(ge=1, le=1_000_000)] = 1
    """Number of different prefixes; each prompt starts with one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSpec(Options):
    """Closed-loop users that have conversations with an endpoint."""

    turns: Annotated[int, Limits(ge=1, le=1000)] = 1
    """Number of requests per conversation; each request repeats all earlier prompts and responses before its
    own prompt."""
    think_s: Annotated[float, Limits(ge=0, le=3600)] = 0.0
    """Seconds between a response and the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec(Options):
    """Options of a serving workload under load."""

    target: ServingTarget = "model"
    """model serves the recipe's own model on this device; endpoint generates load on an HTTP server; noop
    responds immediately, to measure the load generator."""
    scenario: Scenario = "server"
    """server: requests follow a schedule; closed_loop: a fixed number of users, each of whom waits for a
    response before sending the next request. The other three are MLPerf scenarios of old runs; a new run
    rejects them."""
    arrivals: Arrivals = "poisson"
    """Gaps between scheduled requests: exponential (poisson), all equal (constant), or gamma-distributed with
    serving.burstiness; ramp: poisson at a rate that rises linearly from 0 to twice rate_per_s; trace: as in
    serving.trace."""
    burstiness: Annotated[float, Limits(ge=0.01, le=100)] = 1.0
    """Shape of the gamma distribution of gaps: 1 is the same as poisson, lower is burstier, higher is more
    regular."""
    trace: Text | None = None
    """A JSON Lines file in Mooncake's format (timestamp in ms, input_length, output_length, hash_ids). Its
    rows provide the lengths of prompts and responses, in order and repeated if there are too few; with trace
    arrivals, only those of its first window_s seconds, which also provide the arrival times."""
    rate_per_s: Rate | None = None
    """Scheduled requests per second, for scenario server; null searches for the highest rate that meets all
    bounds, or with trace arrivals uses the times of the trace (ramp needs a rate)."""
    concurrency: Annotated[int, Limits(ge=1, le=65_536)] = 8
    """Number of users in a closed loop."""
    samples_per_request: Annotated[int, Limits(ge=1, le=65_536)] = 1
    """Samples per request."""
    max_batch: Annotated[int, Limits(ge=1, le=65_536)] = 32
    """Maximum batch size: the number of samples that are run together."""
    max_wait_s: Annotated[float, Limits(ge=0, le=60)] = 0.005
    """Maximum time, in seconds, that a request waits for other requests to fill its batch."""
    min_requests: Annotated[int, Limits(ge=1, le=10**8)] = 1000
    """Minimum number of requests in a window, except with trace arrivals (all requests of the first window_s
    seconds); a closed loop ends after 10 times window_s even if it has fewer."""
    window_s: Seconds = 10.0
    """Minimum time over which requests arrive, in seconds."""
    latency_bound_s: Seconds | None = None
    """Bound for the latency at latency_percentile."""
    latency_percentile: Annotated[float, Limits(ge=50, lt=100)] = 99.0
    """The percentile that the latency bound applies to."""
    bounds: BoundsSpec = field(default_factory=BoundsSpec)
    search_precision: Annotated[float, Limits(ge=0.005, le=0.5)] = 0.05
    """Precision of the search for the highest rate, as a fraction of that rate."""
    time_at_a_rate_s: Seconds = 300.0
    """Maximum time, in seconds, for which a search sends requests at one rate, unless its first launches (at
    least three, of min_requests and window_s each) need longer; a rate still undecided by then is reported as
    undecided."""
    search_time_s: Seconds = 3600.0
    """Maximum duration of a search in seconds, including start-up; the search reports the range found by
    then."""
    search_lowest_per_s: Rate | None = None
    """Lowest rate to try, if above 1/64 of the server's rate when all requests arrive at once; null is that
    rate."""
    curve: bool = True
    """After the search, also measure lower rates, for the throughput–latency curve."""
    prompt_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] | None = None
    """Prompt tokens per request (adjusted to the endpoint's own token count before the window); null is 128
    if text is generated."""
    new_tokens: Annotated[int, Limits(ge=0, le=MAX_TOKENS)] | None = None
    """Tokens generated per request. A model is served in static batches: a batch processes its prompts and
    generates all its tokens before the next batch starts (no continuous batching). null means 64 for an
    endpoint and for a model with a key-value cache; with 0, a model with a cache runs a forward pass over
    whole sequences."""
    lengths: LengthsSpec = field(default_factory=LengthsSpec)
    shared_prefix: SharedPrefixSpec = field(default_factory=SharedPrefixSpec)
    conversation: ConversationSpec = field(default_factory=ConversationSpec)
    clients: Annotated[int, Limits(ge=1, le=256)] | None = None
    """Number of processes that send requests to an endpoint, each with its part of the schedule; null means
    one per two CPUs of this host, or one per four if the endpoint is on this host: at least one, and at most
    16."""
    endpoint: EndpointSpec = field(default_factory=EndpointSpec)
    """The HTTP server to send load to."""

    def __post_init__(self) -> None:
        """Reject an invalid percentile.

        Raises:
            ValueError: the percentile is not between 0 and 100.
        """
        if not 0 < self.latency_percentile < 100:
            raise ValueError(f"a percentile must be between 0 and 100, not {self.latency_percentile}")

    @property
    def makes_text(self) -> bool:
        """Whether this case's model generates new tokens using a key-value cache."""
        return self.target == "model" and self.new_tokens is not None
