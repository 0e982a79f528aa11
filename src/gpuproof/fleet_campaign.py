"""A campaign on several hosts at once: the same cases on each, or one job over all.

Each host is a thread that drives `campaign.launch_case` as this machine would be driven, over one connection
for all its cases. A host that fails is a record, and the others go on.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from gpuproof.campaign import (
    ORPHANS_S,
    Progress,
    config_of,
    is_hopeless,
    launch_case,
    run_campaign,
    settled_launches,
    sigterm_interrupts,
)
from gpuproof.config.inventory import Host
from gpuproof.datasets.catalogue import prepare
from gpuproof.errors import RecordError
from gpuproof.launchers.ssh.hosts import HostError, Stage
from gpuproof.launchers.ssh.job import OneJobLauncher
from gpuproof.launchers.ssh.launcher import RemoteHost, SshFleet
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import read_journal
from gpuproof.records.run import Failure, FailureCause
from gpuproof.store.run import RunDirectory, needing_room
from gpuproof.suites.fleet import on_host, results_on
from gpuproof.suites.plan import is_sweep, next_cases

if TYPE_CHECKING:
    from gpuproof.report.conclude import Conclusion

log = logging.getLogger(__name__)

NextCases = Callable[[Sequence[CaseRecords]], Sequence[Case]]
"""What is still to do on one host, from its results so far: those settled before, and all of this campaign
however they ended. Empty when it is finished."""
FOLLOW_S = 2.0
"""Between looks at a host's journal: a line of progress needs no more, and there may be hundreds of hosts."""
DAMAGED = ".damaged"


class FleetProgress(Protocol):
    """Hears how a fleet goes on. Each host speaks from a thread of its own."""

    def on(self, host: str) -> Progress:
        """Return who hears of one host's launches."""

    def says(self, line: str) -> None:
        """Hear what is done before the hosts begin."""

    def host_failed(self, error: HostError) -> None:
        """Hear that a host cannot be used, or no longer."""


def run_fleet(
    run: RunDirectory, *, fleet: SshFleet, progress: FleetProgress, retry_failed: bool = False
) -> Conclusion:
    """Launch what is not settled yet on every host, then conclude.

    Raises:
        UsageError: another process works on the run, or its data is not there.
        EnvironmentUnfitError: the disk here is full.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the hosts were asked to end and told their last.
    """
    config = config_of(run)
    with run.locked(), sigterm_interrupts(), needing_room(run.root):
        run.wait_for_writers(ORPHANS_S)
        most = max([config.distributed.nproc, *(host.gpus or 0 for host in fleet.hosts)])
        for case in next_cases(config, ()):
            prepare(case, run.root, world_size=most, say=progress.says)
        run_on_hosts(
            run,
            fleet=fleet,
            cases=lambda results: next_cases(config, results),
            settled=settled_launches(config, run.cases(), retry_failed=retry_failed),
            progress=progress,
            time_limit_s=config.run.time_limit_s,
            is_sweep=is_sweep(config),
        )
        from gpuproof.report.conclude import conclude

        return conclude(run, config)


def run_one_job(
    run: RunDirectory, *, fleet: SshFleet, progress: Progress, retry_failed: bool = False
) -> Conclusion:
    """Run the campaign with each case as one job over the first hosts of the fleet.

    Raises:
        HostError: a host cannot be used; a job needs all of its hosts.
    """
    nodes = config_of(run).distributed.nodes
    with ExitStack() as stack:
        with ThreadPoolExecutor(max_workers=nodes) as pool:
            opening = [pool.submit(stack.enter_context, fleet.connected(h)) for h in fleet.hosts[:nodes]]
            try:
                wait(opening, return_when=FIRST_EXCEPTION)
            except KeyboardInterrupt:
                fleet.interrupt()
                raise
        hosts = [opened.result() for opened in opening]
        return run_campaign(
            run, launcher=OneJobLauncher(fleet, hosts), progress=progress, retry_failed=retry_failed
        )


