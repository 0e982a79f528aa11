"""Requests under load through the real command: no server at all, a tiny model, an HTTP endpoint."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from fakes.completions_server import CompletionsServer, running
from fakes.transformers_serve import transformers_serve
from gpuproof.base.errors import ExitCode
from gpuproof.records.run import Failure, RankResult, Setup
from gpuproof.records.serving import Requests, ServingWindow
from running import MEASURED, clean_environment, gpuproof, gpuproof_command, only_case, run_directory
from waiting import PATIENCE_S

TINY = (
    "--model.name=medium",
    "--serving.window_s=0.5",
    "--serving.min_requests=50",
    "--serving.max_batch=4",
    "--monitoring.enabled=false",
    "--distributed.threads_per_rank=1",
    "--run.run_id=s",
)
NULL = ("--serving.target=noop", "--serving.rate_per_s=2000", "--serving.min_requests=700")


def serve(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return gpuproof("run", "serving", *TINY, *words, "--verbose", cwd=cwd)


def summary(cwd: Path) -> dict[str, Any]:
    text = (cwd / "results" / "serving" / "s" / "run_summary.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def test_every_request_of_a_schedule_is_answered_and_written(tmp_path: Path) -> None:
    result = serve(tmp_path, *NULL)
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "s", "serving"))
    rows = records.of(Requests)
    scheduled = [time_s for chunk in rows for time_s in chunk.scheduled_s]
    assert len(scheduled) == 1000  # 2,000 a second for half a second
    assert scheduled == sorted(scheduled)
    assert all(
        due <= issued <= begun <= (done or 0)
        for chunk in rows
        for due, issued, begun, done in zip(
            chunk.scheduled_s, chunk.issued_s, chunk.begun_s, chunk.done_s, strict=True
        )
    )
    (window,) = records.of(ServingWindow)
    assert (window.num_requests, window.num_failed) == (1000, 0)
    assert sum(size * number for size, number in window.batches) == 1000
    assert "p99 latency" in result.stdout


def test_the_highest_rate_of_a_model_is_searched_and_reported(tmp_path: Path) -> None:
    bounds = ("--serving.latency_bound_s=60", "--serving.latency_percentile=50")
    few = (
        *("--serving.search_precision=0.5", "--serving.time_at_a_rate_s=0.5", "--serving.curve=false"),
        "--serving.min_requests=600",
        "--serving.search_time_s=36000",
    )
    result = serve(tmp_path, *bounds, *few)
    # Next to other tests the client may be late, and then nothing is confirmed; the page says so.
    is_late = "[generator-late]" in result.stdout
    expected = (ExitCode.DONE, ExitCode.INCONCLUSIVE) if is_late else (ExitCode.DONE,)
    assert result.returncode in expected, result.stdout + result.stderr
    found = summary(tmp_path)
    assert found["offline_rate_per_s"] > 0
    # Nothing takes a minute here: no rate is refuted, however few requests there were.
    assert found["lowest_rate_not_met_per_s"] is None
    first = found["rates"][-1]
    assert first["launches"] >= 3
    assert (first["standing"]["num_over"], first["standing"]["num_confirming"]) == (0, first["launches"])
    seeds = [window["arrival_seed"] for window in found["windows"]]
    assert len(set(seeds)) == len(seeds)
    searched = [window for window in found["windows"] if window["scenario"] == "server"]
    assert all(0 < window["goodput_per_s"] <= window["answered_per_s"] * 1.001 for window in searched)
    assert "highest rate" in result.stdout
    again = gpuproof("report", "results/serving/s", cwd=tmp_path)
    assert again.returncode in expected, again.stderr


@pytest.mark.parametrize(("users", "samples"), [(1, 1), (1, 4), (3, 1)])
def test_users_who_each_wait_for_their_answer(users: int, samples: int, tmp_path: Path) -> None:
    words = ("--serving.target=noop", "--serving.scenario=closed_loop", f"--serving.concurrency={users}")
    result = serve(tmp_path, *words, f"--serving.samples_per_request={samples}")
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    (window,) = only_case(run_directory(tmp_path, "s", "serving")).of(ServingWindow)
    assert window.num_requests >= 50
    assert window.end_monotonic_s - window.begin_monotonic_s >= 0.5
    largest = max(size for size, _ in window.batches)
    assert largest <= users


def test_a_decoder_answers_prompts_with_tokens(tmp_path: Path) -> None:
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48, "vocab_size": 50}
    result = serve(
        tmp_path,
        *("--model.name=decoder", *(f"--model.options.{key}={value}" for key, value in sizes.items())),
        *("--serving.rate_per_s=60", "--serving.prompt_tokens=12", "--serving.new_tokens=5"),
    )
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "s", "serving"))
    (chunk,) = records.of(Requests)
    assert chunk.tokens == (5,) * 50
    assert all(
        begun < first < (done or 0)
        for begun, first, done in zip(
            chunk.begun_s, (time_s or 0 for time_s in chunk.first_token_s), chunk.done_s, strict=True
        )
    )
    (setup,) = records.of(Setup)
    assert setup.item == "generated tokens"
    assert setup.input_shape == (12,)
    # Keys and values of 4 prompts of 12 tokens and 4 new ones (the last is not read): 2 layers, 2 heads of 8.
    assert setup.kv_cache_bytes == 4 * (12 + 4) * 2 * 2 * (2 * 8) * 4
    (window,) = summary(tmp_path)["windows"]
    assert 0 < window["time_to_first_token_s"]["p50"]["value"] < window["p50_latency_s"]
    assert window["time_per_token_s"]["p50"]["value"] > 0
    assert window["tokens_per_s"] == pytest.approx(5 * window["answered_per_s"])
    assert "no continuous batching" in " ".join(result.stdout.split())


def test_an_endpoint_is_loaded_and_its_tokens_timed(tmp_path: Path) -> None:
    with running(CompletionsServer(first_token_s=0.01, token_s=0.005)) as server:
        result = serve(
            tmp_path,
            *("--serving.target=endpoint", f"--serving.endpoint.url={server.url}"),
            *("--serving.endpoint.model=tiny", "--serving.new_tokens=4"),
            "--serving.rate_per_s=100",
        )
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    (window,) = summary(tmp_path)["windows"]
    assert window["num_requests"] == 50
    assert window["time_to_first_token_s"]["p50"]["value"] >= 0.01
    assert window["time_per_token_s"]["p50"]["value"] > 0  # a first token read late makes the others early
    assert window["p50_latency_s"] >= 0.025
    assert "time to first token" in result.stdout


def test_a_chat_is_timed_chunk_by_chunk_and_goes_on_after_failures(tmp_path: Path) -> None:
    error = '{"error": {"message": "out of blocks"}}'
    server = CompletionsServer(
        first_token_s=0.01,
        token_s=0.01,
        reasoning_tokens=2,
        tokens_per_event=2,
        odd_event=error,
        good_first=2,
        paths=("/v1/chat/completions",),
    )
    with running(server):
        result = serve(
            tmp_path,
            *("--serving.target=endpoint", f"--serving.endpoint.url={server.url}"),
            *("--serving.endpoint.model=tiny", "--serving.new_tokens=6"),
            "--serving.rate_per_s=100",
        )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    (window,) = summary(tmp_path)["windows"]
    num_failed = window["num_failed"]
    assert (num_failed, window["num_requests"]) == (25, 50)
    assert window["failures"] == {"the server reports an error in its stream: out of blocks": num_failed}
    num_answered = window["num_requests"] - num_failed
    assert window["chunks"] == 3 * num_answered  # of two tokens each, and the role alone is none
    assert window["inter_token_latency_s"]["p50"]["num_samples"] == 2 * num_answered
    first, content = (
        window[f"time_to_first_{kind}_s"]["p50"]["value"] for kind in ("token", "content_token")
    )
    assert content > first > 0.01
    text = " ".join(result.stdout.split())
    assert "p50 inter-token latency" in text
    assert "gaps between chunks of 2 tokens on average" in text
    assert f"{num_failed} of 50 requests failed" in text
    assert "the endpoint rejects /completions: prompts were sent to /chat/completions" in text


def test_transformers_serve_answers_a_chat(tmp_path: Path) -> None:
    model = tmp_path / "llama"
    with transformers_serve(model) as url:
        result = serve(
            tmp_path,
            *("--serving.target=endpoint", f"--serving.endpoint.url={url}", "--serving.endpoint.api=chat"),
            *(f"--serving.endpoint.model={model}", "--serving.prompt_tokens=40", "--serving.new_tokens=6"),
            *("--serving.rate_per_s=20", "--serving.min_requests=20"),
        )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "s", "serving"))
    (chunk,), (window,) = records.of(Requests), records.of(ServingWindow)
    assert (window.num_failed, window.api, window.num_requests) == (0, "chat", 20)
    # The template adds marks, and no word is spelt: each prompt has just the tokens asked for.
    assert set(chunk.prompt_tokens) == set(chunk.prompt_tokens_asked) == {40}
    assert set(chunk.tokens) == set(chunk.tokens_asked) == {6}
    # Its chunks are of whole characters, so that one may hold several tokens.
    assert all(0 < num_chunks <= 6 for num_chunks in chunk.chunks)
    assert sum(count for _, count in window.gaps) == sum(chunk.chunks) - 20
    text = " ".join(result.stdout.split())
    assert "p50 inter-token latency" in text
    assert "the endpoint rejects ignore_eos" in text


def test_a_trace_is_replayed_with_its_lengths(tmp_path: Path) -> None:
    lines = (
        {"timestamp": 40 * k, "input_length": 20 + k, "output_length": 2 + k % 3, "hash_ids": [1]}
        for k in range(60)
    )
    (tmp_path / "trace.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    with running(CompletionsServer(stops_after=2, template_tokens=8)) as server:
        result = serve(
            tmp_path,
            *("--serving.target=endpoint", f"--serving.endpoint.url={server.url}"),
            *("--serving.endpoint.model=tiny", "--serving.endpoint.api=chat"),
            *("--serving.arrivals=trace", "--serving.trace=trace.jsonl", "--serving.window_s=1"),
        )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    (chunk,) = only_case(run_directory(tmp_path, "s", "serving")).of(Requests)
    assert list(chunk.scheduled_s) == pytest.approx([0.04 * k for k in range(25)])  # of the first second
    assert list(chunk.prompt_tokens_asked) == list(chunk.prompt_tokens) == [20 + k for k in range(25)]
    assert list(chunk.tokens_asked) == [2 + k % 3 for k in range(25)]
    text = " ".join(result.stdout.split())
    assert "tokens of prompts 32.0" in text
    assert "tokens of answers, requested" in text
    assert "answers-of-other-length" in text  # every second one ends after two


def test_a_search_of_an_endpoint_says_what_its_client_does_alone(tmp_path: Path) -> None:
    with running(CompletionsServer(first_token_s=0.002)) as server:
        result = serve(
            tmp_path,
            *("--serving.target=endpoint", f"--serving.endpoint.url={server.url}"),
            *("--serving.endpoint.model=tiny", "--serving.new_tokens=2", "--serving.bounds.ttft_s=60"),
            *("--serving.search_time_s=12", "--serving.clients=2"),
        )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    cases = run_directory(tmp_path, "s", "serving").cases()
    clients = {case.case.case_id: case.of(ServingWindow)[0].client for case in cases}
    alone = clients.pop("offline")
    assert alone is not None
    assert alone.highest_per_s > 0
    assert set(clients.values()) <= {None}  # once, before the search
    assert "client ceiling" in result.stdout
    assert {case.of(ServingWindow)[0].num_clients for case in cases} == {2}
    assert "requests were sent by 2 client processes" in " ".join(result.stdout.split())


def test_an_endpoint_that_is_not_there_measures_nothing(tmp_path: Path) -> None:
    server = CompletionsServer()
    with running(server):
        pass
    words = ("--serving.target=endpoint", f"--serving.endpoint.url={server.url}", "--serving.rate_per_s=100")
    result = serve(tmp_path, *words, "--serving.endpoint.model=tiny")
    assert result.returncode == ExitCode.UNFIT_ENVIRONMENT, result.stdout + result.stderr
    assert "NOTHING MEASURED" in result.stdout
    assert f"{server.url} does not answer requests" in " ".join(result.stdout.split())


def test_what_cannot_be_served_is_said_before_anything_starts(tmp_path: Path) -> None:
    result = serve(tmp_path, "--serving.latency_bound_s=null")
    assert result.returncode == ExitCode.USAGE
    assert "serving.latency_bound_s is null" in result.stderr
    assert not (tmp_path / "results").exists()


def test_an_interrupted_window_leaves_no_generator_behind(tmp_path: Path) -> None:
    command = gpuproof_command("run", "serving", *TINY, *NULL, "--serving.window_s=600")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        generator_pid = _generator_of(tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.communicate()
    assert _is_gone(generator_pid, within_s=PATIENCE_S)
    records = only_case(run_directory(tmp_path, "s", "serving"))
    assert not records.of(RankResult)
    assert {failure.cause for failure in records.of(Failure)} == {"interrupted"}


def _is_gone(pid: int, *, within_s: float) -> bool:
    deadline_s = monotonic() + within_s
    while Path(f"/proc/{pid}").exists():
        if monotonic() > deadline_s:
            return False
        sleep(0.1)
    return True


def _generator_of(cwd: Path) -> int:
    """Wait until the run in `cwd` has a generator; return its process."""
    deadline_s = monotonic() + PATIENCE_S
    while monotonic() < deadline_s:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"generate" in words and (folder / "cwd").resolve() == cwd.resolve():
                    return int(folder.name)
        sleep(0.1)
    raise AssertionError("no generator was started")


def test_a_bound_on_time_per_token_needs_the_count_of_tokens(tmp_path: Path) -> None:
    with running(CompletionsServer(sends_usage=False)) as server:
        result = serve(
            tmp_path,
            *("--serving.target=endpoint", f"--serving.endpoint.url={server.url}"),
            *("--serving.endpoint.model=tiny", "--serving.rate_per_s=50", "--serving.bounds.tpot_s=1"),
        )
    assert result.returncode == ExitCode.UNFIT_ENVIRONMENT, result.stdout + result.stderr
    assert "does not send token counts (usage)" in " ".join(result.stdout.split())
