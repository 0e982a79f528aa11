"""Plant every fault of the catalogue, judge it and its healthy twin, and say what was missed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base.errors import ExitCode, GpuproofError
from gpuproof.processes.scratch import scratch_folder
from gpuproof.selftest.catalogue import FAULTS, TWINS, Fault, Layer, Twin
from gpuproof.selftest.judging import Turned
from gpuproof.selftest.worker import reason_against

HEALTHY = "READY"
NOT_RUN = "NOT RUN"
SIMULATED: tuple[Twin, ...] = ("products", "training", "fingerprints", "copies")
BY_SEED: tuple[Twin, ...] = ("fleet", "links", "past", "alone")
"""Twins that chance has a part in, that cost no process and are small: tried with as many seeds as asked."""
SIDE_BY_SIDE: dict[Layer, int] = {"worker": 2, "device": 7, "records": 1}
"""Tests at a time, by what they need: ranks that compute would only wait for each other on a small
machine; who records a driver waits for the clock (all six faults and their twin at once); what is made up is
written and judged in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """A fault, or a healthy twin, and what it came to."""

    fault: str
    layer: Layer | None
    """None of a twin."""
    expected: str
    got: str
    cause: str
    """The line that names the cause; of what was missed, what was said instead; of a twin that passed, empty:
    a doubt that its verdict withstood is no accusation."""
    is_found: bool
    """Of a twin: whether nobody accused it."""
    num_tried: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestReport:
    """All faults and all twins."""

    faults: tuple[FaultRow, ...]
    healthy: tuple[FaultRow, ...]

    @property
    def exit_code(self) -> ExitCode:
        """Return 3 where a fault was missed or a healthy twin accused, 4 where something was not run."""
        rows = (*self.faults, *self.healthy)
        if any(not row.is_found and row.got != NOT_RUN for row in rows):
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if any(row.got == NOT_RUN for row in rows) else ExitCode.DONE


def run_selftest(*, num_seeds: int, is_quick: bool) -> SelftestReport:
    """Plant each fault, or one of each class, and judge it and its twin, in so many draws of chance."""
    unable = reason_against()
    planted = [fault for fault in FAULTS if fault.is_quick or not is_quick]
    twins = [name for name in TWINS if any(fault.twin == name for fault in planted)]
    with scratch_folder("selftest-") as scratch:
        bench = PlantedTests(scratch=scratch, unable=unable, num_seeds=num_seeds)
        with ExitStack() as stack:
            pools = {
                layer: stack.enter_context(ThreadPoolExecutor(num)) for layer, num in SIDE_BY_SIDE.items()
            }
            faults = [pools[_needs(fault.twin)].submit(bench.fault, fault) for fault in planted]
            healthy = [pools[_needs(name)].submit(bench.twin, name) for name in twins]
            return SelftestReport(
                faults=tuple(row.result() for row in faults), healthy=tuple(row.result() for row in healthy)
            )


def _needs(twin: Twin) -> Layer:
    """Return what a test is made of: ranks, a recording, or nothing but what is written."""
    if twin in SIMULATED:
        return "worker"
    return "device" if twin == "devices" else "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTests:
    """Faults and twins, judged in folders of their own."""

    scratch: Path
    unable: str | None
    num_seeds: int

    def twin(self, name: Twin) -> FaultRow:
        """Judge a healthy twin in every draw; one draw in which it is accused decides."""
        draws = self._draws(name, TWINS[name])
        worst = next((one for one in draws if one.word != HEALTHY), draws[0])
        return FaultRow(
            fault=f"none ({name})",
            layer=None,
            expected=HEALTHY,
            got=worst.word,
            cause="" if worst.word == HEALTHY else next(iter(worst.against), "nothing was said"),
            is_found=worst.word == HEALTHY,
            num_tried=len(draws),
        )

    def fault(self, fault: Fault) -> FaultRow:
        """Judge a fault in every draw; one draw in which it is missed decides."""
        draws = self._draws(fault.twin, fault.judge)
        worst = next((one for one in draws if named(fault, one) is None), draws[0])
        cause = named(fault, worst)
        return FaultRow(
            fault=fault.name,
            layer=fault.layer,
            expected=" or ".join(fault.expected),
            got=worst.word,
            cause=cause or next(iter(worst.against), "nothing was said"),
            is_found=cause is not None,
            num_tried=len(draws),
        )

    def _draws(self, twin: Twin, judge: Callable[[Path, int], Turned]) -> Sequence[Turned]:
        if twin in SIMULATED and self.unable is not None:
            return [Turned(word=NOT_RUN, against=(self.unable,))]
        seeds = range(self.num_seeds if twin in BY_SEED else 1)
        return [self._draw(judge, seed) for seed in seeds]

    def _draw(self, judge: Callable[[Path, int], Turned], seed: int) -> Turned:
        try:
            with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                return judge(Path(folder), seed)
        except GpuproofError as error:
            return Turned(word=NOT_RUN, against=(str(error),))


def named(fault: Fault, verdict: Turned) -> str | None:
    """Return the line that names the cause; None where the verdict did not turn, or no line names it."""
    if verdict.word not in fault.expected:
        return None
    return next((line for line in verdict.against if all(part in line for part in fault.names)), None)
