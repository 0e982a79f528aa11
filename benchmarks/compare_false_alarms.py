"""How often are equal recordings or runs reported as different, and real changes detected?

First, it simulates `gpuproof compare A B` with finished runs from two days that differ by 1 %, and launches
that differ by up to 3 % within a day. For an interval that ignores the variation between sessions, and for
the default of 1 %, it prints how often a gate at 0 % reports a regression that does not exist (exit 3;
promised: at most 5 %), how many 95 % intervals contain the truth, and how often a true regression of 2, 5 and
10 % is found.

Then it simulates `gpuproof monitor compare` with pairs of recordings of equal work. Each has eleven metrics
that are autocorrelated (AR(1), φ up to 0.97), white noise with a slow component, rounded to whole units, or
periodic. A sampler reads them every 0.2 s with or without dither, and with or without an energy counter. One
line per shape shows the fraction of comparisons in which any metric is "higher" or "lower" (promised: at most
5 %), the fraction of metrics that could be decided, and the fraction of those whose interval contained the
true difference, 0. It also shows the smallest difference that would be reported, in standard deviations, and
the power: the fraction of metrics reported when B is really half, one and two standard deviations higher.
Finally, it compares the power in watts of a sawtooth with itself. Asserts nothing. Usage: python
benchmarks/compare_false_alarms.py [PAIRS]; 200 take a few minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpuproof.comparison.recordings import COMPARED_METRICS, RecordingComparison, compare
from gpuproof.comparison.runs import BETWEEN_SESSIONS
from gpuproof.comparison.winners import side_of
from gpuproof.readings.recording import DeviceTrack, Floats, RecordingData
from gpuproof.records.readings import DeviceIdentity, Recording
from gpuproof.records.result import Measure
from gpuproof.statistics.comparison import Comparison, compare_launches, is_beyond

PAIRS = 200
DAY, SPREADS, LAUNCHES, LOSSES = 0.01, (0.001, 0.005, 0.01, 0.03), (3, 5, 10), (0.02, 0.05, 0.1)
SHIFTS = (0.5, 1.0, 2.0)
INTERVAL_S = 0.2
MIDDLE, SD = 1000.0, 10.0
Signal = Callable[[np.random.Generator, Floats], Floats]
"""Returns the readings of one metric at the given times in seconds."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is simulated."""

    name: str
    signal: Signal
    readings: int
    dithered: bool = True


def moments(rng: np.random.Generator, readings: int, *, dithered: bool) -> Floats:
    """Return when a sampler takes its readings."""
    ticks = np.arange(readings, dtype=np.float64)
    return np.asarray((ticks + (rng.random(readings) if dithered else 0.0)) * INTERVAL_S)


def autoregressive(phi: float) -> Signal:
    """Return AR(1) noise, one step per reading."""

    def signal(rng: np.random.Generator, times: Floats) -> Floats:
        noise = rng.standard_normal(len(times))
        noise[1:] *= (1 - phi**2) ** 0.5
        for place in range(1, len(noise)):
            noise[place] += phi * noise[place - 1]
        return np.asarray(MIDDLE + SD * noise)

    return signal


def slow_under_noise(rng: np.random.Generator, times: Floats) -> Floats:
    """Return white noise with a slow component, φ = 0.97, of a third of the variance."""
    white, slow = (autoregressive(phi)(rng, times) - MIDDLE for phi in (0.0, 0.97))
    return np.asarray(MIDDLE + (2 / 3) ** 0.5 * white + (1 / 3) ** 0.5 * slow)


def rounded(rng: np.random.Generator, times: Floats) -> Floats:
    """Return AR(1) noise, φ = 0.9, quantised to one standard deviation."""
    return np.asarray(np.round(autoregressive(0.9)(rng, times) / SD) * SD)


def sawtooth(period_s: float) -> Signal:
    """Return a sawtooth from 500 to 1,500 with a random start and noise of a hundredth of its mean."""

    def signal(rng: np.random.Generator, times: Floats) -> Floats:
        course = (times / period_s + rng.random()) % 1.0
        return np.asarray(MIDDLE * (0.5 + course) + SD * rng.standard_normal(len(times)))

    return signal


