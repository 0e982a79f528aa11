"""Joining a launcher that is not ours: a user's torchrun or srun, or RANK and WORLD_SIZE set by hand.

Rank 0 was started by `gpuproof run` and holds the case; it hands the case to the other ranks over the
store at MASTER_ADDR, and begins when each of them has said that it is fit. Launches of one run are counted:
the store of torchrun's agent outlives them, and any other is of one launch, so that a rank may still meet
that of the launch before and tries again. A rank that sees rank 0's folder
(same host, shared disk) writes its journal there; any other keeps it in a temporary folder and gives it
to rank 0 at the end, whichever end that is; the folder then goes, and stays where rank 0 cannot be told.
Data does not go over the store: such a rank has its own host's copy at `data.path` prepared, by a command
that `gpuproof run` gave it.
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
"""Unless `gpuproof run` says otherwise, or `distributed.timeout_s` is less."""
DOWNLOAD_TIMEOUT_S = 3600.0
GATHER_TIMEOUT_S = 60.0
REFUSE_TIMEOUT_S = 15.0
DISMISS_TIMEOUT_S = 30.0
POLL_S = 0.2
CONNECT_S = 10.0
"""Time of one attempt to meet rank 0; between these it is seen whether this rank is still wanted."""
SHARED = "shared"
OVER = "over"


def lead(assignment: Assignment, spec: Any, *, launch: int) -> NoReturn:
    """Hand the case to the other ranks, run rank 0 of it, and collect the journals of all.

    Raises:
        EnvironmentUnfitError: another rank did not come, or its host is not fit to run the case.
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
    """Leave why there is no launch: else those that did come would be taken for lost."""
    failure = failure_from(error, rank=assignment.identity.rank, heartbeat=Heartbeat())
    records = start_record(assignment.identity), replace(failure, phase="launch")
    journal = _journal_path(assignment.identity.rank, assignment.folder)
    journal.write_text("".join(encode(record) + "\n" for record in records), encoding="utf-8")


def dismiss(arguments: Sequence[str]) -> int:
    """`python -m gpuproof.worker dismiss`: tell the ranks that follow that there is no further case."""
    parser = argparse.ArgumentParser(prog="gpuproof.worker dismiss", description=dismiss.__doc__)
    parser.add_argument("--launch", type=int, required=True, metavar="N", help="the number after the last")
    launch = parser.parse_args(arguments).launch
    try:
        meeting = _open_store(DISMISS_TIMEOUT_S)
    except RuntimeError as error:  # torch's: ranks that have ended by themselves, or are cut off
        raise EnvironmentUnfitError(
            f"the other ranks were not told that it is over: {error}", place="MASTER_ADDR"
        ) from error
    ranks = range(1, identity_from(os.environ).world_size)
    late = _tell_ranks(meeting, ranks, {"launch": launch, OVER: True}, patience_s=DISMISS_TIMEOUT_S)
    if late:
        raise EnvironmentUnfitError(
            f"{_named(late)} did not hear within {DISMISS_TIMEOUT_S:.0f} s that it is over",
            place="MASTER_ADDR",
            next_step="End what is left of them yourself",
        )
    return 0


def _tell_ranks(
    meeting: Any, ranks: Sequence[int], message: Mapping[str, Any], *, patience_s: float
) -> list[int]:
    """Tell the other ranks why no case follows, and wait until they have read it; return who has not."""
    with suppress(RuntimeError):  # torch's: the store is gone with who held it
        meeting.set("assignment", json.dumps(message))
        return _late(_of_launch(meeting, message["launch"]), ranks, patience_s=patience_s)
    return list(ranks)


def _late(store: Any, ranks: Sequence[int], *, patience_s: float) -> list[int]:
    """Wait until all have begun, or one says that it cannot, or time is up; return who has not begun."""
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
    """Wait until all ranks have begun; return the first line of the journals that do not lie here."""
    late = _late(store, ranks, patience_s=patience_s)
    messages = {rank: json.loads(store.get(f"begun/{rank}")) for rank in ranks if rank not in late}
    for rank, message in messages.items():
        if message["unfit"] is not None:
            raise EnvironmentUnfitError(f"rank {rank} on {message['host']}: {message['unfit']}")
    if late:
        raise EnvironmentUnfitError(
            f"{_named(late)} did not come to MASTER_ADDR within {patience_s:.0f} s",
            place="launch",
            next_step="Look at its own output; gpuproof doctor --multi-node looks at the way there",
        )
    return [(rank, message["start"]) for rank, message in messages.items() if message["start"] is not None]


def _patience_s(case: Case) -> float:
    """Return how long other hosts may take to be fit: those without the shared disk may have to download."""
    if case.data_file is not None and case.model_work.data.download:
        return DOWNLOAD_TIMEOUT_S
    return min(JOIN_TIMEOUT_S, case.work.parallel.timeout_s)


