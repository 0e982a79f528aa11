"""The figures of text: time to the first tokens, between chunks and per token, and the tokens themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuproof.base import units
from gpuproof.records.result import Measure
from gpuproof.suites.base import LaunchKey
from gpuproof.suites.serving.measures import COMPARED, percentiles
from gpuproof.suites.serving.run import ServingRun


def token_measures(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return when tokens came, how many, and how long prompts and answers were; none where none are made."""
    if not any(served.first_token_s for served in run.main):
        return []
    measures = [
        _token_rate(run),
        *percentiles(run, positions, "time to first token", lambda served: served.first_token_s, COMPARED),
    ]
    if any(served.chunks for served in run.main):
        measures += percentiles(
            run, positions, "time to first content token", lambda served: served.first_content_s, COMPARED
        )
    measures += percentiles(run, positions, "time per token", lambda served: served.token_s, COMPARED)
    return [*measures, *_gap_measures(run, positions), *_length_measures(run)]


def _token_rate(run: ServingRun) -> Measure:
    counts = [served.tokens for served in run.main if served.tokens is not None]
    answered = sum(len(served.latencies_s) for served in run.main)
    if len(counts) < len(run.main):
        missing = "the endpoint sent no token count (usage) with some or all of its answers"
        return Measure(
            name="tokens", value=None, unit="tokens/s", text=units.MISSING, detail=missing, missing=missing
        )
    rates = [served.tokens_per_s or 0.0 for served in run.main]
    rate, chunks = sum(rates) / len(rates), sum(served.chunks for served in run.main)
    in_chunks = f" in {units.count(chunks)} chunks" if chunks else ""
    return Measure(
        name="tokens",
        value=rate,
        unit="tokens/s",
        text=units.rate(rate, "tokens"),
        detail=f"{units.count(sum(counts))} made for {units.count(answered)} requests{in_chunks}",
    )


def _length_measures(run: ServingRun) -> Iterator[Measure]:
    """Yield the mean length of an endpoint's prompts and answers: by its own count, and as requested."""
    for name in ("prompts", "answers"):
        sides = [getattr(served, name) for served in run.main]
        asked = [tokens for counts in sides for tokens in counts.asked]
        counted = [tokens for counts in sides for tokens in counts.counted]
        if not asked:
            continue
        missing = None if len(counted) == len(asked) else "the endpoint did not count those of each answer"
        mean = sum(counted) / len(counted) if missing is None else None
        off = units.count(sum(counts.num_off for counts in sides))
        detail = missing or f"mean, by the endpoint's count; {off} of {len(asked)} not as requested"
        yield _mean_tokens(f"tokens of {name}", mean, detail, missing)
        requested = sum(asked) / len(asked)
        yield _mean_tokens(f"tokens of {name}, requested", requested, "mean of the requests answered", None)


def _mean_tokens(name: str, value: float | None, detail: str, missing: str | None) -> Measure:
    text = units.MISSING if value is None else units.significant(value)
    return Measure(name=name, value=value, unit="tokens", text=text, detail=detail, missing=missing)


def _gap_measures(run: ServingRun, positions: Mapping[LaunchKey, int]) -> list[Measure]:
    """Return the inter-token latency, a sample a gap between chunks, as vLLM and SGLang define it."""
    if not any(served.window.gaps for served in run.main):
        return []
    measures = percentiles(run, positions, "inter-token latency", lambda served: served.gaps_s, COMPARED)
    num_gaps = sum(len(served.gaps_s) for served in run.main)
    tokens, chunks = (sum(getattr(x, name) or 0 for x in run.main) for name in ("tokens", "chunks"))
    several = f" of {tokens / chunks:.3g} tokens on average" if tokens > chunks else ""
    detail = f"of {units.count(num_gaps)} gaps between chunks{several}"
    return [replace(x, detail=detail if x.value is not None else x.detail) for x in measures]
