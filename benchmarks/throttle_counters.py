"""How often is a correct counter of throttled time rejected, and a wrong one accepted?

Simulates a device that is throttled in bursts, in alternating phases of a few milliseconds, in sync with the
readings, for one continuous period, or hardly ever. It is read every 0.2 s by the dithered sampler, with its
counter on the slow lane. The counter is exact, or in whole seconds, or stuck, or counts only a tenth of the
time. Prints one line per combination: how often the counter was rejected, how often the samples were reported
in addition, and the maximum error of the reported fraction. Asserts nothing. Usage: python
benchmarks/throttle_counters.py [TRIALS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.totals import Throttling, throttling
from gpuproof.readings.window import RecordingWindow, Span
from gpuproof.records.readings import DeviceIdentity, Recording

TRIALS = 2000
INTERVAL_S, SLOW_S, STEP_S = 0.2, 1.0, 0.002
REASON = "thermal_software"
Truth = Callable[[np.random.Generator, int], Flags]
"""Returns for each of several steps of `STEP_S` whether the device was throttled."""
Counter = Callable[[Floats], Floats]
"""Converts true seconds to the counter's value."""


def bursts(rng: np.random.Generator, steps: int) -> Flags:
    """Throttle the device for 0.5 s on average, and release it for as long."""
    return (np.cumsum(rng.random(steps) < STEP_S / 0.5) % 2).astype(bool)


def turns(period_s: float, share: float) -> Truth:
    """Throttle the device for a fraction of each period, starting at a random time."""

    def truth(rng: np.random.Generator, steps: int) -> Flags:
        return np.asarray((np.arange(steps) * STEP_S / period_s + rng.random()) % 1 < share)

    return truth


def stretch(rng: np.random.Generator, steps: int) -> Flags:
    """Throttle the device from one random time to another."""
    begin, end = np.sort(rng.integers(0, steps, 2))
    return np.asarray((np.arange(steps) >= begin) & (np.arange(steps) < end))


def rare(rng: np.random.Generator, steps: int) -> Flags:
    """Throttle the device for 20 ms once every ten seconds."""
    return np.asarray(np.convolve(rng.random(steps) < STEP_S / 10, np.ones(10), "full")[:steps] > 0)


TRUTHS: dict[str, Truth] = {
    "bursts": bursts,
    "turns of 10 ms": turns(0.010, 0.3),
    "turns of 0.2 s": turns(0.2, 0.5),
    "turns of 1.0 s": turns(1.0, 0.5),
    "one stretch": stretch,
    "rare": rare,
    "always": lambda rng, steps: np.ones(steps, dtype=bool),
    "never": lambda rng, steps: np.zeros(steps, dtype=bool),
}
RIGHT: dict[str, Counter] = {"exact": lambda told_s: told_s, "whole seconds": np.floor}
WRONG: dict[str, Counter] = {"still": np.zeros_like, "a tenth": lambda told_s: told_s / 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One recording: the reported and the true value."""

    told: Throttling
    share: float

    @property
    def error(self) -> float:
        """Error of the reported fraction: negative if it is too low."""
        return sum(item.share for item in self.told.shares) - self.share


def recorded(held: Flags, counter: Counter, rng: np.random.Generator) -> RecordingData:
    """Let the sampler read a device that was throttled in these steps."""
    ticks = round(len(held) * STEP_S / INTERVAL_S)
    time_s = (np.arange(ticks) + rng.random(ticks)) * INTERVAL_S
    at = np.minimum((time_s / STEP_S).astype(int), len(held) - 1)
    total: Floats = counter(np.asarray(np.cumsum(held) * STEP_S, dtype=np.float64))[at]
    total[np.arange(ticks) % round(SLOW_S / INTERVAL_S) != 0] = np.nan
    identity = DeviceIdentity(
        physical_index=0,
        vendor="fake",
        vendor_index=0,
        framework_index=0,
        uuid=None,
        pci_bus_id=None,
        name="",
    )
    track = DeviceTrack(
        identity=identity,
        metrics={f"throttle_time_{REASON}_s": total},
        throttle={REASON: held[at]} if held[at].any() else {},
        throttle_answered=np.ones(ticks, dtype=bool),
    )
    head = Recording(
        host="simulated", pid=0, boot_id=None, gpuproof_version="", unix_s=0.0, monotonic_s=0.0,
        fast_interval_s=INTERVAL_S, slow_interval_s=SLOW_S, devices=(identity,), host_facts={}, dither_seed=1,
    )  # fmt: skip
    return RecordingData(
        source="", format="gpuproof", recording=head, time_s=time_s, unix_s=time_s, devices=(track,), host={}
    )


def trial(truth: Truth, counter: Counter, rng: np.random.Generator, *, duration_s: float) -> Trial:
    """Record a device for this long, and query its throttling."""
    held = truth(rng, round(duration_s / STEP_S))
    recording = recorded(held, counter, rng)
    window = RecordingWindow(name=None, spans=(Span(begin_s=0.0, end_s=duration_s),))
    told = throttling(recording, track=recording.devices[0], window=window)
    return Trial(told=told, share=float(held.mean()))


def trials(truth: Truth, counter: Counter, *, duration_s: float, num: int) -> list[Trial]:
    """Run this many trials with a fixed seed."""
    rng = np.random.default_rng(17)
    return [trial(truth, counter, rng, duration_s=duration_s) for _ in range(num)]


def disbelieved(found: Trial) -> bool:
    """Return whether the samples were used instead of the counter."""
    return REASON not in found.told.counted


def main() -> None:
    """Simulate and print."""
    num = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    print(f"{'held back':<16}{'counter':<15}{'window':>7}{'not believed':>14}{'both named':>12}{'error':>18}")
    for name, truth in TRUTHS.items():
        for kind, counter in (RIGHT | WRONG).items():
            for duration_s in (3.0, 30.0, 300.0):
                done = trials(truth, counter, duration_s=duration_s, num=max(20, int(num * 3 / duration_s)))
                errors = [found.error for found in done]
                print(
                    f"{name:<16}{kind:<15}{duration_s:5.0f} s{np.mean(list(map(disbelieved, done))):14.1%}"
                    f"{np.mean([any(s.note for s in found.told.shares) for found in done]):12.1%}"
                    f"{min(errors):+10.2f}{max(errors):+8.2f}"
                )


if __name__ == "__main__":
    main()
