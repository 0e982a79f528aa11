"""What a case of kind `serving` is asked: who is served, how requests come, how they are batched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gpuproof.records.work.options import MAX_TOKENS, Limits, Options, Seconds, Text

Scenario = Literal["server", "closed_loop", "offline", "single_stream", "multi_stream"]
"""The last two are of runs of before 2026-12."""
PROMPT_TOKENS, NEW_TOKENS = 128, 64
"""What null stands for where text is made."""
Rate = Annotated[float, Limits(gt=0, le=1e7)]
Percent = Annotated[float, Limits(ge=50, lt=100)]
ServingTarget = Literal["model", "noop", "endpoint"]
Api = Literal["completions", "chat"]
Arrivals = Literal["poisson", "constant", "gamma", "ramp", "trace"]
Spread = Annotated[float, Limits(ge=0, le=10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec(Options):
    """An HTTP server that speaks OpenAI's protocol of completions or of chat, with streaming."""

    url: Annotated[str, Limits(pattern=r"^https?://[^\s/]+\S*$", max_length=2048)] | None = None
    """URL up to and including the version, as in http://host:8000/v1."""
    model: Text | None = None
    """The name that the server knows its model by."""
    api: Literal["completions", "chat", "auto"] = "auto"
    """What is asked: /completions, or /chat/completions with the prompt as the user's message; auto asks one
    request of /completions, and uses chat where the server refuses it."""
    api_key_variable: Text | None = None
    """The environment variable that holds the key; null sends none."""
    timeout_s: Seconds = 120.0
    """Seconds after which a request has failed."""
    max_connections: Annotated[int, Limits(ge=1, le=65_536)] = 1024
    """Connections at once; further requests wait, and it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsSpec(Options):
    """What is asked of text beside the latency of whole answers."""

    ttft_s: Seconds | None = None
    """The time to first token, from the schedule, that its percentile must stay under."""
    ttft_percentile: Percent = 99.0
    """The percentile that the bound of the time to first token is for."""
    tpot_s: Seconds | None = None
    """The mean time per further token of an answer that its percentile must stay under."""
    tpot_percentile: Percent = 99.0
    """The percentile that the bound of the time per token is for."""
    goodput_percentile: Percent | None = None
    """Per cent of the requests that must be within all bounds at once; null asks each bound at its own
    percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsSpec(Options):
    """How the lengths of an endpoint's prompts and answers differ; serving.trace gives them by a file."""

    shape: Literal["uniform", "lognormal"] = "uniform"
    """uniform: over the mean · (1 ± spread); lognormal: the spread is standard deviation over mean."""
    prompt_spread: Spread = 0.0
    """Of prompts about serving.prompt_tokens; 0 makes all alike."""
    new_spread: Spread = 0.0
    """Of answers about serving.new_tokens; 0 makes all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixSpec(Options):
    """What prompts to an endpoint have in common, for a prefix cache to answer."""

    share: Annotated[float, Limits(ge=0, le=0.99)] = 0.0
    """Of each prompt, the part that is a shared prefix; 0 shares nothing."""
    number: Annotated[int, Limits(ge=1, le=1_000_000)] = 1
    """How many prefixes there are; each prompt begins with one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSpec(Options):
    """Users of a closed loop who talk on with an endpoint."""

    turns: Annotated[int, Limits(ge=1, le=1000)] = 1
    """Requests of a conversation; each repeats all earlier prompts and answers before its own prompt."""
    think_s: Annotated[float, Limits(ge=0, le=3600)] = 0.0
    """Seconds from an answer to the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec(Options):
    """Requests under load."""

    target: ServingTarget = "model"
    """model serves the recipe's own on this device; endpoint loads an HTTP server; noop answers at once, to
    measure the generator."""
    scenario: Scenario = "server"
    """server: by a schedule; closed_loop: a number of users who each wait for their answer."""
    arrivals: Arrivals = "poisson"
    """Gaps between the requests of a schedule: exponential (poisson), all equal (constant), or gamma with
    serving.burstiness; ramp: poisson at a rate that rises evenly from 0 to twice rate_per_s; trace: as
    serving.trace has them."""
    burstiness: Annotated[float, Limits(ge=0.01, le=100)] = 1.0
    """Shape of gamma gaps: 1 is poisson, less comes in bursts, more is more even."""
    trace: Text | None = None
    """JSON lines in Mooncake's form (timestamp in ms, input_length, output_length, hash_ids): lengths of
    prompts and answers, and with arrivals trace their times, of the first window_s seconds."""
    rate_per_s: Rate | None = None
    """Requests a second of a schedule; null finds the highest that meets all bounds."""
    concurrency: Annotated[int, Limits(ge=1, le=65_536)] = 8
    """Users of a closed loop."""
    samples_per_request: Annotated[int, Limits(ge=1, le=65_536)] = 1
    """Samples that one request brings."""
    max_batch: Annotated[int, Limits(ge=1, le=65_536)] = 32
    """Largest batch: samples that are run together."""
    max_wait_s: Annotated[float, Limits(ge=0, le=60)] = 0.005
    """Seconds that a request waits for others to fill its batch."""
    min_requests: Annotated[int, Limits(ge=1, le=10**8)] = 1000
    """Smallest number of requests in a window."""
    window_s: Seconds = 10.0
    """Seconds in which requests arrive, at least."""
    latency_bound_s: Seconds | None = None
    """The latency that the percentile must stay under."""
    latency_percentile: Annotated[float, Limits(ge=50, lt=100)] = 99.0
    """The percentile that the bound is for."""
    bounds: BoundsSpec = field(default_factory=BoundsSpec)
    search_precision: Annotated[float, Limits(ge=0.005, le=0.5)] = 0.05
    """How near the highest rate is found, as a share of it."""
    time_at_a_rate_s: Seconds = 300.0
    """Seconds of arrivals that a search spends on one rate at most; what is undecided then is reported so."""
    search_time_s: Seconds = 3600.0
    """Seconds that a search takes at most, start-ups included; the range found by then is reported."""
    search_lowest_per_s: Rate | None = None
    """Lowest rate that is tried; null is a 64th of what the server answers when all come at once."""
    curve: bool = True
    """After the search, measure lower rates too: the throughput–latency curve."""
    prompt_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] | None = None
    """Tokens of each request's prompt (an endpoint's own count is fitted before the window); null is 128
    where text is made."""
    new_tokens: Annotated[int, Limits(ge=0, le=MAX_TOKENS)] | None = None
    """Tokens made for each request. A model is served in static batches: a batch reads its prompts and makes
    all its tokens, and only then the next begins (no continuous batching). null is 64 for an endpoint and for
    a model with a key-value cache; 0 has such a model run whole sequences forward."""
    lengths: LengthsSpec = field(default_factory=LengthsSpec)
    shared_prefix: SharedPrefixSpec = field(default_factory=SharedPrefixSpec)
    conversation: ConversationSpec = field(default_factory=ConversationSpec)
    clients: Annotated[int, Limits(ge=1, le=256)] | None = None
    """Processes that send to an endpoint, each its part of the schedule; null is one for every two processors
    of this host, or for every four where the endpoint is on it, and at least one."""
    endpoint: EndpointSpec = field(default_factory=EndpointSpec)
    """The HTTP server to load."""

    def __post_init__(self) -> None:
        """Refuse a percentile that is none.

        Raises:
            ValueError: it is not between 0 and 100.
        """
        if not 0 < self.latency_percentile < 100:
            raise ValueError(f"a percentile is between 0 and 100, not {self.latency_percentile}")

    @property
    def makes_text(self) -> bool:
        """Whether the model of this case makes new tokens, from a key-value cache."""
        return self.target == "model" and self.new_tokens is not None
