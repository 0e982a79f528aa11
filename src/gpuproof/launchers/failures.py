"""The launcher's own records of what the ranks of a launch could not record themselves.

In: a launch's files, and how its processes exited. Out: a `Failure` that does not name a rank, or None.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuproof.launchers.base import HostError
from gpuproof.processes.start import signal_name
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import TRANSIENT_CAUSES, Failure, FailureCause, RankResult, Start
from gpuproof.store import layout

WHERE_IT_HANGS = (
    "The stacks of each rank show where it hangs; raise distributed.hang_timeout_s if the "
    "workload is that slow"
)
_FIRST_KILLED: Final = re.compile(
    r"^Root Cause \(first observed failure\):\n(?:.*\n){0,4}? *rank +: (\d+)\b.*\n *exitcode +: (-\d+)", re.M
)
"""Where torch's agent reports which rank exited first, and by which signal; the agent then stops the
others."""


def launch_failure(
    cause: FailureCause,
    message: str,
    *,
    next_step: str | None = None,
    host: str | None = None,
    phase: str = "launch",
) -> Failure:
    """Build the record of a launch that failed as a whole; if no host is given, it is this one."""
    return Failure(
        rank=None,
        host=host or socket.gethostname(),
        phase=phase,
        cause=cause,
        message=message,
        unix_s=time.time(),
        next_step=next_step or ("Finish the run with --resume" if cause in TRANSIENT_CAUSES else None),
    )


def host_failure(error: HostError) -> Failure:
    """Build the record of a launch with a host that cannot be used, or files that cannot be read."""
    next_step = "Finish the run with --resume once this host can be reached and used"
    cause: FailureCause = "exception" if error.stage in ("parse", "exception") else "environment"
    if error.is_interruption:
        cause, next_step = "interrupted", error.next_step or "Finish the run with --resume"
    return launch_failure(
        cause, f"{error.stage}: {error.cause}", host=error.host, phase=error.stage, next_step=next_step
    )


def unexplained_failure(
    records: CaseRecords, status: int | None, folder: Path, *, time_limit_s: float | None
) -> Failure | None:
    """Report what the ranks could not; the launch exited with `status`, or None if it timed out."""
    if records.status == "done" or any(failure.rank is None for failure in records.of(Failure)):
        return None
    host = records.case.placement.host
    if status is None:
        return launch_failure("timeout", f"not finished within {time_limit_s:g} s", host=host)
    from gpuproof.verdict.blame.hang import explain_hang

    reported = {r.rank for r in records.of(RankResult)} | {f.rank for f in records.of(Failure)}
    # it did not leave a last message either
    silent = [rank for rank in range(records.world_size) if rank not in reported]
    hang = explain_hang(records)
    if silent and not records.of(Start) and status > 0:
        return _not_begun(folder, host)
    if silent:
        lost = _lost(silent, status, folder, records)
        return lost if hang is None else replace(lost, message=f"{lost.message}; {hang.text}")
    if hang is None:
        return None
    return launch_failure("hang", hang.text, next_step=WHERE_IT_HANGS, host=host)


def _not_begun(folder: Path, host: str | None) -> Failure:
    """Return why a launch exited before any rank started, from the last line of its output."""
    killed = _first_killed(folder)
    if killed is not None:
        rank, how = killed
        return launch_failure(
            "lost_rank",
            f"rank {rank} was killed by {how} before its first record: from outside, or by the "
            "kernel because memory ran out",
            next_step=f"Look at stderr-{rank}.txt in {folder} and at dmesg; finish the run with --resume",
            host=host,
        )
    output = _launcher_output(folder).strip()
    return launch_failure(
        "environment",
        f"no rank could start: "
        f"{output.splitlines()[-1] if output else 'the launch ended without an error message'}",
        next_step=f"Try the command in {folder / layout.LAUNCH_TEXT} manually; then finish the run "
        "with --resume",
        host=host,
    )


def _launcher_output(folder: Path) -> str:
    try:
        return (folder / layout.LAUNCHER_OUTPUT).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _first_killed(folder: Path) -> tuple[int, str] | None:
    """Return the rank that exited first and its signal, as reported by torch's agent, or None."""
    match = _FIRST_KILLED.search(_launcher_output(folder))
    how = None if match is None else signal_name(int(match[2]))
    return None if match is None or how is None else (int(match[1]), how)


def _lost(ranks: Sequence[int], status: int, folder: Path, records: CaseRecords) -> Failure:
    starts = [start for start in records.of(Start) if start.rank in ranks]
    hosts = " and ".join(sorted({start.host for start in starts} - {socket.gethostname()}))
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    how = _loss_text(ranks, status, folder)
    killed = (
        f"ended without an error message {how}: killed from outside, by the kernel because memory ran out, "
    )
    message = f"{who} {killed}or stuck in native code"
    next_step = f"Look at stderr-{ranks[0]}.txt in {folder} and at dmesg; finish the run with --resume"
    if hosts:
        message = f"{who} on {hosts} {killed}stuck in native code, or cut off from this host"
        next_step = f"Look at the launcher's output and at dmesg on {hosts}; for the connection, at "
        next_step += "`gpuproof doctor --multi-node`"
    return launch_failure("lost_rank", message, next_step=next_step, host=records.case.placement.host)


def _loss_text(ranks: Sequence[int], status: int, folder: Path) -> str:
    """Name the signal of the rank that exited first, or else how the launch as a whole ended."""
    rank, how = _first_killed(folder) or (None, None)
    if rank in ranks:
        return f"by {how}" if len(ranks) == 1 else f"(rank {rank} first, by {how})"
    ended = signal_name(status)
    return f"(exit status {status} of the launch)" if ended is None else f"by {ended}"
