"""Pictures of a matrix: memory over time and in bars, and what is compared with its intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.page import Axis, Chart, Picture, Series
from gpuproof.records.result import Better
from gpuproof.suites.matrix.compare import configurations
from gpuproof.suites.matrix.figures import Amount, CaseFigures, shown_memory

MOST = 24
"""Lines or rows of one picture."""


def memory_timeline(cases: Sequence[CaseFigures]) -> Picture:
    """Return the memory of each configuration's first launch since it began.

    Raises:
        EnvironmentUnfitError: no case has any.
    """
    memory = shown_memory(cases)
    shown = _firsts(cases, lambda case: bool(memory(case).course))
    left_out = f"; {len(shown) - MOST} more are not drawn" if len(shown) > MOST else ""
    shown = shown[:MOST]
    chart = Chart(
        title="",
        kind="line",
        x=Axis(label="time since each began", unit="s", reach=(0.0,)),
        y=Axis(label="memory", unit="B", reach=(0.0,)),
        series=tuple(
            Series(name=case.configuration, points=memory(case).course, form="step") for case in shown
        ),
    )
    return Picture(
        title="Memory over time",
        subtitle=f"{_bases(shown, memory)}; first launch of each of {len(shown)} configurations{left_out}",
        charts=(chart,),
    )


def memory_bars(cases: Sequence[CaseFigures]) -> Picture:
    """Return mean and peak memory of each configuration's first launch.

    Raises:
        EnvironmentUnfitError: as `memory_timeline`.
    """
    memory = shown_memory(cases)
    shown = _firsts(cases, lambda case: memory(case).peak_bytes is not None)[:MOST]
    means = [(mean, float(row)) for row, c in enumerate(shown) if (mean := memory(c).mean_bytes) is not None]
    peaks = [(peak, float(row)) for row, c in enumerate(shown) if (peak := memory(c).peak_bytes) is not None]
    chart = Chart(
        title="",
        kind="bar",
        x=Axis(label="memory", unit="B"),
        y=Axis(label="", names=tuple(case.configuration for case in shown)),
        series=(
            Series(name="mean", points=tuple(means)),
            Series(name="peak", points=tuple(peaks), form="tick", colour="ink"),
        ),
    )
    return Picture(title="Memory of the cases", subtitle=_bases(shown, memory), charts=(chart,))


def comparison(cases: Sequence[CaseFigures], *, metric: str, better: Better, seed: str) -> Picture:
    """Return what is compared: each configuration's launches, their mean and its interval.

    Raises:
        EnvironmentUnfitError: no case has a value.
    """
    shown = [one for one in configurations(cases, metric, better, seed=seed) if one.mean is not None][:MOST]
    _refuse_without(shown, f"no case has {metric}")
    intervals = [(float(row), one.interval) for row, one in enumerate(shown) if one.interval is not None]
    chart = Chart(
        title="",
        kind="scatter",
        x=Axis(label=metric),
        y=Axis(label="", names=tuple(one.name for one in shown)),
        series=(
            Series(
                name="95 % interval of the mean",
                points=tuple((low, row) for row, (low, _) in intervals),
                ranges=tuple(ends for _, ends in intervals),
                form="range",
            ),
            Series(
                name="a launch",
                points=tuple((v, float(n)) for n, one in enumerate(shown) for v in one.values),
            ),
            Series(
                name="mean",
                points=tuple((one.mean or 0.0, float(row)) for row, one in enumerate(shown)),
                form="tick",
                colour="ink",
            ),
        ),
    )
    return Picture(title=metric, subtitle=f"{better} is better", charts=(chart,))


def _firsts(cases: Sequence[CaseFigures], is_shown: Callable[[CaseFigures], bool]) -> list[CaseFigures]:
    """Return the first launch of each configuration of those that have memory.

    Raises:
        EnvironmentUnfitError: none has.
    """
    first: dict[str, CaseFigures] = {}
    for case in filter(is_shown, cases):
        first.setdefault(case.configuration, case)
    _refuse_without(first, "no case has memory over time")
    return list(first.values())


def _refuse_without(drawn: object, reason: str) -> None:
    if not drawn:
        raise EnvironmentUnfitError(reason)


def _bases(shown: Sequence[CaseFigures], memory: Callable[[CaseFigures], Amount]) -> str:
    return ", ".join(dict.fromkeys(memory(case).basis for case in shown))
