"""The run directory, as `layout` says: written whole or not at all.

An attempt that did not finish is moved aside before the case is launched again, so that nothing that was
measured is ever overwritten.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.files import open_lock, place_inside, replacing
from gpuproof.readings.parsing import fast_json, indented
from gpuproof.records.case import CASE_SCHEMA_VERSION, Case, Placed
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords, without_contradictions, without_copies
from gpuproof.records.journal import SCHEMA_VERSION, Journal, has_writer, read_journal
from gpuproof.records.result import RESULT_SCHEMA_VERSION, Result
from gpuproof.store import layout
from gpuproof.store.versions import DescribedRun, read_json, read_versioned, upgrade_case

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
ORPHAN_POLL_S = 0.1
DESCRIBED = ("config", "created", "run_id", "gpuproof_version", "commit_hash", "origins", "source")
"""Without these, run.json describes no run."""


class RunDirectory:
    """One run on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._held: tuple[int, weakref.finalize[..., RunDirectory]] | None = None
        """The lock of a run that was made, until a block wants it, or the run is forgotten."""
        self._description: dict[str, Any] | None = None
        self.config: RunConfig | None = None
        """What was asked, once `read_config` has read it."""

    @classmethod
    def create(cls, save_dir: Path, experiment: str, run_id: str, *, held: bool = False) -> RunDirectory:
        """Make the directory of a new run; `held`: locked by this process before anybody can see it.

        Raises:
            UsageError: the run exists already, or the place cannot be written.
        """
        run = cls(save_dir / experiment / run_id)
        aside = run.root.with_name(f".{secrets.token_hex(8)}.part")
        try:
            (aside / layout.CASES).mkdir(parents=True)
            if held:
                handle = open_lock(aside / layout.LOCK)
                run._held = handle, weakref.finalize(run, os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside.rename(run.root)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if os.path.lexists(run.root):
                raise _already_there(run.root) from error
            raise EnvironmentUnfitError(
                f"cannot be written: {error.strerror}", place=str(run.root), next_step="Set run.save_dir"
            ) from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open a run that exists.

        Raises:
            UsageError: there is none at `path`.
        """
        if not (path / layout.DESCRIPTION).is_file():
            raise UsageError(
                "not a run directory: it holds no run.json",
                place=str(path),
                next_step=f"`gpuproof monitor show {path}` shows a recording"
                if path.is_file()
                else "`gpuproof runs` lists the runs that there are",
            )
        return cls(path)

    def _taken_lock(self) -> int:
        held, self._held = self._held, None
        return held[0] if held and held[1].detach() else _lock_file(self.root / layout.LOCK)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises:
            UsageError: another process works on it.
        """
        with needing_room(self.root), os.fdopen(self._taken_lock()) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    "another process is working on this run", place=str(self.root), next_step="Let it end"
                ) from error
            yield

    def wait_for_writers(self, timeout_s: float) -> None:
        """Wait until no rank of an earlier campaign writes here: orphans notice, and end, in about a second.

        Raises:
            UsageError: one is still there after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        folders = (self.root / layout.CASES).glob("*/*")
        for journal in (path for folder in folders for path in layout.rank_journals(folder)):
            while has_writer(journal):
                if time.monotonic() > deadline_s:
                    raise UsageError(
                        "a rank of an earlier launch is still writing it",
                        place=str(journal),
                        next_step="End that process: the first line of the file has its host and pid",
                    )
                time.sleep(ORPHAN_POLL_S)

    def write_description(self, description: Mapping[str, Any]) -> None:
        """Write run.json."""
        self.write_json(layout.DESCRIPTION, {"schema_version": SCHEMA_VERSION, **description})
        self._description = self.config = None

    def description(self) -> dict[str, Any]:
        """Return run.json, which is read once.

        Raises:
            RecordError: it is damaged or of a newer schema.
        """
        if self._description is not None:
            return self._description
        path = self.root / layout.DESCRIPTION
        content = read_versioned(path, "the description of a run", newest=SCHEMA_VERSION)
        lacking = [key for key in DESCRIBED if key not in content]
        if lacking:
            raise RecordError(
                f"lacks {', '.join(lacking)}", place=str(path), next_step="It was changed or cut"
            )
        from_json(DescribedRun, content, place=str(path))
        self._description = content
        return content

    def case_folder(self, case: Case) -> Path:
        """Return where a launch keeps its files."""
        return self.root / layout.launch_path(case.case_id, case.replicate)

    def recording_at(self, case: Case, host: str) -> Path:
        """Return where what was read of a host beside a launch lies, if anything was."""
        return place_inside(self.case_folder(case), layout.recording_name(host))

    def begin_case(self, case: Case) -> Path:
        """Make the folder of a launch with its spec; an unfinished attempt is moved aside."""
        folder = self.case_folder(case)
        if folder.exists():
            attempt = 1
            while (aside := folder.with_name(f"{folder.name}{layout.ASIDE}{attempt}")).exists():
                attempt += 1
            folder.rename(aside)
        folder.mkdir(parents=True)
        write_whole(folder / layout.SPEC, indented(to_json(case)) + "\n")
        return folder

    def add_record(self, folder: Path, record: Any) -> None:
        """Add a record of the launcher's own to a launch."""
        append_record(folder, record)

    def write_placed(self, folder: Path, placed: Placed) -> None:
        """Write down where a launch really ran."""
        write_whole(folder / layout.PLACED, indented(to_json(placed)) + "\n")

    def read_result(self) -> Result | None:
        """Read result.json; None where there is none.

        Raises:
            RecordError: it is damaged or of a newer schema.
        """
        path = self.root / layout.RESULT
        if not path.exists():
            return None
        return from_json(
            Result, read_versioned(path, "the result of a run", newest=RESULT_SCHEMA_VERSION), place=str(path)
        )

    def cases(self) -> list[CaseRecords]:
        """Read every launch of the run, the latest attempt of each, by case and replicate.

        Of one whose records contradict each other, or which is a copy, a note takes the place of the records.

        Raises:
            RecordError: a file is damaged elsewhere than at its end.
        """
        folders = [spec.parent for spec in (self.root / layout.CASES).glob(f"*/*/{layout.SPEC}")]
        launched = [_read_launch(folder) for folder in folders if layout.ASIDE not in folder.name]
        launched.sort(key=lambda records: (records.case.case_id, records.case.replicate))
        return list(without_copies(without_contradictions(launched)))

    def write_json(self, name: str, content: Any) -> Path:
        """Write one of the run's files as JSON."""
        return self.write_text(name, indented(to_json(content)) + "\n")

    def write_text(self, name: str, content: str) -> Path:
        """Write one of the run's files."""
        path = self.place(name)
        write_whole(path, content)
        return path

    def place(self, name: str) -> Path:
        """Return where a file of the run lies, with the folders on the way to it.

        Raises:
            RecordError: the name, or a link in a folder that came from elsewhere, leads out of the run.
            EnvironmentUnfitError: the folders cannot be made.
        """
        path = place_inside(self.root, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_written(error, path) from error
        return path


def read_case(folder: Path) -> CaseRecords:
    """Read what a launch left in its folder, salvaging what a killed process was about to write.

    Raises:
        RecordError: a file is damaged elsewhere than at its end, or records contradict each other.
    """
    records = _read_launch(folder)
    if (impossible := records.first_contradiction) is not None:
        next_step = "Its journals were changed: copy them from where they were written"
        raise RecordError(impossible, place=str(folder), next_step=next_step)
    return records


def _read_launch(folder: Path) -> CaseRecords:
    spec = folder / layout.SPEC
    content = upgrade_case(read_versioned(spec, "a case", newest=CASE_SCHEMA_VERSION))
    case = from_json(Case, content, place=str(spec))
    launch, _, _ = folder.name.partition(layout.ASIDE)
    if (folder.parent.name, launch) != (case.case_id, str(case.replicate)):
        raise RecordError(
            f"it is of the launch {case.case_id}/{case.replicate}, and lies in another's folder",
            place=str(spec),
            next_step="Copy the run again from where it was written",
        )
    journal_paths = (folder / layout.LAUNCHER_JOURNAL, *layout.rank_journals(folder))
    journals = [read_journal(path, parse=fast_json) for path in journal_paths if path.exists()]
    placed = folder / layout.PLACED
    return CaseRecords(
        case=case,
        records=tuple(record for journal in journals for record in journal.records),
        torn=tuple(journal.torn for journal in journals if journal.torn),
        placed=from_json(Placed, read_json(placed), place=str(placed)) if placed.exists() else None,
    )


def set_damaged_aside(folder: Path) -> None:
    """Rename the journals of a launch that cannot be read, so that the others can."""
    for journal in folder.glob("*.jsonl"):
        try:
            read_journal(journal)
        except (RecordError, OSError):  # noqa: PERF203  # each file is judged by itself
            _rename_damaged(journal)
    try:
        read_case(folder)
    except RecordError:  # each can be read, and they contradict each other
        for journal in layout.rank_journals(folder):
            _rename_damaged(journal)


def _rename_damaged(journal: Path) -> None:
    journal.rename(journal.with_name(f"{journal.name}{layout.DAMAGED}"))


def append_record(folder: Path, record: Any) -> None:
    """Add a record of the launcher's own to a launch."""
    journal = Journal(folder / layout.LAUNCHER_JOURNAL)
    journal.append_last_words(record)
    journal.close()


def write_whole(path: Path, content: str) -> None:
    """Write a file aside and rename it, so that a reader finds all of it or nothing.

    Raises:
        EnvironmentUnfitError: the disk is full, or the place cannot be written.
    """
    with needing_room(path):
        try:
            with replacing(path) as place:
                place.write_text(content, encoding="utf-8")
        except OSError as error:
            if error.errno in FULL_DISK:
                raise
            raise _not_written(error, path) from error


def _not_written(error: OSError, path: Path) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"cannot be written: {error.strerror}",
        place=str(path),
        next_step="Copy the run to a place of your own",
    )


