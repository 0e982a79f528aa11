"""Can the figures of a probe be believed? Right values, and times that keep together."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.analysis.probes.figures import WRONG_VALUES, ProbeValue
from gpuproof.records.result import Doubt
from gpuproof.statistics.dispersion import noise
from gpuproof.units import count, seconds, share
from gpuproof.verdict.doubts.base import WRONG, Measured, Rule, invalid, suspect
from gpuproof.verdict.doubts.collectives import FEW_ITERATIONS, SCATTER


def wrong_words(measured: Measured) -> Iterator[Doubt]:
    """Find values that are not what was written or computed."""
    values = [value for value in _values(measured) if value.quantity == WRONG_VALUES]
    wrong = [value for value in values if value.value]
    if wrong:
        worst = max(wrong, key=lambda value: value.value or 0.0)
        evidence = "; ".join(worst.evidence)
        yield invalid(
            WRONG,
            f"{count(int(worst.value or 0))} values are wrong at {worst.subject} ({evidence}); "
            f"{len(wrong)} of {len(values)} comparisons found wrong values",
            "Take it out of service and send these records to its vendor; run it again to see whether it "
            "persists",
        )


def scattered_repeats(measured: Measured) -> Iterator[Doubt]:
    """Find figures whose repeats scatter, or are too few to tell. Each read at random is another one."""
    timed = [value for value in _values(measured) if value.durations_s and "access" not in value.labels]
    if few := [value for value in timed if len(value.durations_s) < FEW_ITERATIONS]:
        yield suspect(
            "few-steps",
            f"too few repeats were timed: {len(few[0].durations_s)}, and it takes at least {FEW_ITERATIONS}",
            "Raise the iterations of the probe",
        )
    wide = [(spread, value) for value in timed if (spread := noise(value.durations_s) or 0.0) > SCATTER]
    if wide:
        spread, worst = max(wide, key=lambda pair: pair[0])
        middle_s = sorted(worst.durations_s)[len(worst.durations_s) // 2]
        yield suspect(
            "noisy",
            f"of {len(wide)} of {len(timed)} figures the interquartile range of the times is over "
            f"{share(SCATTER)} of their median; most at {worst.subject}: {share(spread)} of "
            f"{seconds(middle_s)}",
            "Raise the iterations of the probe, look for what else used the links or the processors",
        )


RULES: tuple[Rule, ...] = (wrong_words, scattered_repeats)
"""Of launches that look at one property, and run no steps of equal work."""


def _values(measured: Measured) -> tuple[ProbeValue, ...]:
    return () if measured.probe is None else measured.probe.values
