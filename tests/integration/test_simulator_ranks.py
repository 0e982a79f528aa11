"""Ranks on simulated devices: values are exchanged, and each waits for the last one and for the link."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from running import TIMEOUT_S
from simulating import needs_simulator, simulated

pytestmark = needs_simulator

HERE = Path(__file__).parent
PRODUCT_MS = 1 + 2 * 256**3 / 1e9 * 1e3
"""Of 256 by 256 matrices: the launch, and 33.6 ms of work."""
ALL_REDUCE_MS = 2 + 1e6 / 1e9 * 1e3
"""Its latency, and 2 × ½ of a million bytes over the link."""


@pytest.fixture(scope="module")
def ranks() -> Any:
    declared = {
        "devices": 2,
        "flops_per_s": 1e9,
        "memory_bytes_per_s": 1e12,
        "peer_link_bytes_per_s": 1e9,
        "launch_latency_s": 1e-3,
        "link_latency_s": 2e-3,
    }
    result = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            str(HERE / "simulate_ranks.py"),
        ],
        env=simulated({1: {"slower_percent": 30}}, **declared),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_values_go_from_rank_to_rank(ranks: Any) -> None:
    for rank in (0, 1):
        assert ranks[rank]["collectives"] == {
            "sum": 1.0,
            "mean": 0.5,
            "gathered": [0.0, 1.0],
            "broadcast": 1.0,
            "scattered": 2.0 * rank,
            "passed": 0.0,
        }


def test_a_collective_ends_when_the_last_rank_came_and_the_link_carried_it(ranks: Any) -> None:
    trials = list(zip(*(rank["aligned_ms"] for rank in ranks), strict=True))
    assert all(work >= PRODUCT_MS - 1e-4 and link >= ALL_REDUCE_MS - 1e-4 for (work, link), _ in trials)
    (_, link_ms), (_, waited_ms) = min(trials, key=lambda trial: trial[0][1])
    assert link_ms == pytest.approx(ALL_REDUCE_MS, abs=1e-4)
    assert waited_ms >= link_ms
    assert min(nothing for _, (nothing, _) in trials) < PRODUCT_MS


def test_ranks_that_average_go_at_the_pace_of_the_slowest(ranks: Any) -> None:
    fast, slow = (rank["alone"]["busy_ms"] for rank in ranks)
    assert 1.2 < slow / fast < 1.3  # launches are as long on both
    together = [rank["together"]["window_ms"] for rank in ranks]
    assert together[0] == pytest.approx(together[1], rel=0.05)
    assert min(together) > slow


def test_replicas_and_shards_hold_the_same_on_all_ranks(ranks: Any) -> None:
    assert ranks[0]["together"]["loss"] == ranks[1]["together"]["loss"]
    assert all(rank["sharded_loss"] > 0 for rank in ranks)
