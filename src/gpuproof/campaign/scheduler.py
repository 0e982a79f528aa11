"""One loop for every campaign: which case may start where, and how each running case ends.

Input: a suite with its state, and a launcher with the places where cases can run. Every case that the suite
requests is started as soon as its placement and order allow. All running cases are tracked concurrently, and
the end of each case is reported to the suite. It makes no difference whether the places are this machine,
hosts, or pairs of hosts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.units import duration
from gpuproof.datasets.catalogue import prepare
from gpuproof.launchers.base import HostError, Launched, Launcher
from gpuproof.launchers.failures import host_failure, launch_failure, unexplained_failure
from gpuproof.launchers.places import held_places
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import JournalTail
from gpuproof.records.run import Failure
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory, read_case, set_damaged_aside
from gpuproof.suites.base import LaunchKey, Suite, launch_key

log = logging.getLogger(__name__)

FOLLOW_S = 0.25
"""Interval between checks of the first rank's journal, in seconds, for the progress bar of one launch."""
FOLLOW_SEVERAL_S = 2.0
"""Interval between these checks if several launches run: a progress line does not need more frequent updates,
and there may be hundreds of launches."""
GRACE_S = 10.0
"""Time that ranks have to write their final records: stacks of all threads, on a disk that may be slow."""
CUT_SHORT_S = 0.5
"""Time allowed for the final records after a second Ctrl-C."""
LATE_GRACE_S = 2.0
"""Time for the final records when the time limit of the whole run has been reached."""
MOST_AFTER_GRACE_S = 120.0
"""Additional time after that for a launch to finish, including fetching its files: a process that hangs in
its driver cannot be killed, so nothing waits for it any longer."""
CUT = "the time limit of the whole run was reached before it had ended"
MAX_ATTEMPTS = 3
"""Maximum number of attempts for a launch that its suite keeps requesting."""


class CampaignProgress(Protocol):
    """Receives a campaign's progress, and may show it."""

    def says(self, line: str) -> None:
        """Receive events before a launch, e.g. a download, or what the launch is waiting for in a queue."""

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        """Receive the start of a launch; `position` starts at 1, and no host is given for this machine.

        With `more`, the measurements decide how many launches follow: `total` is the minimum.
        """

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        """Receive the first rank's new records."""

    def case_ends(self, records: CaseRecords) -> None:
        """Receive the records of a launch that ended."""

    def host_failed(self, error: HostError) -> None:
        """Receive the error for a host that cannot be used, or can no longer be used."""


class UnheardProgress:
    """Shows nothing, since the log contains everything."""

    def says(self, line: str) -> None:
        """Receive a line, and ignore it."""

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        """Receive a launch, and ignore it."""

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        """Receive a launch's records, and ignore them."""

    def case_ends(self, records: CaseRecords) -> None:
        """Receive the end of a launch, and ignore it."""

    def host_failed(self, error: HostError) -> None:
        """Receive a host failure, and ignore it."""


@dataclass(kw_only=True)
class _Following:
    """A running launch, with the information available about it."""

    case: Case
    folder: Path
    launched: Launched
    journal: JournalTail
    beside: tuple[LaunchKey, ...]
    deadline_s: float | None = None
    """Deadline of the launch, once it has started."""
    waits_for: str | None = None
    """The last reported reason why the launch has not started."""
    is_ending: bool = False
    has_timed_out: bool = False
    is_cut: bool = False
    """Whether the launch was stopped because the time limit of the whole run was reached."""


