"""Run directories, as described in `layout`; files are written atomically.

An unfinished attempt is moved aside before the case is launched again, so that no measurement is ever
overwritten.
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
"""Keys that run.json must contain to describe a run."""


class RunDirectory:
    """The directory of a run on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._held: tuple[int, weakref.finalize[..., RunDirectory]] | None = None
        """The lock on a newly created run, until a with-block takes it over or the run is discarded."""
        self._description: dict[str, Any] | None = None
        self.config: RunConfig | None = None
        """The run's config, once `read_config` has read it."""

    @classmethod
    def create(cls, save_dir: Path, experiment: str, run_id: str, *, held: bool = False) -> RunDirectory:
        """Create a new run directory; with `held`, this process locks it before it becomes visible.

        Raises:
            UsageError: the run exists already, or the location is not writable.
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
        """Open an existing run.

        Raises:
            UsageError: there is no run at `path`.
        """
        if not (path / layout.DESCRIPTION).is_file():
            raise UsageError(
                "not a run directory: it contains no run.json",
                place=str(path),
                next_step=f"`gpuproof monitor show {path}` shows a recording"
                if path.is_file()
                else "`gpuproof runs` lists the existing runs",
            )
        return cls(path)

    def _taken_lock(self) -> int:
        held, self._held = self._held, None
        return held[0] if held and held[1].detach() else _lock_file(self.root / layout.LOCK)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run for this process.

        Raises:
            UsageError: another process is working on it.
        """
        with needing_room(self.root), os.fdopen(self._taken_lock()) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    "another process is working on this run", place=str(self.root), next_step="Let it finish"
                ) from error
            yield

    def wait_for_writers(self, timeout_s: float) -> None:
        """Wait until no rank of an earlier campaign is writing here; orphans exit within about a second.

        Raises:
            UsageError: such a rank is still running after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        folders = (self.root / layout.CASES).glob("*/*")
        for journal in (path for folder in folders for path in layout.rank_journals(folder)):
            while has_writer(journal):
                if time.monotonic() > deadline_s:
                    raise UsageError(
                        "a rank from an earlier launch is still writing to it",
                        place=str(journal),
                        next_step="Stop that process: the first line of the file has its host and pid",
                    )
                time.sleep(ORPHAN_POLL_S)

    def write_description(self, description: Mapping[str, Any]) -> None:
        """Write run.json."""
        self.write_json(layout.DESCRIPTION, {"schema_version": SCHEMA_VERSION, **description})
        self._description = self.config = None

    def description(self) -> dict[str, Any]:
        """Return run.json, which is read only once.

        Raises:
            RecordError: run.json is damaged or has a newer schema.
        """
        if self._description is not None:
            return self._description
        path = self.root / layout.DESCRIPTION
        content = read_versioned(path, "the description of a run", newest=SCHEMA_VERSION)
        lacking = [key for key in DESCRIBED if key not in content]
        if lacking:
            raise RecordError(
                f"lacks {', '.join(lacking)}", place=str(path), next_step="It was changed or truncated"
            )
        from_json(DescribedRun, content, place=str(path))
        self._description = content
        return content

    def case_folder(self, case: Case) -> Path:
        """Return the folder of a launch."""
        return self.root / layout.launch_path(case.case_id, case.replicate)

    def recording_at(self, case: Case, host: str) -> Path:
        """Return the path of a host's readings during a launch; None if there are none."""
        return place_inside(self.case_folder(case), layout.recording_name(host))

    def begin_case(self, case: Case) -> Path:
        """Create the folder of a launch with its spec; an unfinished attempt is moved aside."""
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
        """Add one of the launcher's own records to a launch."""
        append_record(folder, record)

    def write_placed(self, folder: Path, placed: Placed) -> None:
        """Record where a launch actually ran."""
        write_whole(folder / layout.PLACED, indented(to_json(placed)) + "\n")

    def read_result(self) -> Result | None:
        """Read result.json; None if there is none.

        Raises:
            RecordError: result.json is damaged or has a newer schema.
        """
        path = self.root / layout.RESULT
        if not path.exists():
            return None
        return from_json(
            Result, read_versioned(path, "the result of a run", newest=RESULT_SCHEMA_VERSION), place=str(path)
        )

    def cases(self) -> list[CaseRecords]:
        """Read the latest attempt of every launch of the run, by case and replicate.

        If a launch has contradictory records or was copied from another, a note replaces its records.

        Raises:
            RecordError: a file is damaged anywhere other than at its end.
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
        """Return the path of one of the run's files, creating its parent folders.

        Raises:
            RecordError: the name leads outside the run, or passes through a symlink in a folder that was
                copied from elsewhere.
            EnvironmentUnfitError: the folders cannot be created.
        """
        path = place_inside(self.root, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_written(error, path) from error
        return path


def read_case(folder: Path) -> CaseRecords:
    """Read the files of a launch, salvaging what a process had written when it was killed.

    Raises:
        RecordError: a file is damaged anywhere other than at its end, or records contradict each other.
    """
    records = _read_launch(folder)
    if (impossible := records.first_contradiction) is not None:
        next_step = "Its journals were changed: copy them again from the host that wrote them"
        raise RecordError(impossible, place=str(folder), next_step=next_step)
    return records


def _read_launch(folder: Path) -> CaseRecords:
    spec = folder / layout.SPEC
    content = upgrade_case(read_versioned(spec, "a case", newest=CASE_SCHEMA_VERSION))
    case = from_json(Case, content, place=str(spec))
    launch, _, _ = folder.name.partition(layout.ASIDE)
    if (folder.parent.name, launch) != (case.case_id, str(case.replicate)):
        raise RecordError(
            (
                f"it belongs to the launch {case.case_id}/{case.replicate}, but is in the folder of "
                "another launch"
            ),
            place=str(spec),
            next_step="Copy the run again from the host that wrote it",
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
    """Rename unreadable journals of a launch, so that the others can be read."""
    for journal in folder.glob("*.jsonl"):
        try:
            read_journal(journal)
        except (RecordError, OSError):  # noqa: PERF203  # each file is judged by itself
            _rename_damaged(journal)
    try:
        read_case(folder)
    except RecordError:  # each journal is readable, but they contradict each other
        for journal in layout.rank_journals(folder):
            _rename_damaged(journal)


def _rename_damaged(journal: Path) -> None:
    journal.rename(journal.with_name(f"{journal.name}{layout.DAMAGED}"))


def append_record(folder: Path, record: Any) -> None:
    """Add one of the launcher's own records to a launch."""
    journal = Journal(folder / layout.LAUNCHER_JOURNAL)
    journal.append_last_words(record)
    journal.close()


