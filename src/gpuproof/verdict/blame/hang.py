"""Who hangs: at which collective operation ranks wait, and which ranks did not arrive there.

In: the last words of every rank, with what its device had reached. A rank that waits and one that is waited
for look alike from the host; how many operations each has asked for, and begun, tells them apart.
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
    """The last one, over all ranks, that any rank has come to; None where nobody recorded it."""
    number: int | None
    waiting: tuple[int, ...]
    """Ranks that arrived."""
    late: tuple[int, ...]
    """Ranks that said their last words elsewhere."""
    silent: tuple[int, ...]
    """Ranks that said nothing: stopped, or on a host that is cut off."""
    hosts: Mapping[int, str]
    """Of each rank that began, as the inventory names it."""

    @property
    def stopped_hosts(self) -> tuple[str, ...]:
        """Hosts of the ranks that others wait for: the silent ones, for which late ones may wait too."""
        ranks = (self.silent or self.late) if self.waiting else ()
        return tuple(dict.fromkeys(self.hosts[rank] for rank in ranks if rank in self.hosts))

    @property
    def text(self) -> str:
        """What a person needs to know."""
        where = self.operation or "a step"
        where = f"{where} (number {self.number})" if self.number is not None else where
        waiting = f"{self._named(self.waiting)} {_verb(self.waiting, 'wait')} in {where}"
        if not self.late and not self.silent:
            return f"all ranks have come to {where}, and it does not end: look at the links between them"
        late = f", to which {self._named(self.late)} did not come" if self.late else ""
        silent = f"; {self._named(self.silent)} reported nothing" if self.silent else ""
        return f"{waiting}{late}{silent}"

    def _named(self, ranks: Sequence[int]) -> str:
        if len(ranks) > MOST_NAMED:
            return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:MOST_NAMED]))} …)"
        return " and ".join(
            f"rank {rank} on {self.hosts[rank]}" if rank in self.hosts else f"rank {rank}" for rank in ranks
        )


MOST_NAMED = 8


def _verb(ranks: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb


def explain_hang(records: CaseRecords) -> Hang | None:
    """Return who waits for whom; None where no rank hung, or no other rank is there to wait for."""
    words = {f.rank: f for f in records.of(Failure) if f.rank is not None}
    if records.world_size < 2 or not any(failure.cause == "hang" for failure in words.values()):
        return None
    done = {result.rank for result in records.of(RankResult)}
    silent = tuple(rank for rank in range(records.world_size) if rank not in done and rank not in words)
    progress = {rank: failure.progress for rank, failure in words.items() if failure.progress is not None}
    if not progress:
        return None
    calls = [call for state in progress.values() for call in state.calls]
    last = max(calls, key=lambda call: call.number, default=None)  # that the foremost ranks have come to
    late = _late(progress, last)
    return Hang(
        operation=_operation(last, progress),
        number=None if last is None else last.number,
        waiting=tuple(sorted(rank for rank in progress if rank not in late)),
        late=late,
        silent=silent,
        hosts={start.rank: records.host_of(start) for start in records.of(Start)},
    )


def _late(progress: Mapping[int, RankProgress], last: CollectiveCall | None) -> tuple[int, ...]:
    """Return the ranks behind the foremost: by operations asked for, then by what devices have begun."""
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
    """Name the operation as torch has it, else the one that was timed."""
    if last is None:
        return next((state.operation for state in progress.values() if state.operation), None)
    elements = sum(map(prod, last.sizes))
    return f"{last.operation.partition(':')[2] or last.operation} of {units.count(elements)} elements"
