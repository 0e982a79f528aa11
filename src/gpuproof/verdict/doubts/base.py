"""What a rule of validity sees, and how it says what it found.

INVALID: the figures contradict each other, or what is physically possible, or what was asked.
SUSPECT: something disturbed or weakened the measurement. VALID is what is left when nothing was found.

One disturbance shows in several ways: who takes the processors makes steps scatter and drift, and launches
differ. So doubts are told with the likely cause of the others first, and it is named in one line.
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
from gpuproof.statistics.power_cap import PowerCapWindow

if TYPE_CHECKING:  # a launch is of one kind of work, and imports no other's
    from gpuproof.launches.collectives import CollectiveLaunch
    from gpuproof.launches.probes import ProbeLaunch
    from gpuproof.launches.served import Served

WRONG: Final = "wrong-results"
"""The code of a doubt that wrong results raise."""
SHORT_AT_POWER_CAP: Final = "short-at-power-cap"
"""That of a window which ended before the controller at the power cap had settled."""
REPORT_IT = "Please report it: the records contradict each other"
LIKELY: Mapping[str, str] = {row["code"]: row["words"] for row in packaged_rows(DOUBTS)}
"""What a doubt says in a few words, the likeliest cause of the others first: what names somebody or something
comes first, what only describes a symptom later, and last what is a matter of how much was asked for or of
how figures may be quoted."""
LAST = len(LIKELY)
GRAVEST: Final[Sequence[Validity]] = ("INVALID", "SUSPECT", "VALID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A launch and what its figures are held against."""

    launch: Launch
    peak: Peak | None = None
    memory_peak: BandwidthPeak | None = None
    clock_max_mhz: float | None = None
    """The highest clock that its devices may run at; None where nobody read it."""
    power_cap: PowerCapWindow | None = None
    """What its window says at the power cap; None where it was not at it."""
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


def likely_first(doubts: Sequence[Doubt]) -> list[Doubt]:
    """Order doubts by gravity, and those of one gravity by what is likely to explain the others."""
    places = {code: place for place, code in enumerate(LIKELY)}
    return sorted(doubts, key=lambda doubt: (GRAVEST.index(doubt.validity), places.get(doubt.code, LAST)))


def in_one_line(doubts: Sequence[Doubt]) -> str:
    """Name the likeliest of what makes figures SUSPECT, and how many more there are.

    >>> doubts = [Doubt(validity="SUSPECT", code=c, reason="", remedy="") for c in ("noisy", "cpu-steal")]
    >>> in_one_line(doubts)
    'most likely other machines on this hypervisor; 1 more reason below'
    >>> in_one_line(doubts[:1])
    'steps that scatter'
    """
    first, *others = dict.fromkeys(doubt.code for doubt in likely_first(doubts))
    cause = LIKELY.get(first, first.replace("-", " "))
    return f"most likely {cause}{more_below(len(others))}" if others else cause