def recording(shape: Shape, rng: np.random.Generator) -> RecordingData:
    """Return a recording of one GPU with every metric drawn separately."""
    times = moments(rng, shape.readings, dithered=shape.dithered)
    return recorded(times, {name: shape.signal(rng, times) for name in COMPARED_METRICS}, shape.dithered)


def recorded(times: Floats, metrics: dict[str, Floats], dithered: bool) -> RecordingData:
    """Return a recording of one GPU."""
    identity = DeviceIdentity(
        physical_index=0,
        vendor="fake",
        vendor_index=0,
        framework_index=0,
        uuid="U",
        pci_bus_id=None,
        name="G",
    )
    head = Recording(
        host="h",
        pid=1,
        boot_id=None,
        gpuproof_version="0",
        unix_s=0.0,
        monotonic_s=0.0,
        fast_interval_s=INTERVAL_S,
        slow_interval_s=1.0,
        devices=(identity,),
        host_facts={},
        dither_seed=1 if dithered else None,
    )
    nothing = np.zeros(len(times), dtype=bool)
    track = DeviceTrack(identity=identity, metrics=metrics, throttle={}, throttle_answered=nothing)
    return RecordingData(
        source="simulated",
        format="gpuproof",
        recording=head,
        time_s=times,
        unix_s=times,
        devices=(track,),
        host={},
    )


def sawtooth_power(rng: np.random.Generator, *, counter: bool, dithered: bool) -> RecordingData:
    """Return five minutes of a 1 s sawtooth from 100 to 500 W, as read by a sensor and a counter."""
    times = moments(rng, 1500, dithered=dithered)
    begin = rng.random()
    course = (times + begin) % 1.0
    metrics = {"power_w": 100 + 400 * course, "util_gpu_percent": np.full(len(times), 95.0)}
    if counter:
        metrics["energy_j"] = 300 * np.floor(times + begin) + 100 * course + 200 * course**2
    return recorded(times, metrics, dithered)


def is_alarm(comparison: RecordingComparison) -> bool:
    """Return whether any metric is reported as different."""
    return any(measure.detail in {"higher", "lower"} for measure in of_side(comparison, "B minus A"))


def of_side(comparison: RecordingComparison, side: str) -> list[Measure]:
    """Return the statistics of one side, or of both together."""
    return [measure for measure in comparison.means if side_of(measure) == side]


def shapes() -> Iterator[Shape]:
    """Yield the simulated shapes."""
    for phi in (0.0, 0.5, 0.9, 0.97):
        for readings in (100, 300, 1000, 3000):
            yield Shape(name=f"AR(1) {phi:g}", signal=autoregressive(phi), readings=readings)
    for readings in (100, 150, 300, 1000, 3000):
        yield Shape(name="slow under noise", signal=slow_under_noise, readings=readings)
    for readings in (300, 1000, 3000):
        yield Shape(name="AR(1) 0.9, rounded", signal=rounded, readings=readings)
    for period_s in (0.2, 1.0, 7.3):
        yield Shape(name=f"sawtooth of {period_s:g} s", signal=sawtooth(period_s), readings=1000)
    yield Shape(name="sawtooth of 1 s, no dither", signal=sawtooth(1.0), readings=1000, dithered=False)


def compare_days(
    rng: np.random.Generator, num: int, spread: float, change: float, between_sessions: float
) -> Comparison:
    """Compare pairs of runs on two days that are 1 % apart; B's rate is changed by a fraction."""
    a, b = (np.exp(DAY * rng.standard_normal() + spread * rng.standard_normal(num)) for _ in range(2))
    return compare_launches(
        a, b * (1 + change), better="higher", is_cautious=True, between_sessions=between_sessions
    )