def write_whole(path: Path, content: str) -> None:
    """Write a temporary file and rename it, so that readers see either all of it or nothing.

    Raises:
        EnvironmentUnfitError: the disk is full, or the location is not writable.
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
        next_step="Copy the run to a folder that you can write to",
    )


def _already_there(root: Path) -> UsageError:
    """Describe what already exists at the location where a new run was to be created."""
    if _is_locked(root / layout.LOCK):
        return UsageError(
            "a run with that name is in progress: another process is working on it",
            place=str(root),
            next_step="Let it finish, or choose another run.run_id",
        )
    resumable = (root / layout.DESCRIPTION).is_file()
    way_on = f"Finish it with `{resume_command(root)}`" if resumable else "Remove it"
    return UsageError(
        "there is already a run with that name" if resumable else "already exists, and is not a run",
        place=str(root),
        next_step=f"{way_on}, or choose another run.run_id",
    )


def _is_locked(path: Path) -> bool:
    """Return whether a process holds an existing lock, without ever creating a lock."""
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
    """Report a disk that fills up anywhere in the with-block, and what to do about it.

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
            next_step="Free some space; the measurements are saved, finish the run with --resume",
        ) from error


def resume_command(root: Path, *, command: str = "run") -> str:
    """Return the command that finishes a run, ready to paste into a shell."""
    return shlex.join(["gpuproof", command, "--resume", str(root)])


def default_run_id(now: datetime) -> str:
    """Generate a run's name from its UTC start time and this process, e.g. run_20261120T133012_4711."""
    return f"run_{now:%Y%m%dT%H%M%S}_{os.getpid()}"


def list_runs(save_dir: Path) -> list[RunDirectory]:
    """Return the runs under `save_dir`, newest first."""
    paths = sorted(save_dir.glob("*/*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [RunDirectory(path.parent) for path in paths]
