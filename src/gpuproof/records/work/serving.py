"""What a case of kind `serving` is asked: who is served, how requests come, how they are batched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Scenario = Literal["server", "closed_loop", "offline", "single_stream", "multi_stream"]
"""The last two are of runs of before 2026-12."""
ServingTarget = Literal["model", "noop", "endpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """An HTTP server that speaks the OpenAI completions protocol, with streaming."""

    url: str
    """Up to and with the version: http://host:8000/v1"""
    model: str
    api_key_variable: str | None
    """The name of the environment variable that holds the key; the key itself is in no file."""
    timeout_s: float
    max_connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsSpec:
    """What is asked of each request beside its whole latency, and of how many of a hundred."""

    ttft_s: float | None = None
    """Time to the first token, from the schedule."""
    ttft_percentile: float = 99.0
    tpot_s: float | None = None
    """Mean time per further token."""
    tpot_percentile: float = 99.0
    goodput_percentile: float | None = None
    """Of a hundred requests, how many must be within all bounds at once; None asks each bound alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec:
    """Who is served, how requests come, how they are batched, and what is asked of their latency."""

    target: ServingTarget
    scenario: Scenario
    arrivals: Literal["poisson", "constant"]
    rate_per_s: float | None
    concurrency: int
    samples_per_request: int
    max_batch: int
    max_wait_s: float
    min_requests: int
    window_s: float
    latency_bound_s: float | None
    latency_percentile: float
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    """None where a request brings whole samples, and nothing is made."""
    endpoint: EndpointSpec | None = None
    bounds: BoundsSpec = field(default_factory=BoundsSpec)
    arrival_seed: int | None = None
    """What this launch's arrivals and prompts are drawn from, unlike those of any other launch of the run.

    None in runs of before 2026-12, which judged a rate by one launch.
    """

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