def print_days(num_comparisons: int) -> None:
    """Print the results for finished runs on two days."""
    print(f"finished runs on two days that differ by {DAY:.0%}, {num_comparisons:,} comparisons each:")
    for spread, num in product(SPREADS, LAUNCHES):
        told = []
        for between_sessions in (0.0, BETWEEN_SESSIONS):
            rng = np.random.default_rng(num)
            drawn = [compare_days(rng, num, spread, 0.0, between_sessions) for _ in range(num_comparisons)]
            alarms = sum(is_beyond(x, 0.0, better="higher") for x in drawn) / num_comparisons
            held = sum(x.verdict == "no difference shown" for x in drawn) / num_comparisons
            told.append(f"exit 3 in {alarms:5.1%}, interval correct in {held:5.1%}")
        found = []
        for change in LOSSES:
            rng = np.random.default_rng(num)
            drawn = [
                compare_days(rng, num, spread, -change, BETWEEN_SESSIONS) for _ in range(num_comparisons)
            ]
            found.append(f"{sum(is_beyond(x, 0.0, better='higher') for x in drawn) / num_comparisons:.0%}")
        print(
            f"  launches {spread:.1%} apart, {num:2} per side: without {told[0]}; with {told[1]}; "
            f"-{', -'.join(f'{change:.0%}' for change in LOSSES)} found in {', '.join(found)}",
            flush=True,
        )


def power(shape: Shape, pairs: int) -> str:
    """Report the fraction of metrics shown as higher when B is higher by some standard deviations."""
    shares = []
    for shift in SHIFTS:
        rng = np.random.default_rng(1)
        called = []
        for _ in range(max(5, pairs // 10)):
            a, b = recording(shape, rng), recording(shape, rng)
            for values in b.devices[0].metrics.values():
                np.add(values, shift * SD, out=values)
            called += [m.detail == "higher" for m in of_side(compare(a, b), "B minus A")]
        shares.append(f"{shift:g} sd {np.mean(called):.0%}")
    return ", ".join(shares)


def main() -> None:
    """Simulate and print."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    print_days(10 * pairs)
    for seed, shape in enumerate(shapes()):
        rng = np.random.default_rng(seed)
        found = [compare(recording(shape, rng), recording(shape, rng)) for _ in range(pairs)]
        print(f"{_told(shape, found)}; found: {power(shape, pairs)}", flush=True)
    print("power of a sawtooth of 1 s compared with itself, mean 300 W:")
    for counter in (False, True):
        for dithered in (False, True):
            rng = np.random.default_rng(7)
            made_pairs = [
                compare(*(sawtooth_power(rng, counter=counter, dithered=dithered) for _ in range(2)))
                for _ in range(pairs)
            ]
            powers = [
                {side_of(m): m for m in found.means if m.labels["metric"] == "power_w"}
                for found in made_pairs
            ]
            off = [abs((power["B"].value or 0) - (power["A"].value or 0)) for power in powers]
            called = sum(power["B minus A"].detail in {"higher", "lower"} for power in powers) / len(powers)
            source = "energy counter" if counter else "power sensor"
            grid = "dithered" if dithered else "on a grid"
            print(
                f"  {source}, {grid}: differs by up to {max(off):.2f} W, reported as different in "
                f"{called:.1%}"
            )


def _told(shape: Shape, found: list[RecordingComparison]) -> str:
    alarms = sum(map(is_alarm, found)) / len(found)
    metrics = [metric for comparison in found for metric in of_side(comparison, "B minus A")]
    judged = [metric.interval for metric in metrics if metric.interval is not None]
    held = sum(interval.low <= 0 <= interval.high for interval in judged)
    smallest = [m.value for comparison in found for m in of_side(comparison, "shown from")]
    shown = np.median([value for value in smallest if value is not None]) / SD if judged else float("nan")
    covered = f"{held / len(judged):.2%}" if judged else "–"
    return (
        f"{shape.name:<28} {shape.readings:5} readings: alarm in {alarms:5.1%}, could tell "
        f"{len(judged) / len(metrics):5.1%}, interval correct in {covered:>7}, detected from "
        f"{shown:.2f} sd"
    )


if __name__ == "__main__":
    main()