def run_on_hosts(
    run: RunDirectory,
    *,
    fleet: SshFleet,
    cases: NextCases,
    settled: Sequence[CaseRecords],
    progress: FleetProgress,
    time_limit_s: float | None,
    is_sweep: bool,
) -> None:
    """Run any suite's cases on every host of a fleet, connected once a host; all is in the run directory.

    What one point of a sweep lacks (`is_sweep`), the host's others may do without.

    Raises:
        KeyboardInterrupt: after every host was asked to end and told its last.
    """
    workers = [
        _HostWorker(
            host,
            run=run,
            fleet=fleet,
            cases=cases,
            results=results_on(host.name, settled),
            progress=progress,
            time_limit_s=time_limit_s,
            is_sweep=is_sweep,
        )
        for host in fleet.hosts
    ]
    with ThreadPoolExecutor(fleet.options.max_workers or len(workers)) as pool:
        work = [pool.submit(worker.work) for worker in workers]
        try:
            wait(work)
        except KeyboardInterrupt:
            fleet.interrupt()
            for future in work:
                future.cancel()
            wait(work)
            raise
    _raise_first(work)


def _raise_first(work: Sequence[Future[None]]) -> None:
    for future in work:
        error = future.exception()
        if error is not None:
            raise error


class _HostWorker:
    """What the thread of one host does, and where it stands."""

    def __init__(
        self,
        host: Host,
        *,
        run: RunDirectory,
        fleet: SshFleet,
        cases: NextCases,
        results: list[CaseRecords],
        progress: FleetProgress,
        time_limit_s: float | None,
        is_sweep: bool,
    ) -> None:
        self._host = host
        self._run = run
        self._fleet = fleet
        self._cases = cases
        self._results = results
        self._progress = progress
        self._time_limit_s = time_limit_s
        self._is_sweep = is_sweep
        self._pending: list[Case] = []
        self._begun = False
        """Whether the first of the pending cases has its folder from now, and not from an earlier attempt."""

    def work(self) -> None:
        """Run what is not settled on the host; whatever ends it is a record of the case it was at."""
        self._plan()
        if not self._pending:
            return
        try:
            with self._fleet.connected(self._host) as remote:
                self._launch_all(remote)
        except HostError as error:
            self._fail(error.cause, stage=error.stage, cause="environment")
            self._progress.host_failed(error)
        except RecordError as error:
            self._set_damaged_aside(error)
            self._fail(str(error), stage="parse", cause="exception")
            self._progress.host_failed(HostError(str(error), host=self._host.name, stage="parse"))
        except Exception:
            self._fail(traceback.format_exc(), stage="exception", cause="exception")
            raise

    def _plan(self) -> None:
        host = self._host
        self._pending = [on_host(case, host.name, nproc=host.gpus) for case in self._cases(self._results)]

    def _launch_all(self, remote: RemoteHost) -> None:
        """Launch case after case; the first of the pending is always the one at hand."""
        progress, done = self._progress.on(self._host.name), 0
        while self._pending:
            case = self._pending[0]
            progress.case_begins(case, position=done + 1, total=done + len(self._pending))
            self._begun = True
            records = launch_case(
                case, self._run, remote, progress, time_limit_s=self._time_limit_s, follow_s=FOLLOW_S
            )
            progress.case_ends(records)
            if is_hopeless(records, is_sweep=self._is_sweep) or remote.is_lost:
                return
            done += 1
            self._results += results_on(self._host.name, [records])
            del self._pending[0]
            self._begun = False
            if not self._pending:
                self._plan()

    def _fail(self, message: str, *, stage: Stage, cause: FailureCause) -> None:
        if not self._pending:
            return  # all was done, and only the leave-taking failed
        case = self._pending[0]
        folder = self._run.case_folder(case) if self._begun else self._run.begin_case(case)
        failure = Failure(
            rank=None,
            host=self._host.name,
            phase=stage,
            cause=cause,
            message=f"{stage}: {message}",
            unix_s=time.time(),
            next_step="The other hosts went on; finish the run with --resume once this one is well",
        )
        self._run.add_record(folder, failure)

    def _set_damaged_aside(self, error: RecordError) -> None:
        """Take the journals that cannot be read out of the way, so that one host's damage stays its own."""
        folder = self._run.case_folder(self._pending[0])
        for journal in folder.glob("*.jsonl"):
            try:
                read_journal(journal)
            except RecordError:  # noqa: PERF203  # each file is judged by itself
                log.error("%s is set aside: %s", journal, error)
                journal.rename(journal.with_name(f"{journal.name}{DAMAGED}"))
