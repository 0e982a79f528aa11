"""All data from one launch: its case, all records of all ranks, and its status.

The analysis works on these objects. The store builds them from files; tests build them by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any, Literal, TypeVar

from gpuproof.base.groups import grouped
from gpuproof.records import breakdown as _breakdown  # noqa: F401  # each registers its records with the journal
from gpuproof.records import readings as _readings  # noqa: F401
from gpuproof.records import serving as _serving  # noqa: F401
from gpuproof.records import what_ran as _what_ran  # noqa: F401
from gpuproof.records.case import Case, ModelWork, Placed
from gpuproof.records.run import (
    TRANSIENT_CAUSES,
    Environment,
    Failure,
    RankResult,
    Setup,
    Start,
    Steps,
    Window,
)
from gpuproof.records.work.collective import CollectiveTrial
from gpuproof.records.work.command import CommandEnded, CommandMetrics
from gpuproof.records.work.probe import ProbeReading

CaseStatus = Literal["done", "failed", "unfinished"]
T = TypeVar("T")


OWN_CAUSES = ("out_of_memory", "environment", "disk_full")
"""Causes that cannot be a consequence of another rank's exit."""


def _precedence(failure: Failure) -> tuple[int, float]:
    """Sort failures so that causes come before their consequences, with ties sorted by time.

    A lost rank makes other ranks fail ("connection closed"), and so does stopping a launch after a timeout or
    an interrupt. Among the messages of the ranks themselves, the earliest counts: a rank is asked to stop
    after another has failed, and its connection is closed after another has exited.
    """
    if failure.cause in OWN_CAUSES:
        order = 0
    elif failure.rank is None or failure.cause in ("lost_rank", "timeout"):
        order = 1
    else:
        order = 2
    return order, failure.unix_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecords:
    """One launch of one case, with the records of all ranks in rank order."""

    case: Case
    records: tuple[Any, ...]
    torn: tuple[str, ...] = ()
    """Notes on lines truncated when a process was killed, on records that contradict each other, or on the
    launch that this is a copy of."""
    placed: Placed | None = None
    """Where the launch ran; None if its launcher did not report that."""
    _by_kind: dict[type, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Records by type, so that a launch with thousands of ranks is scanned once per requested type."""

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """Return the records of one type."""
        if kind not in self._by_kind:
            self._by_kind[kind] = tuple(record for record in self.records if isinstance(record, kind))
        return self._by_kind[kind]

    def host_of(self, start: Start) -> str:
        """Return the inventory name of the host on which a rank started, from its position in the job."""
        hosts = self.case.placement.hosts
        node = start.rank // max(1, start.local_world_size)
        return hosts[node] if node < len(hosts) else start.host

    @property
    def world_size(self) -> int:
        """Number of ranks that started or, if none wrote anything, the requested number."""
        return next(
            (start.world_size for start in self.of(Start)),
            self.case.placement.num_ranks,
        )

    @property
    def status(self) -> CaseStatus:
        """Return `done` if every rank wrote its result, `failed` if a rerun would fail again.

        A launch that was interrupted, or that failed for a reason outside the case, is unfinished.
        """
        if self.has_ended:
            return "done" if self.contradiction is None else "unfinished"
        primary = self.primary_failure
        if primary is not None and (primary.is_unsupported or primary.cause not in TRANSIENT_CAUSES):
            return "failed"
        return "unfinished"

    @property
    def has_ended(self) -> bool:
        """Whether every rank wrote its result."""
        ended = {result.rank for result in self.of(RankResult)}
        return len(ended) == self.world_size and ended == set(range(len(ended)))

    @property
    def contradiction(self) -> str | None:
        """List record types of a finished launch that some ranks have once, others twice or not at all.

        None if there are no such records. A rank that measured must have started and built something first.
        """
        if not self.has_ended:
            return None
        if len(sizes := {start.world_size for start in self.of(Start)}) > 1:
            return f"ranks report different numbers of ranks: {', '.join(map(str, sorted(sizes)))}"
        measured, built = bool(self.windows), bool(self.windows or self.setups)
        needed: tuple[type[Start | RankResult | Setup | Window], ...] = (
            *(Start, RankResult),
            *([Setup] if built else []),
            *([Window] if measured else []),
        )
        for kind in needed:
            ranks = sorted(record.rank for record in self.of(kind))
            if ranks != list(range(self.world_size)):
                of_ranks = f"the record {kind.__name__.lower()} of ranks {ranks}"
                return f"the launch is done but has {of_ranks}, not one from each of {self.world_size} ranks"
        return None

    @property
    def first_contradiction(self) -> str | None:
        """Return the first contradiction in the records; None if they are consistent."""
        return self.contradiction or next(self.impossible(), None)

    def impossible(self) -> Iterator[str]:
        """Yield contradictions: too many ranks, an unrequested precision, steps that contradict a window."""
        sizes = [start.world_size for start in self.of(Start)]
        ranks = {rank for record in self.records if (rank := getattr(record, "rank", None)) is not None}
        for rank in sorted(ranks) if sizes else ():
            if not 0 <= rank < max(sizes):
                yield f"there is a record of rank {rank}, but ranks are 0 to {max(sizes) - 1}"
        precision = self.case.work.training.precision if isinstance(self.case.work, ModelWork) else None
        for setup in self.setups:
            if precision not in (None, setup.precision):
                yield (
                    f"rank {setup.rank} reports precision {setup.precision[:40]!r}, but its case "
                    f"specifies {precision}"
                )
        if sum(window.num_steps for window in self.windows) and not any(w.items for w in self.windows):
            yield "its windows count steps but contain no work"
        for window in self.windows:
            if window.wall_s < 1e-9 * window.num_steps:
                yield f"rank {window.rank} took {window.wall_s:g} s for {window.num_steps} steps"
            times_s = self.step_times_s(window.rank)
            least_s = 0 if len(times_s) == window.num_steps else window.steps_s
            if not isclose(max(sum(times_s), least_s), window.steps_s, rel_tol=1e-3):
                took = f"rank {window.rank} took {sum(times_s):g} s for its steps"
                yield f"{took}, but its window reports {window.steps_s:g} s"
        yield from self._contradicted()

    def _contradicted(self) -> Iterator[str]:
        """Yield contradictions in one rank's records: about its host, or when and how long it measured."""
        start, starts = None, {start.rank: start for start in self.of(Start)}
        for record in self.records:  # a rank's records are later than its start
            start = record if isinstance(record, Start) else start
            if isinstance(record, Environment) and start is not None and record.host != start.host:
                of_rank = f"the records of rank {start.rank} on {start.host}"
                yield f"facts of host {record.host} are among {of_rank}"
        for window in self.windows:
            begin_s, end_s = window.begin_monotonic_s, window.end_monotonic_s
            where = f"the window of rank {window.rank}"
            if not isclose(end_s - begin_s, window.wall_s, rel_tol=1e-3, abs_tol=1e-6):
                yield f"{where} is from {begin_s:.3f} to {end_s:.3f} s, but took {window.wall_s:g} s"
            if (start := starts.get(window.rank)) is None:
                continue
            if window.host != start.host:
                yield f"{where} is from host {window.host}, but the rank started on {start.host}"
            if begin_s < start.monotonic_s:
                yield f"{where} starts at {begin_s:.3f} s, but the rank started at {start.monotonic_s:.3f} s"
        for result in self.of(RankResult):
            if (start := starts.get(result.rank)) is not None and result.monotonic_s < start.monotonic_s:
                yield f"rank {result.rank} ended before it started"
        yield from self._of_command()
        yield from self._misplaced()
        yield from self._miscounted()

    def _of_command(self) -> Iterator[str]:
        """Yield contradictions about how a command ended and how long it took."""
        if (command := self.case.command) is None:
            return
        for ended in self.of(CommandEnded):
            begin_s, end_s = ended.begin_monotonic_s, ended.end_monotonic_s
            if not isclose(end_s - begin_s, ended.wall_s, rel_tol=1e-3, abs_tol=1e-6):
                yield f"its command ran from {begin_s:.3f} to {end_s:.3f} s, but took {ended.wall_s:g} s"
            if self.has_ended and (ended.returncode or ended.ended_by != "itself"):
                yield f"the launch is done, but its command ended with status {ended.returncode}"
        if not self.has_ended:
            return
        wanted = (CommandEnded, *([CommandMetrics] if command.metrics else []))
        for kind in wanted:
            if (num := len(self.of(kind))) != 1:
                yield f"the launch is done, but has {num} records {kind.__name__} of its command, not one"

    def _miscounted(self) -> Iterator[str]:
        """Yield windows with counts that do not match the repeats and step times listed with them."""
        chunks = grouped((steps.rank, steps) for steps in self.of(Steps) if steps.phase == "measure")
        trials: tuple[CollectiveTrial | ProbeReading, ...] = (
            *self.of(CollectiveTrial),
            *self.of(ProbeReading),
        )
        timed = grouped((trial.rank, trial.durations_s) for trial in trials)
        sizes = {x.size_bytes / x.num_elements for x in self.of(CollectiveTrial) if x.num_elements}
        if len(sizes) > 1:
            yield f"elements of one collective have {', '.join(f'{size:g}' for size in sorted(sizes))} bytes"
        for window in self.windows:
            begin = 0
            for steps in chunks.get(window.rank, ()):
                if steps.first_step != begin:
                    yield (
                        f"step times of rank {window.rank} continue at step {steps.first_step}, "
                        f"after {begin} steps"
                    )
                begin += len(steps.durations_s)
            repeats_s = [time_s for durations_s in timed.get(window.rank, ()) for time_s in durations_s]
            listed = f"rank {window.rank} lists {len(repeats_s)} repeats of {sum(repeats_s):g} s"
            counted = f"its window counts {window.num_steps} of {window.steps_s:g} s"
            if repeats_s and not (
                len(repeats_s) == window.num_steps == window.items
                and isclose(sum(repeats_s), window.steps_s, rel_tol=1e-3, abs_tol=1e-6)
            ):
                yield f"{listed}, and {counted}"

    def _misplaced(self) -> Iterator[str]:
        """Yield differences in hosts and rank counts between the case, the placement and the ranks."""
        if (placed := self._placement) is None:
            return
        named, num_ranks = self.case.placement.hosts, len(placed.hosts) * placed.ranks_per_host
        if named and named != placed.hosts:
            yield f"its case lists {', '.join(named)}, but it was scheduled on {', '.join(placed.hosts)}"
        if self.of(Start) and num_ranks != self.world_size:
            yield f"it was scheduled with {num_ranks} ranks, but has {self.world_size}"
        for node, hosts in grouped(self._hosts_by_node()).items():
            if len(set(hosts)) > 1:
                yield f"ranks of node {node} report that they ran on {', '.join(sorted(set(hosts)))}"

    @property
    def _placement(self) -> Placed | None:
        """The hosts on which all ranks ran; under the user's own launcher, only rank 0's is recorded."""
        is_of_all = self.placed is not None and (self.world_size == 1 or self.placed.address is not None)
        return self.placed if is_of_all else None

    def places_and_hosts(self) -> set[tuple[str, str]]:
        """Return the name of each host assigned to ranks, together with the host's own name."""
        names = dict(enumerate(self._placement.hosts)) if self._placement is not None else {}
        return {(names[node], host) for node, host in self._hosts_by_node() if node in names}

    def _hosts_by_node(self) -> Iterator[tuple[int, str]]:
        ranks_per_host = self.placed.ranks_per_host if self.placed is not None else 1
        return ((start.rank // ranks_per_host, start.host) for start in self.of(Start))

    @property
    def primary_failure(self) -> Failure | None:
        """Return the failure that caused the others; None if nothing failed."""
        return min(self.of(Failure), key=_precedence, default=None)

    @property
    def taken_s(self) -> float | None:
        """Seconds from a rank's first record to its result, for the slowest; None if no rank has both."""
        begins = {start.rank: start.monotonic_s for start in self.of(Start)}
        ends = [end for end in self.of(RankResult) if end.rank in begins]
        return max((end.monotonic_s - begins[end.rank] for end in ends), default=None)

    @property
    def setups(self) -> tuple[Setup, ...]:
        """The setup of each rank."""
        return self.of(Setup)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The measured window of each rank."""
        return self.of(Window)

    def step_times_s(self, rank: int, *, phase: str = "measure") -> list[float]:
        """Return one rank's step times in order; empty if they were not stored."""
        return [
            duration
            for steps in self.of(Steps)
            if steps.rank == rank and steps.phase == phase
            for duration in steps.durations_s
        ]


def without_contradictions(launches: Iterable[CaseRecords]) -> Iterator[CaseRecords]:
    """Yield the launches; if records contradict each other, only the failures and a note are kept.

    Inventories may use any host names, but a host's own name must refer to that host.
    """
    launches = list(launches)
    pairs = {pair for launch in launches for pair in launch.places_and_hosts()}
    names, hosts = {name for name, _ in pairs}, {host for _, host in pairs}
    mixed = {(name, host) for name, host in pairs if name != host and (name in hosts or host in names)}
    for launch in launches:
        reason = launch.first_contradiction
        for name, host in sorted(mixed & launch.places_and_hosts()):
            reason = reason or f"it was scheduled on {name}, but its ranks ran on {host}"
        name = f"{launch.case.case_id}/{launch.case.replicate}"
        note = f"records of {name} contradict each other: {reason}"
        yield launch if reason is None else replace(launch, records=launch.of(Failure), torn=(note,))


def without_copies(launches: Iterable[CaseRecords]) -> Iterator[CaseRecords]:
    """Yield the launches; any that repeats an earlier launch's process or window becomes a note."""
    seen: dict[tuple[str, float, float], str] = {}
    for launch in launches:
        name = f"{launch.case.case_id}/{launch.case.replicate}"
        traces = [(start.host, float(start.pid), start.monotonic_s) for start in launch.of(Start)]
        traces += [(w.host, w.begin_monotonic_s, w.end_monotonic_s) for w in launch.windows]
        original = next((seen[trace] for trace in traces if trace in seen), None)
        note = f"{name} is not a separate launch: its processes or windows are those of {original}"
        yield launch if original is None else replace(launch, records=(), torn=(note,))
        seen |= dict.fromkeys(traces, name) if original is None else {}
