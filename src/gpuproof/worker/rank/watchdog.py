"""The watchdog: a thread that writes the final record when the main thread cannot.

It detects three endings that Python code in the main thread would not survive or would not notice: a signal
while the main thread is inside a collective, no progress for too long, and the death of the launcher. In each
case, it writes a failure record with the stacks of all threads and ends the process. If native code holds the
GIL, so that no Python thread runs, a C-level timer prints the stacks instead. A host that waits for its
device appears to be alive even if every device hangs. So `look_at_progress` reads the device's own marks, and
torch's count and flight recorder of collective operations, from a separate thread with a deadline, since a
failing driver may not respond.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn, Protocol

from gpuproof.base.outside import parse_json
from gpuproof.processes.start import ENDING_SIGNALS
from gpuproof.records.progress import CollectiveCall, RankProgress
from gpuproof.records.run import FailureCause

POLL_S = 0.5
LINGER_S = 2.0
"""How long a rank stays alive after its final record so that other ranks can write theirs. It must exceed the
delay (a chunk of steps, a poll) between the first and last rank that notice a shared hang, since the exit of
one rank makes the others exit too."""
ANSWER_S = 2.0
"""Timeout for a response from a driver or NCCL."""
LAST_CALLS = 3
RAS_ADDRESS = ("localhost", 28028)
"""The default address where NCCL (2.24 and later) listens (see NCCL_RAS_ADDR)."""
RAS_CHARACTERS = 8_000


@dataclass(slots=True)
class Heartbeat:
    """The progress last reported by the main thread."""

    phase: str = "prepare"
    steps_done: int = 0
    at_s: float = 0.0
    clock: ProgressClock | None = None
    """The clock that times the workload, and therefore also tracks the device's progress."""
    operation: str | None = None
    """Name of the collective being timed."""

    def beat(self, *, phase: str | None = None, steps_done: int | None = None) -> None:
        """Report that work is still in progress."""
        self.phase = phase or self.phase
        self.steps_done = self.steps_done if steps_done is None else steps_done
        self.at_s = monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """Reason why the watchdog ended the process."""

    cause: FailureCause
    message: str
    next_step: str
    stacks: str


class Watchdog:
    """Watches this process until it terminates the process or is stopped."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        hang_timeout_s: float,
        parent_pid: int | None,
        on_end: Callable[[LastWords], None],
    ) -> None:
        self._heartbeat = heartbeat
        self._hang_timeout_s = hang_timeout_s
        self._parent_pid = parent_pid
        self._agent_pid = os.getppid()
        self._on_end = on_end
        self._main_thread_id = threading.get_ident()
        self._signals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._resting = threading.Event()
        self._signalled = threading.Event()
        self.end_others: Callable[[], None] = lambda: None
        """Stops everything that this process started and that would outlive it."""

    def start(self) -> None:
        """Take over signal handling and start watching. Call from the main thread.

        The C-level handler writes the signal's number to a pipe immediately, even if the main thread is
        waiting inside a collective and runs no Python code.
        """
        self._heartbeat.beat()
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in ENDING_SIGNALS:
            # started with nohup
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: self._signalled.set())
        threading.Thread(target=self._watch, name="gpuproof-watchdog", daemon=True).start()

    def yield_to_signal(self) -> None:
        """Leave the final record to the watchdog if a signal came first. Call from the main thread.

        When ranks are stopped together, they close each other's connections, so an error after the signal is
        a consequence of it.
        """
        if self._signalled.is_set():
            sleep(ANSWER_S)  # sleeps until the process ends

    def rest(self) -> None:
        """Note that everything has been written; from now on, a signal ends the process without a record."""
        self._resting.set()

    def _watch(self) -> None:
        while True:
            # Never fires while this thread gets the GIL twice a second.
            faulthandler.dump_traceback_later(self._hang_timeout_s + LINGER_S, exit=True)
            ready, _, _ = select.select([self._signals], [], [], POLL_S)
            received = [n for n in os.read(self._signals, 64) if n in ENDING_SIGNALS] if ready else []
            if received:
                name = signal.Signals(received[0]).name
                self._end("interrupted", f"ended by {name}", "Finish the run with --resume")
            if gone := self.parent_gone():
                self._end(*gone, "Finish the run with --resume", linger_s=LINGER_S)
            if not self._resting.is_set():
                self._check_progress()

    def parent_gone(self) -> tuple[FailureCause, str] | None:
        """Report that the launcher, or the agent of several ranks, has exited; None while both are alive.

        If the launcher exits, the run counts as interrupted. If the agent exits, the run does not count as
        interrupted: the launcher is still alive and notices that ranks were lost.
        """
        if self._parent_pid is None:
            return None
        if not process_lives(self._parent_pid):
            return "interrupted", f"the launcher (process {self._parent_pid}) is gone"
        if os.getppid() != self._agent_pid:
            return "lost_rank", f"the process that started this one (process {self._agent_pid}) is gone"
        return None

    def _check_progress(self) -> None:
        silent_s = monotonic() - self._heartbeat.at_s
        if silent_s > self._hang_timeout_s:
            self._end(
                "hang",
                f"no progress for {silent_s:.0f} s in phase {self._heartbeat.phase} "
                f"after {self._heartbeat.steps_done} steps",
                (
                    "The stack shows where; raise distributed.hang_timeout_s if the workload really "
                    "is that slow"
                ),
                linger_s=LINGER_S,
            )

    def _end(self, cause: FailureCause, message: str, next_step: str, *, linger_s: float = 0.0) -> NoReturn:
        try:
            if not self._resting.is_set():
                stacks = self._stacks()
                self._on_end(LastWords(cause=cause, message=message, next_step=next_step, stacks=stacks))
                sleep(linger_s)
        finally:
            self.end_others()
            os._exit(1)

    def _stacks(self) -> str:
        frames = sys._current_frames()
        threads = {t.ident: t.name for t in threading.enumerate()}
        this_thread = threading.get_ident()
        parts = [
            f"thread {threads.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sorted(frames.items(), key=lambda item: item[0] != self._main_thread_id)
            if ident != this_thread
        ]
        return "\n".join(parts)


def process_lives(pid: int) -> bool:
    """Return whether a process on this host is running; zombies, which containers may leave, do not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"


