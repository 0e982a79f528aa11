"""The input of a validity rule, and how the rule reports its findings.

INVALID: the results contradict each other, what is physically possible, or the request.
SUSPECT: something disturbed or weakened the measurement. VALID: none of these was found.

One disturbance has several symptoms: if other processes use the CPUs, step times scatter and drift, and
launches differ. So the warning that likely causes the others comes first, and is reported in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuproof.base.files import packaged_rows
from gpuproof.base.units import more_below
from gpuproof.hardware.boards import BandwidthPeak, Peak
from gpuproof.launches.launch import Launch
from gpuproof.records.result import DOUBTS, Doubt, Validity
from gpuproof.records.run import Setup
from gpuproof.statistics.power_cap import PowerCapWindow

if TYPE_CHECKING:  # a launch runs one kind of workload, so modules for other kinds are not imported
    from gpuproof.launches.collectives import CollectiveLaunch
    from gpuproof.launches.probes import ProbeLaunch
    from gpuproof.launches.served import Served

WRONG: Final = "wrong-results"
"""The code of the warning about wrong results."""
SHORT_AT_POWER_CAP: Final = "short-at-power-cap"
"""The code of the warning about a window with too few periods of the power cap's controller."""
REPORT_IT = "Please report it: the records contradict each other"
LIKELY: Mapping[str, str] = {row["code"]: row["words"] for row in packaged_rows(DOUBTS)}
"""Cause of each warning in a few words, keyed by warning code and ordered by how likely it is to cause the
others. Warnings that identify a specific cause come first, those that only describe a symptom later, and last
those that depend on how much was requested or how results may be quoted."""
LAST = len(LIKELY)
GRAVEST: Final[Sequence[Validity]] = ("INVALID", "SUSPECT", "VALID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A launch, and what its results are compared with."""

    launch: Launch
    peak: Peak | None = None
    memory_peak: BandwidthPeak | None = None
    clock_max_mhz: float | None = None
    """The highest clock that its devices may run at; None if it was not read."""
    power_cap: PowerCapWindow | None = None
    """Findings about its window at the power cap; None if the device was not at the cap."""
    served: Served | None = None
    """The requests in its window; None if it did not serve any."""
    collectives: CollectiveLaunch | None = None
    """The operations across all ranks; None if it did not measure any."""
    probe: ProbeLaunch | None = None
    """The results of a probe; None if it was not a probe."""


Rule = Callable[[Measured], Iterator[Doubt]]


def invalid(code: str, reason: str, remedy: str = REPORT_IT) -> Doubt:
    """Return a warning that invalidates the results."""
    return Doubt(validity="INVALID", code=code, reason=reason, remedy=remedy)


def suspect(code: str, reason: str, remedy: str) -> Doubt:
    """Return a warning that makes the results SUSPECT."""
    return Doubt(validity="SUSPECT", code=code, reason=reason, remedy=remedy)


def likely_first(doubts: Sequence[Doubt]) -> list[Doubt]:
    """Order warnings by severity; within one severity, those likely to explain others come first."""
    places = {code: place for place, code in enumerate(LIKELY)}
    return sorted(doubts, key=lambda doubt: (GRAVEST.index(doubt.validity), places.get(doubt.code, LAST)))


def in_one_line(doubts: Sequence[Doubt]) -> str:
    """Name the likeliest cause of SUSPECT results, and the number of further warnings.

    >>> doubts = [Doubt(validity="SUSPECT", code=c, reason="", remedy="") for c in ("noisy", "cpu-steal")]
    >>> in_one_line(doubts)
    'most likely other machines on this hypervisor; 1 more reason below'
    >>> in_one_line(doubts[:1])
    'noisy steps'
    """
    first, *others = dict.fromkeys(doubt.code for doubt in likely_first(doubts))
    cause = LIKELY.get(first, first.replace("-", " "))
    return f"most likely {cause}{more_below(len(others))}" if others else cause


def fewer_threads(setups: Sequence[Setup]) -> str:
    """Advise fewer threads, unless ranks have only one or run none of our code (an endpoint, no-op)."""
    has_threads = any(setup.threads > 1 for setup in setups)
    return ", or lower distributed.threads_per_rank" if has_threads else ""