def _already_there(root: Path) -> UsageError:
    """Say what lies where a new run was to be made."""
    if _is_locked(root / layout.LOCK):
        return UsageError(
            "a run of that name is under way: another process works on it",
            place=str(root),
            next_step="Let it end, or choose another run.run_id",
        )
    resumable = (root / layout.DESCRIPTION).is_file()
    way_on = f"Finish it with `{resume_command(root)}`" if resumable else "Remove it"
    return UsageError(
        "there is a run of that name already" if resumable else "is there already, and holds no run",
        place=str(root),
        next_step=f"{way_on}, or choose another run.run_id",
    )


def _is_locked(path: Path) -> bool:
    """Say whether a process holds a lock that is there; none is made."""
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_file(path: Path) -> int:
    try:
        return open_lock(path)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise
        raise _not_written(error, path) from error


@contextmanager
def needing_room(place: Path) -> Iterator[None]:
    """Say of a full disk, wherever in the block it shows, that it is full and what to do.

    Raises:
        EnvironmentUnfitError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise EnvironmentUnfitError(
            "the disk is full",
            place=str(place),
            next_step="Free some room; what was measured is kept, finish the run with --resume",
        ) from error


def resume_command(root: Path, *, command: str = "run") -> str:
    """Return the command that finishes a run, as it can be pasted into a shell."""
    return shlex.join(["gpuproof", command, "--resume", str(root)])


def default_run_id(now: datetime) -> str:
    """Name a run after its start in UTC and this process, as in run_20261120T133012_4711."""
    return f"run_{now:%Y%m%dT%H%M%S}_{os.getpid()}"


def list_runs(save_dir: Path) -> list[RunDirectory]:
    """Return the runs under `save_dir`, newest first."""
    paths = sorted(save_dir.glob("*/*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [RunDirectory(path.parent) for path in paths]
