"""Which requests are prompts, and what their tokens come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.launches.served import Served, summarize_requests
from gpuproof.records.collected import CaseRecords
from gpuproof.records.serving import Requests
from gpuproof.suites.serving.plan import TextSizes, text_sizes
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about
from planning import next_cases
from served_by_hand import SPEC, records, spec_in

ENDPOINT = {"url": "http://localhost:1/v1", "model": "tiny"}


def config(model: str = "decoder", **serving: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "kind": "serving",
            "model": {"name": model},
            "data": {"name": "synthetic"},
            "serving": {"rate_per_s": 1.0, **serving},
        }
    )


def test_a_decoder_answers_prompts_unless_told_otherwise() -> None:
    assert text_sizes(config()) == TextSizes(prompt_tokens=128, new_tokens=64)
    assert text_sizes(config(prompt_tokens=7, new_tokens=3)) == TextSizes(prompt_tokens=7, new_tokens=3)
    assert text_sizes(config(new_tokens=0)) is None


def test_other_models_and_no_model_answer_none() -> None:
    assert text_sizes(config("medium")) is None
    assert text_sizes(config(target="noop")) is None
    assert text_sizes(config("medium", target="endpoint", endpoint=ENDPOINT)) == TextSizes(
        prompt_tokens=128, new_tokens=64
    )


def test_the_case_says_that_text_is_made() -> None:
    (case,) = next_cases(config(new_tokens=3))
    assert case.kind == "serving"
    assert case.model_work.generates
    (whole,) = next_cases(config(new_tokens=0))
    assert not whole.model_work.generates


def test_tokens_of_a_model_without_a_cache_are_refused() -> None:
    with pytest.raises(UsageError, match="no key-value cache") as caught:
        next_cases(config("medium", new_tokens=4))
    assert caught.value.place == "serving.new_tokens"


@pytest.mark.parametrize(
    ("key", "value"), [("training", {"compile": {"enabled": True}}), ("data", {"name": "digits"})]
)
def test_what_a_cache_does_not_go_with_is_refused(key: str, value: dict[str, object]) -> None:
    section = getattr(RunConfig.model_validate({key: value}), key)
    asked = config().model_copy(update={key: section})
    with pytest.raises(UsageError, match=r"cache that grows|random tokens"):
        next_cases(asked)
    assert text_sizes(asked.model_copy(update={"serving": config(new_tokens=0).serving})) is None


@pytest.mark.parametrize(
    ("serving", "key"),
    [
        ({"target": "noop", "new_tokens": 4}, "serving.new_tokens"),
        ({"target": "noop", "prompt_tokens": 4}, "serving.prompt_tokens"),
        ({"prompt_tokens": 4, "new_tokens": 0}, "serving.prompt_tokens"),
    ],
)
def test_tokens_that_would_change_nothing_are_refused(serving: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        config(**serving)


@pytest.mark.parametrize(
    ("serving", "key"),
    [({"new_tokens": 0}, "serving.new_tokens"), ({"samples_per_request": 2}, "serving.samples_per_request")],
)
def test_an_endpoint_is_asked_for_tokens_one_prompt_at_a_time(serving: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        config(target="endpoint", endpoint=ENDPOINT, **serving)


def with_tokens(
    written: CaseRecords, *, first_token_s: float, tokens: int | None, chunks: int = 0
) -> CaseRecords:
    """Have each request of `written` make its tokens, the first so long after its time."""
    (requests,) = written.of(Requests)
    number = len(requests.scheduled_s)
    made = replace(
        requests,
        first_token_s=tuple(due_s + first_token_s for due_s in requests.scheduled_s),
        tokens=(tokens,) * number,
        chunks=(chunks,) * number,
    )
    return replace(written, records=tuple(made if found is requests else found for found in written.records))


def test_sequences_of_one_request_grow_in_step() -> None:
    # Two sequences a request, ten tokens: five each, the first after 0.1 s, the fifth after 0.5 s.
    found = summarize_requests(with_tokens(records([0.5] * 20), first_token_s=0.1, tokens=10))
    assert found is not None
    assert found.first_token_s == pytest.approx([0.1] * 20)
    assert found.token_s == pytest.approx([0.1] * 20)
    assert found.tokens == 200
    assert found.tokens_per_s == pytest.approx(200 / 0.7)  # the last is due at 0.2 s
    assert found.as_launch().items_total == 200


def test_a_single_token_has_no_time_per_further_one() -> None:
    found = summarize_requests(with_tokens(records([0.5] * 20), first_token_s=0.5, tokens=2))
    assert found is not None
    assert found.token_s == ()


def endpoint_window(*, tokens: int | None, chunks: int) -> Served:
    spec = replace(SPEC, target="endpoint", samples_per_request=1)
    written = records([0.5] * 20, spec=spec)
    served = summarize_requests(with_tokens(written, first_token_s=0.1, tokens=tokens, chunks=chunks))
    assert served is not None
    return served


def test_tokens_that_an_endpoint_does_not_count_are_missing() -> None:
    served = endpoint_window(tokens=None, chunks=4)
    assert (served.tokens, served.tokens_per_s, served.token_s) == (None, None, ())
    assert served.chunks == 80
    assert served.first_token_s == pytest.approx([0.1] * 20)
    assert all(served.series.token_s == inf)  # within no bound of time per token
    assert served.num_miscounted == 0


@pytest.mark.parametrize(("chunks", "is_miscounted"), [(5, False), (2, False), (6, True)])
def test_more_chunks_with_text_than_tokens_are_a_wrong_count(chunks: int, is_miscounted: bool) -> None:
    served = endpoint_window(tokens=5, chunks=chunks)
    assert served.num_miscounted == (20 if is_miscounted else 0)
    codes = {doubt.code for doubt in doubts_about(Measured(launch=served.as_launch(), served=served))}
    assert ("tokens-miscounted" in codes) is is_miscounted


def test_gaps_are_samples_as_often_as_they_were_counted() -> None:
    served = endpoint_window(tokens=5, chunks=5)
    served = replace(served, window=replace(served.window, gaps=((0.005, 3), (0.02, 1))))
    assert list(served.gaps_s) == [0.005, 0.005, 0.005, 0.02]
    assert endpoint_window(tokens=5, chunks=5).gaps_s.size == 0


@pytest.mark.parametrize(
    ("serving", "key"),
    [
        ({"target": "model", "lengths": {"new_spread": 0.5}}, "serving.lengths"),
        ({"target": "model", "trace": "a.jsonl"}, "serving.trace"),
        ({"target": "model", "shared_prefix": {"share": 0.5}}, "serving.shared_prefix"),
        ({"lengths": {"new_spread": 1.5}}, "serving.lengths"),
        ({"trace": "a.jsonl", "lengths": {"new_spread": 0.5}}, "serving.lengths"),
        ({"trace": "a.jsonl", "arrivals": "trace"}, "serving.rate_per_s"),
        ({"arrivals": "trace", "rate_per_s": None}, "serving.trace"),
        ({"arrivals": "ramp", "rate_per_s": None, "latency_bound_s": 1.0}, "serving.rate_per_s"),
        ({"burstiness": 2.0}, "serving.burstiness"),
        ({"conversation": {"turns": 2}}, "serving.conversation"),
        ({"target": "model", "conversation": {"turns": 2}}, "serving.conversation"),
    ],
)
def test_what_arrivals_and_texts_do_not_go_with_is_refused(serving: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        config(**{"target": "endpoint", "endpoint": ENDPOINT, **serving})


def test_a_trace_is_a_launch_of_its_own_and_no_search() -> None:
    trace: dict[str, Any] = {"trace": "a.jsonl", "arrivals": "trace", "rate_per_s": None}
    (case,) = next_cases(config(target="endpoint", endpoint=ENDPOINT, **trace))
    assert spec_in(case).trace == "a.jsonl"
    assert (spec_in(case).scenario, spec_in(case).rate_per_s) == ("server", None)


def with_lengths(asked: int, counted: Sequence[int | None], tokens: Sequence[int | None]) -> Served:
    """Requests whose prompts and answers were asked to have so many tokens, with the server's counts."""
    spec = replace(SPEC, target="endpoint", samples_per_request=1)
    written = with_tokens(records([0.5] * len(counted), spec=spec), first_token_s=0.1, tokens=5, chunks=1)
    (requests,) = written.of(Requests)
    number = len(counted)
    changed = replace(
        requests,
        tokens=tuple(tokens),
        prompt_tokens=tuple(counted),
        prompt_tokens_asked=(asked,) * number,
        tokens_asked=(5,) * number,
    )
    served = summarize_requests(
        replace(written, records=tuple(changed if one is requests else one for one in written.records))
    )
    assert served is not None
    return served


