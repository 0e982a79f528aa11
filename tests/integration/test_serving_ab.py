"""Two servers in turns, whose times are known: `compare --ab` names the one that lets users wait longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.completions_server import CompletionsServer, running
from running import gpuproof

FIRST_S, TOKEN_S = 0.2, 0.02
FIRST = "p50 time to first token"
USERS = (
    *("--serving.target=endpoint", "--serving.endpoint.model=tiny", "--serving.scenario=closed_loop"),
    *("--serving.concurrency=5", "--serving.min_requests=15", "--serving.window_s=0.4"),
    "--serving.new_tokens=2",
    *("--monitoring.enabled=false", "--run.run_id=ab", "--save-dir=results"),
    *("--ab.pilot_pairs=4", "--max-pairs=4"),
)


def compared(
    cwd: Path, first_s: tuple[float, float], *words: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:
    """Compare two servers by their time to the first token; return result, measures and page."""
    servers = [CompletionsServer(first_token_s=time_s, token_s=TOKEN_S) for time_s in first_s]
    with running(servers[0]) as a, running(servers[1]) as b:
        sides = (f"--a.serving.endpoint.url={a.url}", f"--b.serving.endpoint.url={b.url}")
        done = gpuproof("compare", "--ab", "serving", *sides, *USERS, *words, cwd=cwd)
    (path,) = cwd.glob("results/**/result.json")
    result: dict[str, Any] = json.loads(path.read_text())
    assert done.returncode == result["exit_code"], done.stdout + done.stderr
    assert all(server.requests for server in servers)
    measures = {measure["name"]: measure["comparison"] for measure in result["detail"]["ab"]["measures"]}
    return result, measures, " ".join(done.stdout.split())


def test_a_server_whose_first_token_is_a_fifth_later_is_slower(tmp_path: Path) -> None:
    result, measures, page = compared(tmp_path, (FIRST_S, 1.2 * FIRST_S))
    assert list(measures) == ["answered", FIRST, "p50 time per token"]
    values = {x["case"]: x["value"] for x in result["measures"] if x["name"] == FIRST and x["value"]}
    assert values["b"] / values["a"] == pytest.approx(1.2, rel=0.1)
    assert "They differ in serving.endpoint.url: http" in page
    if not _is_disturbed(result):
        assert measures[FIRST]["verdict"] == "slower"
        assert result["verdict"] in ("SLOWER", "FASTER AND SLOWER"), page


def test_of_two_equal_servers_no_difference_is_shown_but_by_chance(tmp_path: Path) -> None:
    """Of equal ones a small difference is shown in 5 % of comparisons, and one of a tenth in none."""
    result, measures, _ = compared(tmp_path, (FIRST_S, FIRST_S))
    if not _is_disturbed(result):
        ratio = measures[FIRST]["ratio"]
        assert ratio["centre"] == pytest.approx(1.0, rel=0.1)
        assert ratio["low"] < 1.1
        assert ratio["high"] > 0.9


def _is_disturbed(result: dict[str, Any]) -> bool:
    """Say whether other processes met one of the sides alone, which then wins and loses nothing."""
    sides = [{x["code"] for x in result["detail"]["ab"][side]["doubts"]} for side in "ab"]
    return sides[0] != sides[1]
