"""`serving`: who is served, how requests come, how they are batched, and what is asked of their latency."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection, Seconds, Text
from gpuproof.config.sections.inference import MAX_TOKENS
from gpuproof.records.serving_spec import Scenario, ServingTarget

PROMPT_TOKENS, NEW_TOKENS = 128, 64
"""What null stands for where text is made."""
Rate = Annotated[float, Field(gt=0, le=1e7)]


class EndpointConfig(ConfigSection):
    """An HTTP server that speaks the OpenAI completions protocol, with streaming."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$", max_length=2048)] | None = Field(
        default=None, description="Up to and with the version, as in http://host:8000/v1."
    )
    model: Text | None = Field(default=None, description="The name that the server knows its model by.")
    api_key_variable: Text | None = Field(
        default=None, description="The environment variable that holds the key; null sends none."
    )
    timeout_s: Seconds = Field(default=120.0, description="Seconds after which a request has failed.")
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Connections at once; further requests wait, and it counts.",
    )


class ServingConfig(ConfigSection):
    """Requests under load."""

    target: ServingTarget = Field(
        default="model",
        description="model serves the recipe's own on this device; endpoint loads an HTTP server; "
        "noop answers at once, to measure the generator.",
    )
    scenario: Scenario = Field(
        default="server",
        description="server: by a schedule; closed_loop: a number of users who each wait; "
        "MLPerf's single_stream, multi_stream and offline.",
    )
    arrivals: Literal["poisson", "constant"] = Field(
        default="poisson", description="The gaps of a schedule: exponential, or all alike."
    )
    rate_per_s: Rate | None = Field(
        default=None,
        description="Requests a second of a schedule; null finds the highest that meets latency_bound_s.",
    )
    concurrency: int = Field(default=8, ge=1, le=65_536, description="Users of a closed loop.")
    samples_per_request: int = Field(
        default=1, ge=1, le=65_536, description="Samples that one request brings."
    )
    max_batch: int = Field(default=32, ge=1, le=65_536, description="Samples that are run together at most.")
    max_wait_s: float = Field(
        default=0.005, ge=0, le=60, description="Seconds that a request waits for others to fill its batch."
    )
    min_requests: int = Field(default=1000, ge=1, le=10**8, description="Requests in a window at least.")
    window_s: Seconds = Field(default=10.0, description="Seconds in which requests arrive, at least.")
    latency_bound_s: Seconds | None = Field(
        default=None, description="The latency that the percentile must stay under."
    )
    latency_percentile: float = Field(
        default=99.0, ge=50, lt=100, description="The percentile that the bound is for."
    )
    search_precision: float = Field(
        default=0.05, ge=0.005, le=0.5, description="How near the highest rate is found, as a share of it."
    )
    curve: bool = Field(
        default=True, description="After the search, measure lower rates too: the throughput–latency curve."
    )
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
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig, description="The HTTP server to load.")
