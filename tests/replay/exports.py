"""Concluding a recorded run again, and the files that this writes.

`conclude_run` is all that knows gpuproof: tests and `scripts/record_replay_runs.py` share it.
"""

from __future__ import annotations

from pathlib import Path

from gpuproof.campaign.conclude import TIMELINES, conclude
from gpuproof.store.run import RunDirectory

RECORDED = Path(__file__).parent / "runs"
"""A folder of each kind: `run/` as the campaign left it, `exports/` and `exit_code` as concluding it gave."""
RESULT = "result.json"
MEASURED = ("run.json", "cases")
"""All that concluding reads; what else lies in a run directory is derived from it."""


def conclude_run(path: Path) -> int:
    """Make the derived files of the run at `path`; return its exit code."""
    return conclude(RunDirectory.open(path)).result.exit_code


def read_exports(run: Path) -> dict[str, bytes]:
    """Return the derived files of a run by their paths in it, without pictures, their data, and traces."""
    traces = {trace.name for trace in run.glob("cases/*/*/trace*.json")}
    names = {path: path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for path, name in names.items()
        if name.parts[0] not in MEASURED
        and name.parts[0] not in traces
        and not name.name.startswith(".")
        and name.name not in (RESULT, TIMELINES)
        and name.suffix != ".png"
    }
