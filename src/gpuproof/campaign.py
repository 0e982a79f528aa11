"""The one path of every command: config → suite → launcher → store → report.

A campaign may be interrupted at any moment and resumed: what is done is on disk, and nothing is run
twice. It judges nothing itself.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from gpuproof import __version__
from gpuproof.config.models import RunConfig
from gpuproof.datasets.catalogue import prepare
from gpuproof.launchers.base import LAUNCHER_OUTPUT, Launched, Launcher
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import JournalTail
from gpuproof.records.run import TRANSIENT_CAUSES, Failure, FailureCause, Result, Start
from gpuproof.store.run import RunDirectory, default_run_id, needing_room, read_case
from gpuproof.suites.plan import is_expected_failure, is_sweep, next_cases

if TYPE_CHECKING:
    from gpuproof.report.conclude import Conclusion

log = logging.getLogger(__name__)

FOLLOW_S = 0.25
"""How often the first rank's journal is looked at, for the progress bar."""
GRACE_S = 10.0
"""Time that ranks get for their last words: stacks of all threads, on a disk that may be slow."""
ORPHANS_S = 30.0
"""Time that ranks of a campaign which was killed get to notice and end, before it is resumed."""


class Progress(Protocol):
    """Hears how a campaign goes on; shows it or not."""

    def says(self, line: str) -> None:
        """Hear what goes on before the first launch, such as a download."""

    def case_begins(self, case: Case, *, position: int, total: int) -> None:
        """Hear that a launch begins, `position` counting from 1."""

    def case_advances(self, records: Sequence[Any]) -> None:
        """Hear the first rank's new records."""

    def case_ends(self, records: CaseRecords) -> None:
        """Hear how a launch ended."""


def create_run(config: RunConfig, *, origins: Mapping[str, str], source: str) -> RunDirectory:
    """Make the directory of a new run and write down what was asked.

    Raises:
        UsageError: there is a run of that name already, or its recipe cannot be run.
        EnvironmentUnfitError: the place cannot be written.
    """
    next_cases(config, results=())  # a recipe that cannot be run leaves no directory behind
    now = datetime.now(timezone.utc)
    run_id = config.run.run_id or default_run_id(now)
    run = RunDirectory.create(Path(config.run.save_dir), config.run.experiment_name, run_id)
    run.write_description(
        {
            "gpuproof_version": __version__,
            "run_id": run_id,
            "created": now.isoformat(timespec="seconds"),
            "source": source,
            "commit_hash": _commit_hash() if config.run.commit_hash == "auto" else config.run.commit_hash,
            "config": config.model_dump(mode="json"),
            "origins": dict(origins),
        }
    )
    return run


def config_of(run: RunDirectory) -> RunConfig:
    """Read back what a run was asked."""
    return RunConfig.model_validate_json(json.dumps(run.description()["config"]))


def run_campaign(
    run: RunDirectory,
    *,
    launcher: Launcher,
    progress: Progress,
    retry_failed: bool = False,
    world_size: int | None = None,
) -> Conclusion:
    """Launch what is not settled yet, then conclude.

    `world_size` is the number of ranks where it is not this campaign that starts them all.

    Raises:
        UsageError: another process works on the run, or its data is not there.
        EnvironmentUnfitError: the launcher cannot start processes, or the disk is full.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the ranks gave their last words.
    """
    config = config_of(run)
    with run.locked(), sigterm_interrupts(), needing_room(run.root):
        run.wait_for_writers(ORPHANS_S)
        settled = settled_launches(config, run.cases(), retry_failed=retry_failed)
        for case in next_cases(config, settled):
            _prepare(case, run, progress, world_size=world_size)
        _launch_all(config, run, launcher, progress, settled=settled, world_size=world_size)
        from gpuproof.report.conclude import conclude

        return conclude(run, config)


def settled_launches(
    config: RunConfig, launched: Sequence[CaseRecords], *, retry_failed: bool
) -> list[CaseRecords]:
    """Return the launches that are not to be run again."""
    return [
        records
        for records in launched
        if records.status == "done"
        or (records.status == "failed" and (not retry_failed or is_expected_failure(config, records)))
    ]


def _launch_all(
    config: RunConfig,
    run: RunDirectory,
    launcher: Launcher,
    progress: Progress,
    *,
    settled: Sequence[CaseRecords],
    world_size: int | None,
) -> None:
    """Launch what the suite asks for, one after the other, until it asks for nothing more."""
    results = list(settled)
    position = 0
    while pending := next_cases(config, results):
        case = pending[0]
        position += 1
        _prepare(case, run, progress, world_size=world_size)
        progress.case_begins(case, position=position, total=position - 1 + len(pending))
        records = launch_case(case, run, launcher, progress, time_limit_s=config.run.time_limit_s)
        progress.case_ends(records)
        results.append(records)
        if is_hopeless(records, is_sweep=is_sweep(config)):
            break


def _prepare(case: Case, run: RunDirectory, progress: Progress, *, world_size: int | None) -> None:
    """Have the case's data in the run; what is there already is not made again."""
    prepare(case, run.root, world_size=world_size or case.placement.num_ranks, say=progress.says)


def is_hopeless(records: CaseRecords, *, is_sweep: bool) -> bool:
    """Say whether more launches would meet the same fate: the machine lacks what the recipe needs.

    What one point of a sweep lacks (a precision, devices enough), the others may do without.
    """
    failure = records.primary_failure
    if records.status == "done" or failure is None:
        return False
    return failure.cause == "disk_full" or (failure.cause == "environment" and not is_sweep)