def codes_of(served: Served) -> dict[str, str]:
    doubts = doubts_about(Measured(launch=served.as_launch(), served=served))
    return {doubt.code: doubt.reason for doubt in doubts}


def test_lengths_other_than_asked_for_are_doubts_with_their_share() -> None:
    served = with_lengths(100, [105] * 15 + [106] * 5, [5] * 18 + [4, 3])
    assert (served.prompts.num_off, served.answers.num_off) == (5, 2)
    codes = codes_of(served)
    assert "5 of 20 prompts (25 %)" in codes["prompts-of-other-length"]
    assert "requested 100 tokens on average, counted 105.2" in codes["prompts-of-other-length"]
    assert "2 of 20 answers (10 %)" in codes["answers-of-other-length"]
    right = codes_of(with_lengths(100, [103] * 20, [5] * 20))
    assert not {code for code in right if code.endswith("other-length")}


def test_counts_that_are_not_whole_are_missing() -> None:
    served = with_lengths(100, [100] * 19 + [None], [5] * 19 + [None])
    assert (served.prompts.counted, served.answers.counted) == ((), ())
    assert len(served.prompts.asked) == 20
    assert served.tokens is None


def test_a_trace_that_was_sent_late_is_rejected() -> None:
    served = with_lengths(100, [100] * 20, [5] * 20)
    late = replace(
        served, spec=replace(served.spec, arrivals="trace"), sent_late_s=(0.0,) * 19 + (0.03,)
    )  # of latencies of 0.5 s
    assert "trace-late" in codes_of(late)
    assert "trace-late" not in codes_of(replace(late, sent_late_s=(0.0,) * 19 + (0.02,)))
    assert "trace-late" not in codes_of(replace(late, spec=served.spec))
