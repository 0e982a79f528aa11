"""Is a window at the power cap long enough, and did its level hold? The oscillation itself is no doubt."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from gpuproof.analysis.power_cap import periods_text
from gpuproof.records.result import Doubt
from gpuproof.statistics.power_cap import PowerCapWindow
from gpuproof.units import share
from gpuproof.verdict.doubts.base import suspect


def at_power_cap(window: PowerCapWindow) -> Iterator[Doubt]:
    """Find too few periods of the cap's controller, and a level that changed under it or may have."""
    longer = f"benchmark.measure_by=time and benchmark.measure_seconds={ceil(window.needed_s)}"
    if window.verdict == "too short":
        yield suspect(
            "short-at-power-cap",
            f"too short at the power cap: {periods_text(window)}; would need {ceil(window.needed_s)} s",
            f"Set {longer}",
        )
    elif window.verdict == "unsteady":
        yield suspect(
            "unsteady",
            f"the level did not hold at the power cap: steps became {_changed(window)}",
            "Warm up longer (benchmark.warmup_steps), or look at clocks and temperature",
        )
    elif window.verdict == "cannot tell":
        detects = "any" if window.detects is None else f"one of under {share(window.detects)}"
        yield suspect(
            "steadiness-unknown",
            f"whether the level held at the power cap cannot be told: {periods_text(window)} differ so much "
            f"that a drift across the window would not show, if it was {detects}",
            "Raise benchmark.measure_seconds, or find out what makes periods differ",
        )


def _changed(window: PowerCapWindow) -> str:
    by = f"{share(abs(window.changed_by))} {'longer' if window.changed_by > 0 else 'shorter'}"
    if window.changed_at is None:
        return f"{by} from begin to end"
    return f"{by} at {share(window.changed_at)} of the window"
