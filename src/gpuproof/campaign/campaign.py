"""The common path of every command: config → suite → launcher → store → report.

A campaign may be interrupted at any time and resumed: finished work is on disk, and nothing is run twice.
This module does not evaluate any results itself.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpuproof import __version__
from gpuproof.campaign.scheduler import CampaignProgress, CaseScheduler
from gpuproof.config.models import RunConfig
from gpuproof.launchers.base import Launcher
from gpuproof.processes.scratch import sweep
from gpuproof.processes.start import ENDING_SIGNALS
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.store.names import read_config, read_suite
from gpuproof.store.run import RunDirectory, default_run_id, needing_room
from gpuproof.suites.base import THIS_MACHINE, HostPlace, Suite, read_places
from gpuproof.suites.registry import suite_on

if TYPE_CHECKING:
    from gpuproof.campaign.conclude import Concluded

ORPHANS_S = 30.0
"""Time for the ranks of a killed campaign to notice and exit before it is resumed."""


def create_run(
    config: RunConfig,
    *,
    origins: Mapping[str, str],
    source: str,
    places: Sequence[HostPlace] = THIS_MACHINE,
    described: Mapping[str, Any] | None = None,
) -> RunDirectory:
    """Create the directory of a new run, and record what was requested and what is `described`.

    Raises:
        UsageError: a run with that name already exists, or its recipe cannot be run.
        EnvironmentUnfitError: the directory is not writable.
    """
    suite_on(config, places).begin(config, places)  # a recipe that cannot be run leaves no directory behind
    now = datetime.now(timezone.utc)
    run_id = config.run.run_id or default_run_id(now)
    run = RunDirectory.create(Path(config.run.save_dir), config.run.experiment_name, run_id, held=True)
    run.write_description(
        {
            "gpuproof_version": __version__,
            "run_id": run_id,
            "created": now.isoformat(timespec="seconds"),
            "source": source,
            "commit_hash": _commit_hash() if config.run.commit_hash == "auto" else config.run.commit_hash,
            "config": config.model_dump(mode="json"),
            "origins": dict(origins),
            "places": to_json(tuple(places)),
            **(described or {}),
        }
    )
    return run


def run_campaign(
    run: RunDirectory,
    *,
    launcher: Launcher,
    progress: CampaignProgress,
    retry_failed: bool = False,
    again: Callable[[CaseRecords], bool] | None = None,
    until_s: float | None = None,
) -> Concluded:
    """Launch cases that have not finished yet and any that `again` selects, then conclude the run.

    At `until_s` on the monotonic clock, running launches are stopped, and nothing more is launched.

    Raises:
        UsageError: another process is working on the run, or its data is missing.
        EnvironmentUnfitError: the launcher cannot start processes, or the disk is full.
        KeyboardInterrupt: Ctrl-C, SIGTERM, SIGQUIT or SIGHUP, after the ranks wrote their final records.
    """
    sweep()
    suite = read_suite(run)
    with run.locked(), ends_interrupt(), needing_room(run.root):
        launch_all(
            run,
            suite=suite,
            launcher=launcher,
            progress=progress,
            retry_failed=retry_failed,
            again=again,
            until_s=until_s,
        )
        from gpuproof.campaign.conclude import conclude

        return conclude(run)


def launch_all(
    run: RunDirectory,
    *,
    suite: Suite,
    launcher: Launcher,
    progress: CampaignProgress,
    retry_failed: bool = False,
    again: Callable[[CaseRecords], bool] | None = None,
    until_s: float | None = None,
) -> None:
    """Launch every case that a suite requests and that has not finished yet.

    Raises:
        Same as for `run_campaign`.
    """
    run.wait_for_writers(ORPHANS_S)
    config = read_config(run)
    state = suite.begin(config, read_places(run.description()))
    scheduler = CaseScheduler(
        run,
        suite=suite,
        state=state,
        launcher=launcher,
        progress=progress,
        time_limit_s=config.run.time_limit_s,
        until_s=until_s,
        while_waiting=_import_conclusion,
    )
    for records in run.cases():
        is_again = again is not None and again(records)
        if not is_again and is_settled(suite, records, retry_failed=retry_failed):
            scheduler.settle(records)
    scheduler.run()


def is_settled(suite: Suite, records: CaseRecords, *, retry_failed: bool) -> bool:
    """Return whether a launch must not be rerun."""
    if records.status != "failed":
        return records.status == "done"
    return not retry_failed or suite.on_failure(records) == "expected"


def _import_conclusion() -> None:
    """Import modules for the end of a campaign while the ranks are importing torch, not afterwards."""
    import gpuproof.campaign.conclude
    import gpuproof.report.terminal  # noqa: F401


@contextmanager
def ends_interrupt() -> Iterator[None]:
    """Treat SIGTERM, SIGQUIT and a closed terminal like Ctrl-C, so that all stop the ranks cleanly.

    SIGHUP stays ignored if it was ignored before (nohup).
    """

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS if number != signal.SIGINT}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _commit_hash() -> str | None:
    """Return the commit of the working directory; None outside a checkout, or without git."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return None
    return answer.stdout.strip() or None
