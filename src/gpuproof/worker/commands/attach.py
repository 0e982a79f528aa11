"""Join a user's own launcher: torchrun or srun, or RANK and WORLD_SIZE set by hand.

`gpuproof run` starts rank 0, which receives the case. Rank 0 passes the case to the other ranks over the
store at MASTER_ADDR, and starts once each of them has reported that it is ready. The launches of a run are
numbered, because the store of torchrun's agent outlives them. Any other store serves only one launch, so a
rank may still connect to the previous launch's store, and then retries. A rank that can access rank 0's
folder (same host, shared disk) writes its journal there. Any other rank writes its journal to a temporary
folder and sends it to rank 0 when the rank exits, whatever the reason. The folder is then removed, unless
rank 0 cannot be reached. Data sets are not sent over the store: such a rank prepares its own host's copy at
`data.path`, with a command that it gets from `gpuproof run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.processes.start import safe_environment
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.records.journal import encode
from gpuproof.worker.host.fabric import check_named_interfaces
from gpuproof.worker.rank.assignment import Assignment, import_torch, run_assignment, start_record
from gpuproof.worker.rank.failure import collect_last_words, failure_from, hand_over_last_words
from gpuproof.worker.rank.identity import RankIdentity, identity_from
from gpuproof.worker.rank.watchdog import Heartbeat, process_lives

JOIN_TIMEOUT_S = 300.0
"""Default, unless `gpuproof run` specifies another timeout or `distributed.timeout_s` is less."""
DOWNLOAD_TIMEOUT_S = 3600.0
GATHER_TIMEOUT_S = 60.0
REFUSE_TIMEOUT_S = 15.0
DISMISS_TIMEOUT_S = 30.0
POLL_S = 0.2
CONNECT_S = 10.0
"""Timeout of one attempt to reach rank 0; between attempts, this rank checks whether it is still needed."""
SHARED = "shared"
OVER = "over"


def lead(assignment: Assignment, spec: Any, *, launch: int) -> NoReturn:
    """Pass the case to the other ranks, run it as rank 0, and collect the journals of all ranks.

    Raises:
        EnvironmentUnfitError: another rank did not join, or its host is not fit to run the case.
    """
    ranks = range(1, assignment.identity.world_size)
    patience_s = _patience_s(assignment.case)
    meeting = _open_store(patience_s)
    store = _of_launch(meeting, launch)
    try:
        check_named_interfaces(os.environ)
    except EnvironmentUnfitError as error:
        reason = f"rank 0 on {socket.gethostname()}: {error}"
        _tell_ranks(meeting, ranks, {"launch": launch, "unfit": reason}, patience_s=REFUSE_TIMEOUT_S)
        raise
    folder = str(assignment.folder.resolve())
    message = {"launch": launch, "spec": spec, "folder": folder, "unfit": None}
    meeting.set("assignment", json.dumps(message))
    try:
        begun = _await_others(store, ranks, patience_s=patience_s)
    except EnvironmentUnfitError as error:
        _write_refusal(assignment, error)
        raise
    for rank, start in begun:
        _journal_path(rank, assignment.folder).write_text(start, encoding="utf-8")

    def gather(journal: Path) -> None:
        for rank in ranks:
            store.wait([f"journal/{rank}"], timedelta(seconds=GATHER_TIMEOUT_S))
            _store_journal(store.get(f"journal/{rank}").decode(), rank, journal.parent)

    def gather_last_words(journal: Path) -> None:
        for rank, content in collect_last_words(store, ranks):
            _store_journal(content, rank, journal.parent)

    run_assignment(replace(assignment, store=store, on_done=gather, on_failure=gather_last_words))


def _write_refusal(assignment: Assignment, error: EnvironmentUnfitError) -> None:
    """Record why there is no launch; otherwise the ranks that joined would count as lost."""
    failure = failure_from(error, rank=assignment.identity.rank, heartbeat=Heartbeat())
    records = start_record(assignment.identity), replace(failure, phase="launch")
    journal = _journal_path(assignment.identity.rank, assignment.folder)
    journal.write_text("".join(encode(record) + "\n" for record in records), encoding="utf-8")


def dismiss(arguments: Sequence[str]) -> int:
    """`python -m gpuproof.worker dismiss`: tell the waiting ranks that there are no more cases."""
    parser = argparse.ArgumentParser(prog="gpuproof.worker dismiss", description=dismiss.__doc__)
    parser.add_argument("--launch", type=int, required=True, metavar="N", help="the number after the last")
    launch = parser.parse_args(arguments).launch
    try:
        meeting = _open_store(DISMISS_TIMEOUT_S)
    except RuntimeError as error:  # raised by torch: these ranks have already exited, or are disconnected
        raise EnvironmentUnfitError(
            f"the other ranks were not told that the run is over: {error}", place="MASTER_ADDR"
        ) from error
    ranks = range(1, identity_from(os.environ).world_size)
    late = _tell_ranks(meeting, ranks, {"launch": launch, OVER: True}, patience_s=DISMISS_TIMEOUT_S)
    if late:
        raise EnvironmentUnfitError(
            f"{_named(late)} did not learn within {DISMISS_TIMEOUT_S:.0f} s that the run is over",
            place="MASTER_ADDR",
            next_step="Stop the remaining ranks yourself",
        )
    return 0


def _tell_ranks(
    meeting: Any, ranks: Sequence[int], message: Mapping[str, Any], *, patience_s: float
) -> list[int]:
    """Tell other ranks why they get no case; wait until they read it, and return those that have not."""
    with suppress(RuntimeError):  # raised by torch: the store went down with the process that hosted it
        meeting.set("assignment", json.dumps(message))
        return _late(_of_launch(meeting, message["launch"]), ranks, patience_s=patience_s)
    return list(ranks)


def _late(store: Any, ranks: Sequence[int], *, patience_s: float) -> list[int]:
    """Wait until all have started, one reports that it cannot, or time is up; return those missing."""
    deadline_s, late = monotonic() + patience_s, list(ranks)
    while True:
        begun = [rank for rank in late if store.check([f"begun/{rank}"])]
        late = [rank for rank in late if rank not in begun]
        is_unfit = any(json.loads(store.get(f"begun/{rank}"))["unfit"] is not None for rank in begun)
        if not late or is_unfit or monotonic() > deadline_s:
            return late
        sleep(POLL_S)


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{more}"


def _await_others(store: Any, ranks: Sequence[int], *, patience_s: float) -> list[tuple[int, str]]:
    """Wait until all ranks have started; return the first line of each journal not stored here."""
    late = _late(store, ranks, patience_s=patience_s)
    messages = {rank: json.loads(store.get(f"begun/{rank}")) for rank in ranks if rank not in late}
    for rank, message in messages.items():
        if message["unfit"] is not None:
            raise EnvironmentUnfitError(f"rank {rank} on {message['host']}: {message['unfit']}")
    if late:
        raise EnvironmentUnfitError(
            f"{_named(late)} did not reach MASTER_ADDR within {patience_s:.0f} s",
            place="launch",
            next_step="Check its output; gpuproof doctor --multi-node checks the connection",
        )
    return [(rank, message["start"]) for rank, message in messages.items() if message["start"] is not None]


def _patience_s(case: Case) -> float:
    """Return how long to wait for other hosts; without a shared disk, they may have to download data."""
    if case.data_file is not None and case.model_work.data.download:
        return DOWNLOAD_TIMEOUT_S
    return min(JOIN_TIMEOUT_S, case.work.parallel.timeout_s)


def _store_journal(content: str, rank: int, folder: Path) -> None:
    if content != SHARED:
        _journal_path(rank, folder).write_text(content, encoding="utf-8")


def _journal_path(rank: int, folder: Path) -> Path:
    return folder / f"rank-{rank}.jsonl"


def join(arguments: Sequence[str]) -> int:
    """`python -m gpuproof.worker join`: wait for rank 0's case, then run it as this rank.

    Returns only if there are no more cases: the run is over.

    Raises:
        EnvironmentUnfitError: rank 0 did not respond, or a host is not fit to run the case.
    """
    options = _join_options(arguments)
    identity = identity_from(os.environ)
    meeting, message = _await_assignment(options)
    store = _of_launch(meeting, message["launch"])
    is_over = message.get(OVER, False)
    if options.tell is not None:
        os.write(options.tell, (OVER if is_over else str(message["launch"])).encode())
    if is_over:
        store.set(f"begun/{identity.rank}", _begun())
        return 0
    return _take_part(store, message, options, identity)


def _take_part(store: Any, message: Any, options: argparse.Namespace, identity: RankIdentity) -> NoReturn:
    """Run rank 0's case as this rank.

    Raises:
        EnvironmentUnfitError: rank 0's host or this host cannot run it.
    """
    if message["unfit"] is not None:
        store.set(f"begun/{identity.rank}", _begun(unfit=message["unfit"]))
        raise EnvironmentUnfitError(message["unfit"])
    _check_host(store, identity.rank)
    shared, folder = _choose_folder(message, options.prepare_data, identity)
    start = None if shared else encode(start_record(identity)) + "\n"
    store.set(f"begun/{identity.rank}", _begun(start=start))

    journals = _JournalGiver(store, identity.rank, shared=shared)
    run_assignment(
        Assignment(
            case=from_json(Case, message["spec"], place="rank 0's case"),
            identity=identity,
            folder=folder,
            run_folder=folder.parents[2],
            parent_pid=options.parent_pid,
            store=store,
            on_done=journals.give,
            on_failure=journals.give_failed,
        )
    )


def _await_assignment(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the store and rank 0's message about the requested launch or a later one.

    Raises:
        EnvironmentUnfitError: no message arrives in time, or this rank is no longer needed.
    """
    deadline_s = monotonic() + options.patience_s
    last = ""
    while monotonic() < deadline_s:
        if options.parent_pid is not None and not process_lives(options.parent_pid):
            raise EnvironmentUnfitError(f"the parent process of this rank ({options.parent_pid}) has exited")
        try:
            meeting = _open_store(min(CONNECT_S, options.patience_s))
            message = _message_of(meeting, options, deadline_s)
        # raised by torch: nothing is listening yet, or this is still the previous launch's store
        except RuntimeError as error:
            if not last:
                text = "rank {RANK} of {WORLD_SIZE} is waiting for rank 0 at {MASTER_ADDR}:{MASTER_PORT}"
                sys.stderr.write(f"gpuproof: {text.format_map(os.environ)}\n")
            last = str(error).partition("\n")[0]
            sleep(POLL_S)
            continue
        if message is not None:
            meeting.set_timeout(timedelta(seconds=options.patience_s))
            return meeting, message
    raise EnvironmentUnfitError(
        f"rank 0 did not send a case within {options.patience_s:.0f} s ({last or 'no answer'})",
        place="MASTER_ADDR",
        next_step="Check rank 0's output; gpuproof doctor --multi-node checks the connection",
    )


