"""What a recipe's figures are made of, launch by launch: points and hosts are added up by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof import units
from gpuproof.analysis.explanations import RunEnergy
from gpuproof.analysis.point_figures import ENERGY, ITEMS, RATE_ONE_BY_ONE, STEP, STEPS, THROUGHPUT, WINDOW
from gpuproof.records.result import LaunchValue, Measure
from gpuproof.suites.measures import with_interval
from gpuproof.verdict.summary import RunSummary


def total_measures(
    summary: RunSummary, rates: tuple[LaunchValue, ...], energy: RunEnergy | None
) -> tuple[Measure, ...]:
    """Return items, steps, windows and energy of all launches; none where nothing was measured.

    They have no better direction, since rates and step times say the same: nothing is judged twice.
    """
    if not summary.launches:
        return ()
    measures = [*_of_launches(summary, rates), *_energy(energy)]
    if summary.launches[0].case.measures_latency:
        measures.append(replace(rate_measure(summary, rates), name=RATE_ONE_BY_ONE, better=None))
    return tuple(replace(measure, validity=summary.validity) for measure in measures)


def rate_measure(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Measure:
    """Return the items of all launches a second."""
    item, rate = summary.launches[0].setup.item, summary.items_per_s_total
    text, interval = units.rate(rate, item), summary.items_per_s_total_interval
    total = with_interval(THROUGHPUT, rate, f"{item}/s", text, interval, better="higher", launches=rates)
    return replace(total, statistic="total", labels={"num_devices": summary.launches[0].num_devices})


def _of_launches(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Iterator[Measure]:
    launches, item = summary.launches, summary.launches[0].setup.item
    num_steps = [launch.slowest.num_steps for launch in launches]
    amounts: tuple[tuple[str, float | None, str, Sequence[float]], ...] = (
        (ITEMS, summary.items_total, item, [launch.items_total for launch in launches]),
        (STEPS, sum(num_steps), "steps", num_steps),
        (WINDOW, summary.window_s, "s", [launch.slowest.wall_s for launch in launches]),
        (STEP, summary.mean_step_s, "s", [launch.mean_step_s for launch in launches]),
    )
    for name, value, unit, values in amounts:
        yield Measure(
            name=name,
            value=value,
            unit=unit,
            text=units.seconds(value) if unit == "s" else f"{units.count(int(value or 0))} {unit}",
            statistic="mean" if name == STEP else "total",
            launches=tuple(replace(rate, value=of) for rate, of in zip(rates, values, strict=True)),
        )


def _energy(energy: RunEnergy | None) -> Iterator[Measure]:
    if energy is not None and energy.energy_j is not None:
        text = f"{units.significant(energy.energy_j)} J"
        yield Measure(name=ENERGY, value=energy.energy_j, unit="J", text=text, statistic="total")