def launch_case(
    case: Case,
    run: RunDirectory,
    launcher: Launcher,
    progress: Progress,
    *,
    time_limit_s: float | None,
    follow_s: float = FOLLOW_S,
) -> CaseRecords:
    """Launch one case, follow it to its end, and write down what its ranks could not say; return its records.

    `progress` hears of it every `follow_s`; an end is noticed at once.

    Raises:
        EnvironmentUnfitError: the launcher cannot start it.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the ranks gave their last words.
    """
    folder = run.begin_case(case)
    launched = launcher.start(case, folder)
    log.info("case %s, launch %d in %s", case.case_id, case.replicate + 1, folder)
    log.debug("started: %s", launched.command)
    try:
        status = _follow_to_the_end(launched, folder, progress, time_limit_s=time_limit_s, follow_s=follow_s)
    except KeyboardInterrupt:
        run.add_record(folder, _launcher_failure("interrupted", "the campaign was interrupted"))
        raise
    log.debug("ended with status %s", status)
    unsaid = _failure_of_launch(read_case(folder), status, folder, time_limit_s=time_limit_s)
    if unsaid is not None:
        run.add_record(folder, replace(unsaid, host=case.placement.host or unsaid.host))
    records = read_case(folder)
    log.info("launch %d is %s", case.replicate + 1, records.status)
    for failure in records.of(Failure):
        log.error("%s\n%s", failure.message, failure.traceback or failure.stacks or "")
    return records


def _follow_to_the_end(
    launched: Launched, folder: Path, progress: Progress, *, time_limit_s: float | None, follow_s: float
) -> int | None:
    """Follow a launch; whatever stops us, leave none of its processes behind."""
    journal = JournalTail(folder / "rank-0.jsonl")
    try:
        return _follow(launched, journal, progress, time_limit_s=time_limit_s, follow_s=follow_s)
    finally:
        launched.end(GRACE_S)


def _follow(
    launched: Launched,
    journal: JournalTail,
    progress: Progress,
    *,
    time_limit_s: float | None,
    follow_s: float,
) -> int | None:
    """Tell `progress` what happens until the launch ends; return its status, None if its time ran out."""
    deadline_s = time.monotonic() + (time_limit_s or float("inf"))
    status = None
    while status is None:
        status = launched.wait(follow_s)
        records = journal.new_records()
        for record in records:
            log.debug("rank 0: %s", record)
        progress.case_advances(records)
        import_conclusion()
        if status is None and time.monotonic() > deadline_s:
            return None
    return status


def import_conclusion() -> None:
    """Import what the end of a campaign needs while the ranks import torch, rather than after them."""
    import gpuproof.report.conclude
    import gpuproof.report.terminal  # noqa: F401


def _failure_of_launch(
    records: CaseRecords, status: int | None, folder: Path, *, time_limit_s: float | None
) -> Failure | None:
    """Say what the ranks could not say of a launch that ended with `status`, None if its time ran out."""
    if records.status == "done" or any(failure.rank is None for failure in records.of(Failure)):
        return None
    if status is None:
        return _launcher_failure("timeout", f"not done within {time_limit_s:g} s")
    silent = _silent_ranks(records)
    if silent and not records.of(Start) and status > 0:
        return _not_begun(folder)
    return _lost(silent, status, folder, records) if silent else None


def _not_begun(folder: Path) -> Failure:
    """Explain a launch that ended by itself before any rank began, in its own last words."""
    said = (folder / LAUNCHER_OUTPUT).read_text(encoding="utf-8", errors="replace").strip()
    return _launcher_failure(
        "environment",
        f"no rank could begin: {said.splitlines()[-1] if said else 'the launch ended without a word'}",
        next_step=f"Try the command in {folder / 'launch.txt'} by hand; then finish the run with --resume",
    )


def _silent_ranks(records: CaseRecords) -> list[int]:
    """Return the ranks that left neither a result nor last words."""
    spoke = {r.rank for r in records.of(Result)} | {f.rank for f in records.of(Failure)}
    return [rank for rank in range(records.world_size) if rank not in spoke]


def _lost(ranks: Sequence[int], status: int, folder: Path, records: CaseRecords) -> Failure:
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"(exit status {status} of the launch)"
    message = f"{who} ended without a word {how}: killed from outside, by the kernel for want of memory, "
    elsewhere = sorted(
        {s.host for s in records.of(Start) if s.rank in ranks and s.host != socket.gethostname()}
    )
    if elsewhere:
        hosts = " and ".join(elsewhere)
        return _launcher_failure(
            "lost_rank",
            message.replace(who, f"{who} on {hosts}", 1) + "stuck in native code, or cut off from this host",
            next_step=f"Look at the launcher's output and at dmesg on {hosts}; for the way there, at "
            "`gpuproof doctor --multi-node`",
        )
    return _launcher_failure(
        "lost_rank",
        f"{message}or stuck in native code",
        next_step=f"Look at stderr-{ranks[0]}.txt in {folder} and at dmesg; finish the run with --resume",
    )


def _launcher_failure(cause: FailureCause, message: str, *, next_step: str | None = None) -> Failure:
    return Failure(
        rank=None,
        host=socket.gethostname(),
        phase="launch",
        cause=cause,
        message=message,
        unix_s=time.time(),
        next_step=next_step or ("Finish the run with --resume" if cause in TRANSIENT_CAUSES else None),
    )


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that both end the ranks in good order."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _commit_hash() -> str | None:
    """Return the commit of the working directory; None outside a checkout, or without git."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return None
    return answer.stdout.strip() or None
