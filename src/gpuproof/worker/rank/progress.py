"""How far this rank's device has come: asked by the watchdog when nothing goes on any more.

A host that waits for its device looks alive while every device spins. So the device's own marks are read, and
torch's count and flight recorder of collective operations. Everything is asked from a thread of its own under
a deadline, since a driver in trouble may not answer.
"""

from __future__ import annotations

import socket
import sys
import threading
from dataclasses import replace
from typing import Any, Protocol

from gpuproof.base.outside import parse_json
from gpuproof.records.progress import CollectiveCall, RankProgress

ANSWER_S = 2.0
"""For a driver, or NCCL, to answer."""
LAST_CALLS = 3
RAS_ADDRESS = ("localhost", 28028)
"""Where NCCL (2.24 and later) listens unless NCCL_RAS_ADDR says otherwise."""
RAS_CHARACTERS = 8_000


class ProgressClock(Protocol):
    """A step clock that knows what its device has reached."""

    def progress(self) -> tuple[int, int, int]:
        """Return how many timed steps were launched, begun by the device, and done by it."""


def look_at_progress(clock: ProgressClock | None, *, operation: str | None) -> RankProgress | None:
    """Return how far the device has come; None where this process neither times nor talks to other ranks."""
    distributed = sys.modules.get("torch.distributed")
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if clock is None and not in_group:
        return None
    progress = [RankProgress(operation=operation, missing=f"the device did not answer within {ANSWER_S:g} s")]

    def look() -> None:
        if in_group:
            progress[0] = replace(progress[0], **_answer(distributed))
        if clock is not None:
            progress[0] = replace(progress[0], **_reached(clock))
        progress[0] = replace(progress[0], missing=None)

    thread = threading.Thread(target=look, name="gpuproof-progress", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return progress[0]


def _reached(clock: ProgressClock) -> dict[str, Any]:
    launched, begun, completed = clock.progress()
    return {"launched": launched, "begun": begun, "completed": completed}


def _answer(distributed: Any) -> dict[str, Any]:
    """Return torch's count of operations, its last records of them, and what NCCL says."""
    group = distributed.distributed_c10d._get_default_group()
    calls = read_calls(_dump(distributed))
    try:
        count: int | None = int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):  # a backend that does not count
        count = calls[-1].number if calls else None
    uses_nccl = "nccl" in str(distributed.get_backend())
    return {"collectives": count, "calls": calls, "ras": ask_ras(RAS_ADDRESS) if uses_nccl else None}


def _dump(distributed: Any) -> bytes:
    """Return the flight recorder as JSON; nothing where this torch has none, or it is off."""
    core = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            return bytes(dump())
    return b"{}"


def read_calls(dump: bytes) -> tuple[CollectiveCall, ...]:
    """Read the last operations of the default group from a dump of torch's flight recorder.

    Records are read leniently: their fields differ from version to version.

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
    """Say whether a record is of a collective of the default group: the first one, which torch calls 0."""
    if not isinstance(entry, dict) or not isinstance(entry.get("collective_seq_id"), int):
        return False
    return not entry.get("is_p2p") and (entry.get("process_group") or ["0"])[0] == "0"


def ask_ras(address: tuple[str, int]) -> str | None:
    """Return what NCCL's RAS says of its communicators and lost peers; None where nothing listens."""
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