def _message_of(meeting: Any, options: argparse.Namespace, deadline_s: float) -> dict[str, Any] | None:
    """Return rank 0's message from this store; None if time is up, or this rank is no longer needed."""
    while monotonic() < deadline_s:
        if meeting.check(["assignment"]):
            message: dict[str, Any] = json.loads(meeting.get("assignment"))
            if message["launch"] >= options.launch:
                return message
        if options.parent_pid is not None and not process_lives(options.parent_pid):
            return None
        sleep(POLL_S)
    return None


@dataclass(frozen=True)
class _JournalGiver:
    """Sends this rank's journal to rank 0, then removes the folder that contained it."""

    store: Any
    rank: int
    shared: bool

    def give(self, journal: Path) -> None:
        self.store.set(f"journal/{self.rank}", self._content(journal))
        self._remove(journal)

    def give_failed(self, journal: Path) -> None:
        if hand_over_last_words(self.store, self.rank, self._content(journal)):
            self._remove(journal)

    def _content(self, journal: Path) -> str:
        return SHARED if self.shared else journal.read_text(encoding="utf-8")

    def _remove(self, journal: Path) -> None:
        if not self.shared:
            shutil.rmtree(journal.parents[3], ignore_errors=True)


def _choose_folder(
    message: Any, prepare_data: Sequence[str] | None, identity: RankIdentity
) -> tuple[bool, Path]:
    """Return rank 0's folder if this host can access it, else a temporary one with its own data copy."""
    folder = Path(message["folder"])
    if _shares_folder(folder, message["spec"]):
        return True, folder
    folder = Path(tempfile.mkdtemp(prefix="gpuproof-")) / "cases" / "case" / "replicate"
    folder.mkdir(parents=True)
    sys.stderr.write(f"gpuproof: rank {identity.rank} stores its records in {folder} until the end\n")
    _prepare_local_data(message["spec"], folder, world_size=identity.world_size, command=prepare_data)
    return False, folder


