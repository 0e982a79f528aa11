"""What a rule of validity sees, and how it says what it found.

INVALID: the figures contradict each other, or what is physically possible, or what was asked.
SUSPECT: something disturbed or weakened the measurement. VALID is what is left when nothing was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuproof.analysis.collectives import CollectiveLaunch
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.probes.figures import ProbeLaunch
from gpuproof.analysis.requests.served import Served
from gpuproof.hardware import BandwidthPeak, Peak
from gpuproof.records.result import Doubt

REPORT_IT = "Please report it: the records contradict each other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A launch and what its figures are held against."""

    launch: Launch
    peak: Peak | None = None
    memory_peak: BandwidthPeak | None = None
    clock_max_mhz: float | None = None
    """The highest clock that its devices may run at; None where nobody read it."""
    served: Served | None = None
    """The requests of its window; None where it served none."""
    collectives: CollectiveLaunch | None = None
    """The operations over all ranks; None where it measured none."""
    probe: ProbeLaunch | None = None
    """The figures of a probe; None where it was none."""


Rule = Callable[[Measured], Iterator[Doubt]]


def invalid(code: str, reason: str, remedy: str = REPORT_IT) -> Doubt:
    """Return a doubt that leaves nothing of the figures."""
    return Doubt(validity="INVALID", code=code, reason=reason, remedy=remedy)


def suspect(code: str, reason: str, remedy: str) -> Doubt:
    """Return a doubt about the figures."""
    return Doubt(validity="SUSPECT", code=code, reason=reason, remedy=remedy)
