"""What requests to an endpoint bring: lengths, prefixes, traces, and words fitted to a server's tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.serving import LengthsSpec, ServingSpec, SharedPrefixSpec
from gpuproof.worker.serving.prompts import Calibration, Prompts, TraceRow, read_trace

TEXT = ServingSpec(prompt_tokens=200, new_tokens=50)


def words(prompts: Prompts, count: int) -> list[list[str]]:
    return [prompts.ask(number).prompt.split() for number in range(count)]


def num_common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many words both begin with."""
    pairs = list(zip(first, second, strict=False))
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))


def test_prompts_are_made_again_from_the_seed_and_share_no_beginning() -> None:
    texts = words(Prompts(TEXT, 3), 50)
    assert texts == words(Prompts(TEXT, 3), 50)
    assert texts != words(Prompts(TEXT, 4), 50)
    assert {len(text) for text in texts} == {200}
    assert max(num_common(one, other) for one in texts for other in texts if one is not other) < 12


def test_lengths_beyond_the_pool_are_whole() -> None:
    assert len(Prompts(replace(TEXT, prompt_tokens=200_000), 1).ask(0).prompt.split()) == 200_000


def test_uniform_lengths_fill_their_range() -> None:
    spec = replace(TEXT, lengths=LengthsSpec(prompt_spread=0.5, new_spread=1.0))
    prompts = Prompts(spec, 1)
    asks = [prompts.ask(number) for number in range(2000)]
    lengths = [ask.prompt_tokens for ask in asks]
    assert min(lengths) == pytest.approx(100, abs=3)
    assert max(lengths) == pytest.approx(300, abs=3)
    # A uniform distribution over 200 has a deviation of 200/√12; 4 standard errors of the mean.
    assert fmean(lengths) == pytest.approx(200, abs=4 * 57.7 / 2000**0.5)
    assert min(ask.new_tokens for ask in asks) >= 1
    assert all(len(ask.prompt.split()) == ask.prompt_tokens for ask in asks[:50])


def test_log_normal_lengths_have_their_mean_and_variation() -> None:
    spec = replace(TEXT, lengths=LengthsSpec(shape="lognormal", prompt_spread=0.5))
    prompts = Prompts(spec, 1)
    asks = [prompts.ask(number) for number in range(4000)]
    lengths = [ask.prompt_tokens for ask in asks]
    assert fmean(lengths) == pytest.approx(200, abs=4 * 100 / 4000**0.5)
    assert pstdev(lengths) / fmean(lengths) == pytest.approx(0.5, abs=0.05)
    assert {ask.new_tokens for ask in asks} == {50}


def test_prefixes_are_shared_and_what_follows_is_not() -> None:
    spec = replace(TEXT, shared_prefix=SharedPrefixSpec(share=0.5, number=3))
    texts = words(Prompts(spec, 1), 60)
    groups = {tuple(text[:100]) for text in texts}
    assert len(groups) == 3
    same = [(one, other) for one in texts for other in texts if one is not other and one[:100] == other[:100]]
    assert all(100 <= num_common(one, other) < 112 for one, other in same)
    assert {len(text) for text in texts} == {200}


def test_words_follow_the_count_of_the_server() -> None:
    # Two words a token, and a template of 10 tokens: 200 tokens are 380 words.
    fitted = Calibration.fit([(100, 60), (200, 110), (100, 60), (200, 110)])
    assert fitted.tokens_per_word == pytest.approx(0.5)
    assert fitted.added_tokens == pytest.approx(10)
    assert fitted.words(200) == 380
    prompts = Prompts(TEXT, 1, fitted)
    assert len(prompts.ask(0).prompt.split()) == 380
    assert prompts.ask(0).prompt_tokens == 200


@pytest.mark.parametrize("counts", [[], [(10, 7)], [(10, 7), (20, 7)], [(10, 9), (20, 4)]])
def test_counts_that_show_no_line_leave_a_word_a_token(counts: list[tuple[int, int]]) -> None:
    assert Calibration.fit(counts) == Calibration()


def write_trace(folder: Path, *lines: object) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def request(at_ms: float | None, prompt: int, new: int, *hash_ids: int) -> dict[str, object]:
    row: dict[str, object] = {"input_length": prompt, "output_length": new, "hash_ids": list(hash_ids)}
    return row if at_ms is None else {"timestamp": at_ms, **row}


def test_a_trace_gives_times_lengths_and_common_beginnings(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path,
        request(2000, 1200, 7, 1, 2, 3),
        request(500, 1100, 5, 1, 2, 9),
        request(60_000, 1000, 3, 1, 7),
    )
    rows = read_trace(path, max_s=10.0)
    assert rows == (TraceRow(0.5, 1100, 5, (1, 2, 9)), TraceRow(2.0, 1200, 7, (1, 2, 3)))
    prompts = Prompts(ServingSpec(trace=path, arrivals="trace", window_s=10.0), 1)
    asks = [prompts.ask(number) for number in range(2)]
    assert [(ask.prompt_tokens, ask.new_tokens) for ask in asks] == [(1100, 5), (1200, 7)]
    first, second = (ask.prompt.split() for ask in asks)
    assert (len(first), len(second)) == (1100, 1200)
    assert 1024 <= num_common(first, second) < 1036  # two blocks of 512 tokens


def test_a_file_without_times_is_one_of_lengths(tmp_path: Path) -> None:
    path = write_trace(tmp_path, request(None, 30, 4), request(None, 10, 6))
    asks = [Prompts(ServingSpec(trace=path), 1).ask(number) for number in range(4)]
    assert [(ask.prompt_tokens, ask.new_tokens) for ask in asks] == [(30, 4), (10, 6)] * 2
    with pytest.raises(EnvironmentUnfitError, match="no timestamp"):
        read_trace(path, max_s=1.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not JSON", "line 2 is not a request"),
        ("5", "line 2 is not a request"),
        ('{"timestamp": 0, "input_length": 5}', "line 2 is not a request"),
        ('{"timestamp": "soon", "input_length": 5, "output_length": 5}', "line 2 is not a request"),
        ('{"timestamp": 0, "input_length": 1e999, "output_length": 5}', "line 2 is not a request"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5}', "line 2: lengths must be"),
        ('{"timestamp": -4, "input_length": 5, "output_length": 5}', "line 2: the timestamp must be"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', "line 2: the timestamp must be"),
        ('{"timestamp": 1.7e12, "input_length": 5, "output_length": 5}', "line 2: the timestamp must be"),
        ('{"timestamp": 0, "input_length": 1e15, "output_length": 5}', "line 2: lengths must be"),
    ],
)
def test_a_line_that_is_no_request_is_named(line: str, words: str, tmp_path: Path) -> None:
    path = write_trace(tmp_path, request(0, 5, 5), line)
    with pytest.raises(EnvironmentUnfitError, match=words) as caught:
        read_trace(path, max_s=1.0)
    assert caught.value.place == "serving.trace"


def test_a_trace_without_requests_and_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="no request in its first 1 s"):
        read_trace(write_trace(tmp_path, request(5000, 5, 5)), max_s=1.0)
    with pytest.raises(EnvironmentUnfitError, match="No such file"):
        read_trace(str(tmp_path / "none"))