def _check_host(store: Any, rank: int) -> None:
    """If this host cannot take part, also tell rank 0 why, so that no rank waits for it."""
    try:
        check_named_interfaces(os.environ)
    except EnvironmentUnfitError as error:
        store.set(f"begun/{rank}", _begun(unfit=str(error)))
        raise


def _begun(*, start: str | None = None, unfit: str | None = None) -> str:
    return json.dumps({"host": socket.gethostname(), "start": start, "unfit": unfit})


def _join_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpuproof.worker join", description=join.__doc__)
    parser.add_argument(
        "--patience-s", type=float, default=JOIN_TIMEOUT_S, metavar="S", help="how long to wait for rank 0"
    )
    parser.add_argument(
        "--prepare-data", type=json.loads, metavar="JSON", help="words of the command that prepares data here"
    )
    parser.add_argument("--launch", type=int, default=0, metavar="N", help="the first launch to take part in")
    parser.add_argument("--tell", type=int, metavar="FD", help="where to write the number of the launch")
    parser.add_argument("--parent-pid", type=int, help="stop when this process on the same host has exited")
    return parser.parse_args(arguments)


def _open_store(patience_s: float) -> Any:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise EnvironmentUnfitError(
            f"WORLD_SIZE is set but {' and '.join(missing)} is not",
            place="environment",
            next_step="Set them to the host and a free port of rank 0, the same for all ranks",
        )
    import_torch()
    from torch.distributed.distributed_c10d import PrefixStore

    from gpuproof.worker.parallel.distributed import open_store

    return PrefixStore("gpuproof-case", open_store(patience_s, awaits_all=False))


