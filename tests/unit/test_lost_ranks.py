"""Ranks that reported nothing, from the last words of torch's agent (as torch 2 printed them)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.campaign.campaign import ends_interrupt
from gpuproof.launchers.failures import unexplained_failure
from gpuproof.records.collected import CaseRecords
from gpuproof.store import layout
from gpuproof.store.run import read_case
from records_by_hand import case, start, write_run

KILLED = """\
Failures:
[1]:
  time      : 2026-11-22_18:18:42
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 25339)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 25339
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_18:18:41
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 25340)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 25340
=======================================================
"""


@pytest.mark.parametrize(
    ("has_begun", "output", "cause", "said"),
    [
        (False, KILLED, "lost_rank", "rank 1 was killed by SIGKILL before its first record"),
        (False, "no such module\n", "environment", "no rank could start: no such module"),
        (
            True,
            KILLED,
            "lost_rank",
            "ranks 0, 1 on node1 ended without an error message (rank 1 first, by SIGKILL)",
        ),
        (True, KILLED.replace(": -9 ", ": 1 "), "lost_rank", "(exit status 1 of the launch)"),
    ],
)
def test_the_rank_that_was_killed_first_is_named(
    has_begun: bool, output: str, cause: str, said: str, tmp_path: Path
) -> None:
    folder = launched(tmp_path, has_begun=has_begun)
    (folder / layout.LAUNCHER_OUTPUT).write_text(output)
    failure = unexplained_failure(read_case(folder), 1, folder, time_limit_s=None)
    assert failure is not None
    assert failure.cause == cause
    assert said in failure.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_a_campaign_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # these tests, too, may run under nohup
    try:
        with pytest.raises(KeyboardInterrupt), ends_interrupt():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def launched(save_dir: Path, *, has_begun: bool) -> Path:
    """Return the folder of a launch of two ranks that reported nothing."""
    ranks = [start(rank, world_size=2) for rank in range(2)] if has_begun else []
    of_two = case(nproc=2)
    run = write_run(save_dir, [CaseRecords(case=of_two, records=tuple(ranks))])
    return run.case_folder(of_two)


def test_a_closed_terminal_ends_nothing_where_that_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a command
    try:
        with ends_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_rank_under_nohup_outlives_the_terminal_and_not_its_end() -> None:
    script = """
import os, signal
from gpuproof.worker.rank.watchdog import Heartbeat, Watchdog
said = lambda words: print(words.message, flush=True)
Watchdog(Heartbeat(), hang_timeout_s=60, parent_pid=None, on_end=said).start()
os.kill(os.getpid(), signal.SIGHUP)
print("still", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
signal.pause()
"""
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, script], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("still\nended by SIGTERM\n", "")
