"""Analyse hangs: which collective operation ranks wait in, and which ranks did not reach it.

Input: the last report of every rank, with the progress of its device. A waiting rank and a rank that others
wait for look the same from the host; they are distinguished by how many operations each has requested and
started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gpuproof.base import units
from gpuproof.records.collected import CaseRecords
from gpuproof.records.progress import CollectiveCall, RankProgress
from gpuproof.records.run import Failure, RankResult, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Ranks that wait for each other."""

    operation: str | None
    """The last operation that any rank has reached; None if it was not recorded."""
    number: int | None
    waiting: tuple[int, ...]
    """Ranks that reached it."""
    late: tuple[int, ...]
    """Ranks that had not reached it, according to their last report."""
    silent: tuple[int, ...]
    """Ranks that reported nothing: stopped, or on a host that is unreachable."""
    hosts: Mapping[int, str]
    """Host of each rank that started, by its inventory name."""
    is_finished: bool | None = None
    """Whether all ranks completed the operation; None if no device reported it, as over gloo."""

    @property
    def stopped_hosts(self) -> tuple[str, ...]:
        """Hosts of ranks that others wait for: silent ones if any, as late ones may be waiting for them."""
        ranks = (self.silent or self.late) if self.waiting else ()
        return tuple(dict.fromkeys(self.hosts[rank] for rank in ranks if rank in self.hosts))

    @property
    def text(self) -> str:
        """Summary for the user, as one sentence."""
        where = self.operation or "a step"
        where = f"{where} (number {self.number})" if self.number is not None else where
        waiting = f"{self._named(self.waiting)} {_verb(self.waiting, 'wait')} in {where}"
        if not self.late and not self.silent:
            return f"all ranks have reached {where}{_END[self.is_finished]}"
        late = f", which {self._named(self.late)} did not reach" if self.late else ""
        silent = f"; {self._named(self.silent)} reported nothing" if self.silent else ""
        return f"{waiting}{late}{silent}"

    def _named(self, ranks: Sequence[int]) -> str:
        if len(ranks) > MOST_NAMED:
            return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:MOST_NAMED]))} …)"
        return " and ".join(
            f"rank {rank} on {self.hosts[rank]}" if rank in self.hosts else f"rank {rank}" for rank in ranks
        )


MOST_NAMED = 8
_END: Mapping[bool | None, str] = {
    False: ", but it does not finish: check the links between them",
    True: " and finished it: none waits for another there",
    None: "; whether it finished is not known: it does not finish, or each is busy or stuck after it",
}


def _verb(ranks: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb


def explain_hang(records: CaseRecords) -> Hang | None:
    """Return which ranks wait for which; None if no rank hung, or there is no other rank to wait for."""
    words = {f.rank: f for f in records.of(Failure) if f.rank is not None}
    if records.world_size < 2 or not any(failure.cause == "hang" for failure in words.values()):
        return None
    done = {result.rank for result in records.of(RankResult)}
    silent = tuple(rank for rank in range(records.world_size) if rank not in done and rank not in words)
    progress = {rank: failure.progress for rank, failure in words.items() if failure.progress is not None}
    if not progress:
        return None
    calls = [call for state in progress.values() for call in state.calls]
    # the operation that the ranks furthest ahead have reached
    last = max(calls, key=lambda call: call.number, default=None)
    late = _late(progress, last)
    return Hang(
        operation=_operation(last, progress),
        number=None if last is None else last.number,
        waiting=tuple(sorted(rank for rank in progress if rank not in late)),
        late=late,
        silent=silent,
        hosts={start.rank: records.host_of(start) for start in records.of(Start)},
        is_finished=_is_finished(progress, last),
    )


def _is_finished(progress: Mapping[int, RankProgress], last: CollectiveCall | None) -> bool | None:
    """Return whether the last operation is over on all devices: by its state, else by timed steps."""
    if last is None:
        return False if any(state.begun != state.completed for state in progress.values()) else None
    states = {_state(state, last.number) for state in progress.values()}
    if states == {"completed"}:
        return True
    return False if states & {"started", "completed"} else None


def _late(progress: Mapping[int, RankProgress], last: CollectiveCall | None) -> tuple[int, ...]:
    """Return the ranks that are behind: by operations requested, else by those started on devices."""
    requested = {rank: state.collectives for rank, state in progress.items() if state.collectives is not None}
    if len(set(requested.values())) > 1:
        foremost = max(requested.values())
        return tuple(sorted(rank for rank, count in requested.items() if count < foremost))
    started = {rank for rank, state in progress.items() if last and _state(state, last.number) == "started"}
    if started:
        return tuple(sorted(set(progress) - started))
    begun = {rank: state.begun for rank, state in progress.items() if state.begun is not None}
    foremost = max(begun.values(), default=0)
    return tuple(sorted(rank for rank, count in begun.items() if count < foremost))


def _state(progress: RankProgress, number: int) -> str | None:
    return next((call.state for call in progress.calls if call.number == number), None)


def _operation(last: CollectiveCall | None, progress: Mapping[int, RankProgress]) -> str | None:
    """Return torch's name for the operation, or else the name of the timed operation."""
    if last is None:
        return next((state.operation for state in progress.values() if state.operation), None)
    elements = sum(map(prod, last.sizes))
    return f"{last.operation.partition(':')[2] or last.operation} of {units.count(elements)} elements"