def _of_launch(meeting: Any, launch: int) -> Any:
    """Return the section of the store through which the ranks of one launch communicate."""
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore(f"launch-{launch}", meeting)


def _shares_folder(folder: Path, spec: Any) -> bool:
    try:
        return bool(json.loads((folder / "spec.json").read_text(encoding="utf-8")) == spec)
    except (OSError, ValueError):
        return False


def _prepare_local_data(spec: Any, folder: Path, *, world_size: int, command: Sequence[str] | None) -> None:
    """Prepare this host's own copy of the case's data in the run folder, if the case uses data.

    The node side does not read the original files of a data set. The control side does, so `command` starts
    the control side. Errors go to standard error; the rank then fails because the file is missing, and this
    failure is recorded.
    """
    case = from_json(Case, spec, place="rank 0's case")
    if case.data_file is None or command is None:
        return
    written = folder / "spec.json"
    written.write_text(json.dumps(spec), encoding="utf-8")
    result = subprocess.run(
        [*command, str(written), str(folder.parents[2]), str(world_size)],
        env=safe_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        message = (result.stderr.strip().splitlines() or ["it ended without an error message"])[-1]
        sys.stderr.write(
            f"gpuproof: this host cannot access rank 0's disk, and cannot use a copy of its own: {message}\n"
        )
