"""`serving`: who is served, how requests come, how they are batched, and what is asked of their latency."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection, Seconds, Text
from gpuproof.config.sections.inference import MAX_TOKENS
from gpuproof.records.work.serving import Scenario, ServingTarget

PROMPT_TOKENS, NEW_TOKENS = 128, 64
"""What null stands for where text is made."""
Percent = Annotated[float, Field(ge=50, lt=100)]
Rate = Annotated[float, Field(gt=0, le=1e7)]


class EndpointConfig(ConfigSection):
    """An HTTP server that speaks the OpenAI completions protocol, with streaming."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$", max_length=2048)] | None = None
    """URL up to and including the version, as in http://host:8000/v1."""
    model: Text | None = None
    """The name that the server knows its model by."""
    api_key_variable: Text | None = None
    """The environment variable that holds the key; null sends none."""
    timeout_s: Seconds = 120.0
    """Seconds after which a request has failed."""
    max_connections: int = Field(default=1024, ge=1, le=65_536)
    """Connections at once; further requests wait, and it counts."""


class BoundsConfig(ConfigSection):
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


class ServingConfig(ConfigSection):
    """Requests under load."""

    target: ServingTarget = "model"
    """model serves the recipe's own on this device; endpoint loads an HTTP server; noop answers at once, to
    measure the generator."""
    scenario: Scenario = "server"
    """server: by a schedule; closed_loop: a number of users who each wait for their answer."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    """Gaps between the requests of a schedule: exponential (poisson), or all equal."""
    rate_per_s: Rate | None = None
    """Requests a second of a schedule; null finds the highest that meets all bounds."""
    concurrency: int = Field(default=8, ge=1, le=65_536)
    """Users of a closed loop."""
    samples_per_request: int = Field(default=1, ge=1, le=65_536)
    """Samples that one request brings."""
    max_batch: int = Field(default=32, ge=1, le=65_536)
    """Largest batch: samples that are run together."""
    max_wait_s: float = Field(default=0.005, ge=0, le=60)
    """Seconds that a request waits for others to fill its batch."""
    min_requests: int = Field(default=1000, ge=1, le=10**8)
    """Smallest number of requests in a window."""
    window_s: Seconds = 10.0
    """Seconds in which requests arrive, at least."""
    latency_bound_s: Seconds | None = None
    """The latency that the percentile must stay under."""
    latency_percentile: float = Field(default=99.0, ge=50, lt=100)
    """The percentile that the bound is for."""
    bounds: BoundsConfig = Field(default_factory=BoundsConfig)
    search_precision: float = Field(default=0.05, ge=0.005, le=0.5)
    """How near the highest rate is found, as a share of it."""
    time_at_a_rate_s: Seconds = 300.0
    """Seconds of arrivals that a search spends on one rate at most; what is undecided then is reported so."""
    search_time_s: Seconds = 3600.0
    """Seconds that a search takes at most, start-ups included; the range found by then is reported."""
    search_lowest_per_s: Rate | None = None
    """Lowest rate that is tried; null is a 64th of what the server answers when all come at once."""
    curve: bool = True
    """After the search, measure lower rates too: the throughput–latency curve."""
    prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="Tokens of each request's prompt (an endpoint: words, about a token each); "
        f"null is {PROMPT_TOKENS} where text is made.",
    )
    new_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description="Tokens made for each request. A model is served in static batches: a batch reads "
        "its prompts and makes all its tokens, and only then the next begins (no continuous batching). "
        f"null is {NEW_TOKENS} for an endpoint and for a model with a key-value cache; 0 has such a model "
        "run whole sequences forward.",
    )
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)
    """The HTTP server to load."""