class CaseScheduler:
    """Starts a suite's requested cases as soon as there is room, and tracks them until they end."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        suite: Suite,
        state: Any,
        launcher: Launcher,
        progress: CampaignProgress,
        time_limit_s: float | None,
        until_s: float | None = None,
        while_waiting: Callable[[], None],
    ) -> None:
        """Accept a run, and a deadline (on the monotonic clock) after which nothing may run."""
        self._run = run
        self._suite = suite
        self._state = state
        self._launcher = launcher
        self._progress = progress
        self._time_limit_s = time_limit_s
        self._until_s = until_s
        self._while_waiting = while_waiting
        self._places = held_places(launcher.places(), max_busy=launcher.max_busy)
        self._running: dict[LaunchKey, Case] = {}
        self._following: dict[LaunchKey, _Following] = {}
        self._ended: set[LaunchKey] = set()
        self._attempts: Counter[LaunchKey] = Counter()
        self._num_ended = self._fewest = 0
        self._is_stopped = False

    def run(self) -> None:
        """Continue until nothing runs and nothing is requested.

        Raises:
            Same as for `run_campaign`.
        """
        self._num_ended = self._fewest = 0  # the progress display counts the launches of this campaign
        try:
            self._start_what_may_begin()
            while self._following:
                if self._attend():
                    self._start_what_may_begin()
        except BaseException as error:
            self._end_all()
            if isinstance(error, KeyboardInterrupt):
                for following in self._following.values():
                    if not following.folder.is_dir():
                        continue
                    self._run.add_record(
                        following.folder, launch_failure("interrupted", "the campaign was interrupted")
                    )
            raise

    # Starting.

    def _start_what_may_begin(self) -> None:
        while self._start_or_settle():
            pass

    def _start_or_settle(self) -> bool:
        """Start whatever can start now; return True if a case failed instead, so others may be requested."""
        lost, left_s = self._launcher.lost(), self._left_s()
        if left_s is not None and left_s <= 0:
            return False
        cases = self._suite.next(self._state, MappingProxyType(self._running), left_s)
        waiting = None
        while not self._is_stopped and self._places.has_room(lost) and (case := next(cases, None)):
            failure = self._reason_never(case, lost)
            if failure is not None:
                self._fail(case, failure)
                return True
            hosts = self._places.find(case.placement, lost)
            if hosts is None or not self._ended.issuperset(case.after):
                waiting = case
            elif not self._start(case, hosts):
                return True
        if waiting is None or self._following:
            return False
        never = f"it must start after {waiting.after}, but nothing of that is left to run"
        self._fail(waiting, launch_failure("environment", never))
        return True

    def _left_s(self) -> float | None:
        """Return how much of the whole run's time limit is left; None if there is no limit."""
        return None if self._until_s is None else self._until_s - time.monotonic()

    def _reason_never(self, case: Case, lost: Mapping[str, HostError]) -> Failure | None:
        """Return why a case cannot run at any available place; None if it can."""
        gone = next((lost[name] for name in case.placement.hosts if name in lost), None)
        if gone is not None:
            return host_failure(gone)
        reason = self._places.reason_never(case.placement, lost)
        taken = next((error for error in lost.values() if error.is_interruption), None)
        if reason is not None and taken is not None:
            return host_failure(taken)
        next_step = "Provide more hosts, or request fewer"
        return None if reason is None else launch_failure("environment", reason, next_step=next_step)

    def _start(self, case: Case, hosts: Sequence[str]) -> bool:
        """Start a case; return False if its data is unavailable while other cases run."""
        try:
            self._prepare(case)
        except (UsageError, EnvironmentUnfitError) as error:
            if not self._attempts:
                raise
            self._fail(case, launch_failure("environment", str(error)))
            return False
        key = launch_key(case)
        self._attempts[key] += 1
        remaining = self._suite.remaining(self._state)
        total = self._num_ended + remaining.num_launches
        # The plan's estimate was reported before the first launch.
        if remaining.seconds is not None and remaining.basis != "plan":
            about = "at most" if remaining.basis == "limit" else "about"
            self._progress.says(f"{about} {duration(remaining.seconds)} left")
        named = [name for name in hosts if name]
        position = self._num_ended + len(self._following) + 1
        self._fewest = self._fewest or total
        more = remaining.until is not None
        total = self._fewest if more else max(position, total)
        self._progress.case_begins(case, hosts=named, position=position, total=total, more=more)
        folder = self._run.begin_case(case)
        self._following[key] = _Following(
            case=case,
            folder=folder,
            launched=self._launcher.start(case, hosts, folder),
            journal=JournalTail(layout.rank_journal(folder, 0)),
            beside=self._places.take(key, hosts, case.placement),
        )
        self._running[key] = case
        log.info("case %s, launch %d in %s", case.case_id, case.replicate + 1, folder)
        return True

    def _prepare(self, case: Case) -> None:
        """Make the case's data available in the run, unless the data already exists there."""
        most = max((place.num_devices or 0 for place in self._launcher.places()), default=0)
        ranks = self._launcher.world_size or max(case.placement.num_ranks, most)
        prepare(case, self._run.root, world_size=ranks, say=self._progress.says)

    def _fail(self, case: Case, failure: Failure) -> None:
        """Settle a case that cannot start."""
        folder = self._run.begin_case(case)
        self._run.add_record(folder, failure)
        self.settle(read_case(folder))

    # Following.

    def _attend(self) -> bool:
        """Wait for events, or until the journals are due for a check; return True if a launch has ended."""
        self._launcher.wait(FOLLOW_S if len(self._following) == 1 else FOLLOW_SEVERAL_S)
        self._while_waiting()
        for following in self._following.values():
            self._look_at(following)
        over = [key for key, following in self._following.items() if following.launched.is_over]
        for key in over:
            self._finish(key)
        return bool(over)

    def _look_at(self, following: _Following) -> None:
        """Report what is new about a launch, and end it once its ranks have exited or its time is up.

        Raises:
            EnvironmentUnfitError: the folder of the launch was removed.
        """
        if not following.folder.is_dir():
            raise EnvironmentUnfitError(
                "it was removed during the run: what was measured there is lost",
                place=str(following.folder),
                next_step="Start a new run; if only this launch was removed, --resume reruns it",
            )
        launched, now_s = following.launched, time.monotonic()
        if launched.placed is not None and following.deadline_s is None:
            following.deadline_s = now_s + (self._time_limit_s or float("inf"))
            self._run.write_placed(following.folder, replace(launched.placed, beside=following.beside))
            log.debug("started: %s", launched.command)
        if launched.waits_for is not None and launched.waits_for != following.waits_for:
            following.waits_for = launched.waits_for
            case = following.case
            self._progress.says(
                f"{case.case_id}, launch {case.replicate + 1}: waits for {launched.waits_for}"
            )
        is_readable = self._tell(following)
        if following.is_ending or launched.error is not None:
            return
        is_late = following.deadline_s is not None and now_s > following.deadline_s
        is_cut = self._until_s is not None and now_s > self._until_s
        if launched.status is not None or is_late or is_cut or not is_readable:
            following.has_timed_out = launched.status is None and is_late and not is_cut
            following.is_cut = launched.status is None and is_cut
            following.is_ending = True
            launched.end(LATE_GRACE_S if is_cut else GRACE_S)

    def _tell(self, following: _Following) -> bool:
        """Report progress from what the first rank has written; return False if it cannot be read."""
        try:
            records = following.journal.new_records()
        except RecordError:
            return False
        for record in records:
            log.debug("rank 0 of %s: %s", following.case.case_id, record)
        self._progress.case_advances(following.case, records)
        return True

    def _finish(self, key: LaunchKey) -> None:
        """Collect a finished launch, and settle it."""
        following = self._following.pop(key)
        del self._running[key]
        self._places.release(key)
        self._tell(following)
        records = self._collect(following)
        log.info("launch %d of %s is %s", key[1] + 1, key[0], records.status)
        for failure in records.of(Failure):
            log.error("%s\n%s", failure.message, failure.traceback or failure.stacks or "")
        self._progress.case_ends(records)
        self.settle(records)

    def _collect(self, following: _Following) -> CaseRecords:
        """Read a finished launch, after recording what its ranks could not report.

        Unreadable journals are moved aside, so that damage on one host does not affect others.
        """
        folder, error = following.folder, following.launched.error
        status = None if following.has_timed_out else following.launched.status
        unsaid = None
        try:
            if following.is_cut:
                unsaid = launch_failure("interrupted", CUT)
            elif error is None:
                unsaid = unexplained_failure(
                    read_case(folder), status, folder, time_limit_s=self._time_limit_s
                )
        except RecordError as damage:
            set_damaged_aside(folder)
            error = HostError(str(damage), host=following.case.placement.host or "", stage="parse")
        if error is not None:
            self._progress.host_failed(error)
            unsaid = host_failure(error)
        if unsaid is not None:
            self._run.add_record(folder, unsaid)
        return read_case(folder)

    def settle(self, records: CaseRecords) -> None:
        """Report to the suite that a launch has ended, whether now or before this campaign."""
        key = launch_key(records.case)
        verdict = "skip" if records.status == "done" else self._suite.on_failure(records)
        if verdict == "retry" and self._attempts[key] < MAX_ATTEMPTS:
            return
        self._state = self._suite.settle(self._state, records)
        self._is_stopped = self._is_stopped or verdict == "stop"
        self._ended.add(key)
        self._num_ended += 1

    def _end_all(self) -> None:
        """Stop all processes that are still running; a second interruption shortens the grace period."""
        try:
            self._end_within(GRACE_S)
        except KeyboardInterrupt:
            self._end_within(CUT_SHORT_S)

    def _end_within(self, grace_s: float) -> None:
        launches = [following.launched for following in self._following.values()]
        for launched in launches:
            if not launched.is_over:
                launched.end(grace_s)
        latest_s = time.monotonic() + grace_s + MOST_AFTER_GRACE_S
        while not all(launched.is_over for launched in launches):
            if time.monotonic() > latest_s:
                self._tell_what_is_left()
                return
            self._launcher.wait(FOLLOW_S)

    def _tell_what_is_left(self) -> None:
        for following in self._following.values():
            if not following.launched.is_over:
                log.error(
                    "launch %d of %s has not ended %g s after it was killed: check for its processes",
                    following.case.replicate + 1,
                    following.case.case_id,
                    MOST_AFTER_GRACE_S,
                )
