"""Results by rank (location, step times, which rank lags), and each device's throughput.

A device's rate, used by rules about a GPU, is the amount of work that its rank completed in its own window,
per unit of time. For plain matmuls it is in FLOP/s, for passes over memory in bytes/s, for models in items
per second. Ranks that average gradients all run at the pace of the slowest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import median
from typing import Any

from gpuproof.base import units
from gpuproof.hardware.boards import PEAK_TYPE_OF_PRECISION
from gpuproof.launches.launch import Launch, throughput
from gpuproof.launches.ranks import Basis, RanksCompared, compare_ranks
from gpuproof.launches.subjects import subjects_of_ranks
from gpuproof.records.page import Cell, Section, Text
from gpuproof.records.page.tables import Column, measure_column, pivot
from gpuproof.records.result import LaunchValue, Measure
from gpuproof.records.work.probe import COSTS, ProbeReading
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_rates
from gpuproof.suites.results import with_interval
from gpuproof.verdict.doubts.collectives import device_name
from gpuproof.verdict.summary import RunSummary

QUANTITIES = ("window", "step", "alone", "vs others")
LAG = QUANTITIES[-1]
PLAIN_WORK = {"gemm": "FLOP/s", "memory": "B/s"}
"""Workloads for which the rate is the throughput of the device rather than a number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksShown:
    """The ranks of a single launch: the one in which they differ most."""

    replicate: int
    basis: Basis
    names: Mapping[str, tuple[str, str]]
    """Host and device of each rank."""
    apart: tuple[int, ...]
    own_missing: str | None


def ranks_shown(launches: Sequence[Launch]) -> tuple[RanksShown | None, list[Measure]]:
    """Choose the launch whose ranks are shown, and measure them; None if launches have a single rank."""
    compared = [(launch, ranks) for launch in launches if (ranks := compare_ranks(launch)) is not None]
    if not compared:
        return None, []
    launch, comparison = max(compared, key=lambda pair: (len(pair[1].apart) > 0, _spread(pair[1])))
    shown = RanksShown(
        replicate=launch.case.replicate,
        basis=comparison.basis,
        names={str(rank.rank): (rank.host, device_name(rank)) for rank in comparison.ranks},
        apart=tuple(rank.rank for rank in comparison.apart),
        own_missing=comparison.own_missing,
    )
    return shown, list(_measures(launch, comparison))


def _spread(comparison: RanksCompared) -> float:
    lags = [rank.slower_by for rank in comparison.ranks]
    return max(lags) - min(lags)


def _measures(launch: Launch, comparison: RanksCompared) -> Iterator[Measure]:
    subjects = subjects_of_ranks(launch.case, launch.windows, launch.setups)
    for rank, subject in zip(comparison.ranks, subjects, strict=True):
        values = (rank.window_s, rank.step_s, rank.own_step_s, rank.slower_by)
        for quantity, value in zip(QUANTITIES, values, strict=True):
            if value is not None:
                yield Measure(
                    name=f"rank {quantity}",
                    value=value,
                    unit="1" if quantity == LAG else "s",
                    text=_text(quantity, value),
                    subject=subject.device,
                    labels={"rank": rank.rank, "replicate": launch.case.replicate, "quantity": quantity},
                )


def _text(quantity: str, value: float) -> str:
    if quantity == LAG:
        return units.change(value).replace("-", "−")
    return units.seconds(value, digits=4 if quantity == "window" else 3)


def sections_of_ranks(
    shown: RanksShown, measures: Sequence[Measure], *, num_launches: int
) -> Iterator[Section]:
    """Lay out the results by rank, and explain them."""

    def lag(measure: Measure) -> Cell:
        return Cell(measure.text, "warn" if measure.labels["rank"] in shown.apart else "plain")

    yield pivot(
        f"Ranks of launch {shown.replicate + 1}" if num_launches > 1 else "Ranks",
        measures,
        (
            Column.of("rank", lambda measure: str(measure.labels["rank"])),
            Column.of("host", lambda measure: shown.names[str(measure.labels["rank"])][0], align="left"),
            Column.of("device", lambda measure: shown.names[str(measure.labels["rank"])][1], align="left"),
        ),
        *(
            measure_column(quantity, quantity, is_optional=quantity == "alone")
            for quantity in QUANTITIES[:-1]
        ),
        measure_column(LAG, LAG, lag),
    )
    yield Text(title="", lines=(_explanation(shown),))


def _explanation(shown: RanksShown) -> str:
    if shown.basis == "own steps":
        return (
            "each window is as long as the slowest rank's, since ranks average gradients; alone: median step "
            "without averaging, after the window"
        )
    if shown.basis == "steps in the window":
        return "each rank worked alone: its steps do not wait for other ranks"
    why = shown.own_missing or "steps of each rank were not timed alone (benchmark.own_compute)"
    return f"ranks wait for each other in every step, so it is not known which of them is slow: {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceRate:
    launch: Launch
    labels: Mapping[str, Any]
    value: LaunchValue
    amount: float
    window_s: float


