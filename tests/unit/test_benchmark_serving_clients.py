"""What the comparison of load clients makes of what a client reports and what the server did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from client_runs import Ask as ClientAsk
from client_runs import Client, Reported, peer_client, run_client
from gpuproof.worker.serving.twin import TwinAnswer
from serving_clients import Compared, compared_line, highest_true
from told_server import Log, Truth, told_server


def compared(*, first_s: float = 0.0205, gap_s: float = 0.005, answered_per_s: float = 100.0) -> Compared:
    said = Reported(answered_per_s=100.0, first_s=first_s, gap_s=gap_s, cpu_s=2.0, memory_mib=100.0)
    truth = Truth(
        num_requests=1000,
        answered_per_s=answered_per_s,
        first_s=0.020,
        gap_s=0.005,
        lengths=(32, 16),
        share_of_lengths=1.0,
    )
    return Compared(said, truth)


@pytest.mark.parametrize(
    ("changed", "is_true"),
    [
        ({}, True),
        ({"first_s": 0.0209}, True),
        ({"first_s": 0.0211}, False),  # 5 % and 1 ms are the same of 20 ms
        ({"first_s": 0.0189}, False),
        ({"gap_s": 0.00524}, True),
        ({"gap_s": 0.0047}, False),
        ({"answered_per_s": 94.0}, False),  # true of fewer requests than were asked for
    ],
)
def test_figures_are_true_within_the_errors_of_the_goal(changed: dict[str, float], is_true: bool) -> None:
    assert compared(**changed).is_true(100) is is_true


def test_a_client_is_true_up_to_the_rate_before_its_first_error() -> None:
    good, bad = compared(answered_per_s=3000.0), compared(gap_s=0.006)
    results: dict[tuple[int, str], list[Compared | str]] = {
        (30, "a"): [good, good],
        (100, "a"): [good, bad],
        (300, "a"): [good],
        (30, "b"): ["ended with 1"],
        (100, "b"): [good],
    }
    assert (highest_true(results, "a"), highest_true(results, "b")) == (30, None)


def test_a_line_has_errors_and_cpu_time_a_request_with_and_without_the_start() -> None:
    line = compared_line([compared()], 0.5)
    assert "100/s answered; first token 20.5 ms, +0.50 ms off" in line
    assert "CPU 2.00 ms per request (1.50 ms excluding its start), 100 MiB" in line
    assert compared_line(["it ended"], 0.5) == "it ended"


def test_the_truth_leaves_the_ends_of_the_rate_out() -> None:
    log = Log(first_s=[0.02] * 20, gaps_s=[0.005, 0.005, 0.007])
    log.done_s = [-50.0, -40.0, *(0.1 * k for k in range(16)), 90.0, 99.0]  # trials before, stragglers behind
    log.lengths.update([(32, 16)] * 18 + [(16, 1)] * 2)
    truth = log.truth()
    assert truth is not None
    assert truth.answered_per_s == pytest.approx(10.0)
    assert (truth.num_requests, truth.lengths, truth.share_of_lengths) == (20, (32, 16), 0.9)
    assert Log().truth() is None


def test_the_server_answers_with_its_chunks_and_counts_and_says_when() -> None:
    body = json.dumps({"prompt": "one two three", "max_tokens": 4}).encode()
    with told_server(TwinAnswer(chunks=4, first_s=0.001, gap_s=0.001)) as served:
        for _ in range(12):
            with urlopen(Request(f"{served.url}/v1/completions", data=body)) as answer:
                *events, done = [line for line in answer.read().decode().split("\n") if line]
    assert done == "data: [DONE]"
    parsed: list[dict[str, Any]] = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [event["choices"][0]["text"] for event in parsed[:-1]] == [" word"] * 4
    assert parsed[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert served.truth is not None
    assert (served.truth.num_requests, served.truth.lengths) == (12, (3, 4))
    assert served.truth.first_s >= 0.001
    assert served.truth.gap_s > 0  # a chunk that is late brings the next one nearer


def test_a_client_that_fails_is_said_with_what_it_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such option'); raise SystemExit(3)"]
    client = Client(lambda _: command, lambda folder: json.loads((folder / "report.json").read_text()))
    ask = ClientAsk(url="", rate_per_s=1, window_s=1.0, seed=0, folder=tmp_path)
    reason = run_client(client, ask)
    assert isinstance(reason, str)
    assert reason.startswith("exited with 3, and its report cannot be read (FileNotFoundError")
    assert reason.endswith("it printed: no such option)")


def test_an_environment_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reason = peer_client("guidellm", tmp_path / "file")
    assert isinstance(reason, str)
    assert "venv" in reason
