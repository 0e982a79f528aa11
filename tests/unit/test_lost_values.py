"""A fleet with a fault never becomes READY because a value, a record or a file of its run was lost."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import GpuproofError
from gpuproof.campaign.conclude import read_evidence
from gpuproof.selftest.fleet import Fleet, with_fault
from gpuproof.selftest.judging import CHECKS, write_fleet
from gpuproof.store.run import RunDirectory
from gpuproof.suites.validate import SUITE

FAULTS: Mapping[str, Mapping[str, Any]] = {
    "slow device": {"slower": {"GPU-node1-0": 1.3}},
    "lossy link": {"lossy": ("node1", "node2")},
    "wrong collective": {"wrong_on": 1},
    "NaN loss": {"without_loss": 1},
}
LOSSES = 60


def verdict_of(run: Path) -> str:
    """Return the verdict before the cap for simulated devices, or "refused"."""
    try:
        result = SUITE.conclude(read_evidence(RunDirectory.open(run))).result
    except GpuproofError:
        return "refused"
    return str(result.detail["readiness"]["uncapped"])


def lose_something(path: Path, draw: random.Random) -> None:
    """Remove a file, a line of it, or one value at any depth."""
    what = draw.choice(("file", "line", *["value"] * 8))
    if what == "file":
        path.unlink()
        return
    records = [json.loads(line) for line in path.read_text().splitlines()]
    number = draw.randrange(len(records))
    if what == "line":
        del records[number]
    else:
        holder = records[number]
        while True:
            key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            if not isinstance(holder[key], dict | list) or not holder[key] or draw.random() < 0.2:
                break
            holder = holder[key]
        del holder[key]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


@pytest.mark.parametrize("name", FAULTS)
def test_no_loss_hides_a_fault(name: str, tmp_path: Path) -> None:
    fleet = with_fault(Fleet(seed=3, hosts=("node1", "node2")), **FAULTS[name])
    write_fleet(fleet, tmp_path, rules=[{"check": check} for check in CHECKS])
    run = next(tmp_path.rglob("run.json")).parent
    assert verdict_of(run) == "NOT-READY"

    draw, verdicts = random.Random(name), set()
    files = sorted(run.glob("cases/*/*/rank-*.jsonl"))
    for _ in range(LOSSES):
        path = draw.choice(files)
        whole = path.read_bytes()
        lose_something(path, draw)
        verdicts.add(verdict_of(run))
        path.write_bytes(whole)

    assert "NOT-READY" in verdicts
    assert verdicts <= {"NOT-READY", "INCONCLUSIVE", "refused"}