def device_measures(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Iterator[Measure]:
    """Yield the throughput of each device, and the number of wrong results on it.

    `rates` are the rates of entire launches.
    """
    by_subject: dict[str, list[_DeviceRate]] = {}
    checks: dict[tuple[str, str], list[ProbeReading]] = {}
    for launch, of_launch in zip(summary.launches, rates, strict=True):
        labels = _labels(launch)
        subjects = [rank.device for rank in subjects_of_ranks(launch.case, launch.windows, launch.setups)]
        for subject, amount, window in zip(subjects, _amounts(launch), launch.windows, strict=True):
            if amount is not None:
                value = replace(of_launch, value=throughput(amount, window.wall_s))
                rate = _DeviceRate(
                    launch=launch, labels=labels, value=value, amount=amount, window_s=window.wall_s
                )
                by_subject.setdefault(subject, []).append(rate)
        for check in (*launch.checks, *launch.costs):
            checks.setdefault((subjects[check.rank], check.quantity), []).append(check)
    for subject, rates_of_device in by_subject.items():
        yield _measure(subject, rates_of_device, summary)
    for (subject, quantity), of_subject in checks.items():
        measure = _cost if quantity in COSTS else _wrong_values
        yield measure(subject, of_subject, summary.launches[0])


def _amounts(launch: Launch) -> list[float | None]:
    """Return the amount of each rank's work as FLOPs, bytes or items; None if it cannot be counted."""
    name = launch.case.model_work.model.name
    pairs = list(zip(launch.setups, launch.windows, strict=True))
    if name == "gemm":
        return [_total(setup.flops_per_step, window.num_steps) for setup, window in pairs]
    if name == "memory":
        return [_total(setup.bytes_per_step, window.num_steps) for setup, window in pairs]
    # if one process uses several devices, it is unknown how much each did
    alone = [setup.replicas is None or setup.replicas.num_devices == 1 for setup in launch.setups]
    return [float(window.items) * factor or None for factor, (_, window) in zip(alone, pairs, strict=True)]


def _total(per_step: float | None, num_steps: int) -> float | None:
    return None if per_step is None else per_step * num_steps


def _measure(subject: str, rates: Sequence[_DeviceRate], summary: RunSummary) -> Measure:
    first = rates[0].launch
    name = first.case.model_work.model.name
    unit = PLAIN_WORK.get(name, f"{first.setup.item}/s")
    launches = tuple(rate.value for rate in rates)
    value = throughput(fsum(rate.amount for rate in rates), fsum(rate.window_s for rate in rates))
    return with_interval(
        "throughput",
        value,
        unit,
        _device_text(value, unit, first.setup.item),
        _interval(launches, summary),
        better="higher",
        launches=launches,
        subject=subject,
        statistic="total",
        labels=rates[0].labels,
    )


def _device_text(value: float, unit: str, item: str) -> str:
    if unit == "FLOP/s":
        return units.flops(value)
    return units.bandwidth(value) if unit == "B/s" else units.rate(value, item)


def _interval(launches: Sequence[LaunchValue], summary: RunSummary) -> Interval | Unavailable:
    """Return the interval between launches; for one device and one launch, its own, converted."""
    values = [launch.value for launch in launches]
    whole = summary.throughput_interval
    if len(summary.launches) > 1 or summary.launches[0].world_size > 1:
        return interval_of_rates(values)
    if isinstance(whole, Unavailable):
        return whole
    scale = values[0] / whole.centre
    return replace(whole, low=whole.low * scale, high=whole.high * scale, centre=values[0])


def _labels(launch: Launch) -> dict[str, Any]:
    """Return labels: workload, number format, whether other devices ran too, and the shape."""
    model = launch.case.model_work.model
    return {
        **({**model.options, **launch.setup.fitted} if model.name in PLAIN_WORK else {}),
        "workload": model.name,
        "dtype": PEAK_TYPE_OF_PRECISION[launch.setup.precision],
        "at_once": launch.num_devices > 1,
    }


def _cost(subject: str, figures: Sequence[ProbeReading], launch: Launch) -> Measure:
    """Return the median over launches of a value that is measured after passes over memory."""
    values = [figure.value for figure in figures if figure.value is not None]
    value, is_time = median(values) if values else None, figures[0].unit == "s"
    return Measure(
        name=figures[0].quantity,
        value=value,
        unit=figures[0].unit,
        text=units.MISSING if value is None else units.seconds(value) if is_time else units.bandwidth(value),
        detail="of 100 launched back to back, after the window",
        subject=subject,
        statistic="median",
        labels={**_labels(launch), **figures[0].labels},
        better="lower" if is_time else "higher",
        num_samples=len(values),
        missing=figures[0].missing,
    )


def _wrong_values(subject: str, checks: Sequence[ProbeReading], launch: Launch) -> Measure:
    value = sum(check.value or 0.0 for check in checks)
    return Measure(
        name="wrong values",
        value=value,
        unit="1",
        text=units.count(int(value)),
        detail="; ".join(dict.fromkeys(line for check in checks for line in check.evidence)),
        subject=subject,
        statistic="sum",
        labels={**_labels(launch), **checks[0].labels},
        better="lower",
        num_samples=len(checks),
    )
