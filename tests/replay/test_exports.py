"""Runs of every kind, written by earlier versions, are read, and every derived file keeps its bytes.

`scripts/record_replay_runs.py` made them and says how; a file whose bytes are meant to change is written
again by `python scripts/record_replay_runs.py --conclude`, and the diff of it is read.
"""

from __future__ import annotations

import difflib
import shutil
from itertools import islice
from pathlib import Path

import pytest

from replay.exports import RECORDED, conclude_run, read_exports

KINDS = sorted(path.name for path in RECORDED.iterdir())
MOST_LINES = 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_gives_the_same_exports(kind: str, tmp_path: Path) -> None:
    recorded = RECORDED / kind
    run = tmp_path / kind
    shutil.copytree(recorded / "run", run)
    assert read_exports(run) == {}
    exit_code = conclude_run(run)
    found, expected = read_exports(run), read_exports(recorded / "exports")
    assert sorted(found) == sorted(expected)
    changed = [name for name in expected if found[name] != expected[name]]
    if changed:
        pytest.fail("\n".join(_difference(name, expected[name], found[name]) for name in changed))
    assert exit_code == int((recorded / "exit_code").read_text(encoding="utf-8"))


def _difference(name: str, expected: bytes, found: bytes) -> str:
    before, after = expected.decode().splitlines(), found.decode().splitlines()
    names = f"recorded/{name}", f"concluded/{name}"
    lines = difflib.unified_diff(before, after, *names, lineterm="", n=1)
    return "\n".join(islice(lines, MOST_LINES)) or f"{name}: other ends of lines"