class ProgressClock(Protocol):
    """A step clock that knows how far its device has progressed."""

    def progress(self) -> tuple[int, int, int]:
        """Return how many timed steps were launched, and how many the device started and finished."""


def look_at_progress(clock: ProgressClock | None, *, operation: str | None) -> RankProgress | None:
    """Return the device's progress; None if this process neither times work nor has peers."""
    distributed = sys.modules.get("torch.distributed")
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if clock is None and not in_group:
        return None
    progress = [RankProgress(operation=operation, missing=f"the device did not answer within {ANSWER_S:g} s")]

    def look() -> None:
        if in_group:
            progress[0] = replace(progress[0], **_answer(distributed))
        if clock is not None:
            launched, begun, completed = clock.progress()
            progress[0] = replace(progress[0], launched=launched, begun=begun, completed=completed)
        progress[0] = replace(progress[0], missing=None)

    thread = threading.Thread(target=look, name="gpuproof-progress", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return progress[0]


def _answer(distributed: Any) -> dict[str, Any]:
    """Return torch's operation count, its last operation records, and what NCCL reports."""
    group = distributed.distributed_c10d._get_default_group()
    calls = read_calls(_dump(distributed))
    try:
        count: int | None = int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):  # some backends do not count operations
        count = calls[-1].number if calls else None
    uses_nccl = "nccl" in str(distributed.get_backend())
    return {"collectives": count, "calls": calls, "ras": ask_ras(RAS_ADDRESS) if uses_nccl else None}


def _dump(distributed: Any) -> bytes:
    """Return the flight recorder as JSON; empty if this torch version lacks it, or if it is off."""
    core = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            return bytes(dump())
    return b"{}"


def read_calls(dump: bytes) -> tuple[CollectiveCall, ...]:
    """Read the default group's last operations from a dump of torch's flight recorder.

    Records are parsed leniently, because their fields differ between torch versions.

    >>> read_calls(b'{"entries": [{"collective_seq_id": 7, "profiling_name": "nccl:all_reduce",'
    ...            b' "input_sizes": [[1000]], "state": "started", "process_group": ["0", "default_pg"]}]}')
    (CollectiveCall(number=7, operation='nccl:all_reduce', sizes=((1000,),), state='started'),)
    """
    try:
        entries = parse_json(dump).get("entries", [])
    except (ValueError, AttributeError):
        return ()
    entries_of_all = [entry for entry in entries if _is_of_all_ranks(entry)]
    return tuple(
        CollectiveCall(
            number=entry["collective_seq_id"],
            operation=str(entry.get("profiling_name", "unknown")),
            sizes=tuple(tuple(shape) for shape in entry.get("input_sizes", ())),
            state=entry.get("state"),
        )
        for entry in entries_of_all[-LAST_CALLS:]
    )


def _is_of_all_ranks(entry: Any) -> bool:
    """Return whether a record is a collective of the default group, which torch calls 0."""
    if not isinstance(entry, dict) or not isinstance(entry.get("collective_seq_id"), int):
        return False
    return not entry.get("is_p2p") and (entry.get("process_group") or ["0"])[0] == "0"


def ask_ras(address: tuple[str, int]) -> str | None:
    """Return what NCCL's RAS reports on its communicators and lost peers; None if it is not running."""
    try:
        with socket.create_connection(address, timeout=ANSWER_S / 4) as connection:
            connection.settimeout(ANSWER_S / 2)
            connection.sendall(b"CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n")
            answer = b""
            while len(answer) < RAS_CHARACTERS and (more := connection.recv(4096)):
                answer += more
    except OSError:
        return None
    return answer.decode(errors="replace")[:RAS_CHARACTERS].strip() or None