def _store_journal(content: str, rank: int, folder: Path) -> None:
    if content != SHARED:
        _journal_path(rank, folder).write_text(content, encoding="utf-8")


def _journal_path(rank: int, folder: Path) -> Path:
    return folder / f"rank-{rank}.jsonl"


def join(arguments: Sequence[str]) -> int:
    """`python -m gpuproof.worker join`: wait for rank 0's case, then run this rank of it.

    Returns only where there is none: it is over.

    Raises:
        EnvironmentUnfitError: rank 0 did not come, or a host is not fit to run the case.
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
    """Run this rank of rank 0's case.

    Raises:
        EnvironmentUnfitError: rank 0's host or this one is not fit for it.
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
    """Return the store and what rank 0 says of the launch that is asked for, or of a later one.

    Raises:
        EnvironmentUnfitError: it says nothing in time, or nobody waits for this rank any more.
    """
    deadline_s = monotonic() + options.patience_s
    last = ""
    while monotonic() < deadline_s:
        if options.parent_pid is not None and not process_lives(options.parent_pid):
            raise EnvironmentUnfitError(
                f"the process that this rank belongs to ({options.parent_pid}) is gone"
            )
        try:
            meeting = _open_store(min(CONNECT_S, options.patience_s))
            message = _message_of(meeting, options, deadline_s)
        except RuntimeError as error:  # torch's: nobody there yet, or the store was of the launch before
            if not last:
                text = "rank {RANK} of {WORLD_SIZE} waits for rank 0 at {MASTER_ADDR}:{MASTER_PORT}"
                sys.stderr.write(f"gpuproof: {text.format_map(os.environ)}\n")
            last = str(error).partition("\n")[0]
            sleep(POLL_S)
            continue
        if message is not None:
            meeting.set_timeout(timedelta(seconds=options.patience_s))
            return meeting, message
    raise EnvironmentUnfitError(
        f"rank 0 gave no case within {options.patience_s:.0f} s ({last or 'no answer'})",
        place="MASTER_ADDR",
        next_step="Look at rank 0's output; gpuproof doctor --multi-node looks at the way there",
    )


def _message_of(meeting: Any, options: argparse.Namespace, deadline_s: float) -> dict[str, Any] | None:
    """Return what rank 0 says at this store; None where time is up, or nobody waits for it."""
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
    """Gives this rank's journal to rank 0, and removes the folder that held it once that has it."""

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
    """Return rank 0's folder where this host sees it, else a temporary one with its own copy of the data."""
    folder = Path(message["folder"])
    if _shares_folder(folder, message["spec"]):
        return True, folder
    folder = Path(tempfile.mkdtemp(prefix="gpuproof-")) / "cases" / "case" / "replicate"
    folder.mkdir(parents=True)
    sys.stderr.write(f"gpuproof: rank {identity.rank} keeps its records in {folder} until the end\n")
    _prepare_local_data(message["spec"], folder, world_size=identity.world_size, command=prepare_data)
    return False, folder


def _check_host(store: Any, rank: int) -> None:
    """Tell rank 0 as well why this host cannot take part, so that nobody waits for it."""
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
    parser.add_argument("--tell", type=int, metavar="FD", help="where to write which launch it is")
    parser.add_argument("--parent-pid", type=int, help="end when this process of the same host is gone")
    return parser.parse_args(arguments)


def _open_store(patience_s: float) -> Any:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise EnvironmentUnfitError(
            f"WORLD_SIZE is set and {' and '.join(missing)} is not",
            place="environment",
            next_step="Set them to the host and a free port of rank 0, the same for all ranks",
        )
    import_torch()
    from torch.distributed.distributed_c10d import PrefixStore

    from gpuproof.worker.parallel.distributed import open_store

    return PrefixStore("gpuproof-case", open_store(patience_s, awaits_all=False))


def _of_launch(meeting: Any, launch: int) -> Any:
    """Return the part of the store in which ranks of one launch talk."""
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore(f"launch-{launch}", meeting)


def _shares_folder(folder: Path, spec: Any) -> bool:
    try:
        return bool(json.loads((folder / "spec.json").read_text(encoding="utf-8")) == spec)
    except (OSError, ValueError):
        return False


def _prepare_local_data(spec: Any, folder: Path, *, world_size: int, command: Sequence[str] | None) -> None:
    """Have this host's own copy of the case's data prepared, if it has any, in the run folder.

    The node side reads no data set's own files; the control side does, so `command` starts that one. What
    goes wrong is said on standard error; the rank then ends for want of the file, as a record.
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
            f"gpuproof: this host does not see rank 0's disk, and no copy of its own can be used: {message}\n"
        )
