"""How often is a window misjudged? Simulated shapes of step times with fixed seeds.

Prints, for windows of several lengths: the fraction of unsteady shapes and of flat shapes that is flagged;
how often the interval of the rate within one launch contains the truth, and how often there is no interval;
and how often the interval by Student's t on a few launches contains it. For windows that stop by precision,
it prints how often they report that the precision was reached, and how often their interval then contains the
mean of an endless window. Asserts nothing. The shapes are those of `tests/shapes.py`; no result here applies
to any device. Usage: python benchmarks/unsteady_windows.py [--quick]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gpuproof.statistics.estimate import FloatArray, Interval
from gpuproof.statistics.launches import interval_of_launches, interval_of_mean
from gpuproof.statistics.series import judge_steadiness
from gpuproof.worker.engine.stopping import PrecisionLimit

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the shapes are from the tests

import shapes
from shapes import Shape, autoregressive, noisy

QUICK = "--quick" in sys.argv[1:]
NUM_FLAGGED = 40 if QUICK else 1000
NUM_COVERED = 200 if QUICK else 4000
NUM_STOPS = 20 if QUICK else 100
LENGTHS = (60, 100, 300, 1000, 5000)
NOISES = {
    "0.1 %": noisy(0.001),
    "1 %": noisy(0.01),
    "1 %, AR(1) 0.9": noisy(0.01, autoregressive(0.9)),
    "5 %": noisy(0.05),
    "20 %": noisy(0.2),
}
STEP_S = 0.01
CHUNK = 25
LIMIT_S = 60.0


def is_flagged(times: FloatArray) -> bool:
    """Return whether a window is not VALID based on its step times alone."""
    found = judge_steadiness(times)
    return found is None or found.verdict != "steady" or found.stalled


def print_flagged() -> None:
    """Print the flagged fraction of unsteady windows, lowest first, and of flat windows."""
    print(f"Unsteady shapes: flagged of {NUM_FLAGGED} windows, lowest over noises of {', '.join(NOISES)}")
    print(f"{'shape':<22}" + "".join(f"{n:>8,}" for n in LENGTHS))
    for name in shapes.unsteady(noisy(0.01)):
        fewest = [
            min(_num_flagged(shapes.unsteady(noise)[name], n) for noise in NOISES.values()) for n in LENGTHS
        ]
        print(f"{name:<22}" + "".join(f"{number:>8,}" for number in fewest), flush=True)
    print(f"\nFlat shapes: flagged of {NUM_COVERED} windows")
    print(f"{'shape':<22}" + "".join(f"{n:>8,}" for n in LENGTHS))
    for name, (shape, least) in shapes.STEADY.items():
        told = [
            f"{_num_flagged(shape.draw, n, windows=NUM_COVERED):,}" if n >= least else "" for n in LENGTHS
        ]
        print(f"{name:<22}" + "".join(f"{number:>8}" for number in told), flush=True)


def _num_flagged(draw: shapes.Draw, steps: int, *, windows: int = NUM_FLAGGED) -> int:
    return sum(map(is_flagged, draw(np.random.default_rng(steps), windows, steps)))


def print_paces() -> None:
    """Print how often regular long steps are reported as such, and how often random stalls are."""
    paces = {f"every {n}th step × 2": (shapes.stalls(n, 2.0), n) for n in (4, 8)}
    paces |= {"every 10th step × 3": (shapes.stalls(10, 3.0), 10)}
    by_chance = {
        "5 % of steps × 5": shapes.rare(0.05, 5),
        "25 % of steps × 2": shapes.rare(0.25, 2),
        "bursts, 5 % of steps × 5": shapes.bursts(0.05, 5),
    }
    lengths, windows = (20, 60, 100, 300, 1000), min(200, NUM_FLAGGED)
    print(f"\nStalled windows reported as regular / with the right period, of {windows}")
    print(f"{'shape':<26}" + "".join(f"{n:>14,}" for n in lengths))
    for name, (shape, period) in {**paces, **{n: (s, None) for n, s in by_chance.items()}}.items():
        told = (_paces(shape, n, period, windows=windows) for n in lengths)
        print(f"{name:<26}" + "".join(f"{text:>14}" for text in told), flush=True)


def _paces(shape: Shape, steps: int, period: int | None, *, windows: int) -> str:
    judged = [judge_steadiness(times) for times in shape.draw(np.random.default_rng(steps), windows, steps)]
    named = [found.period for found in judged if found is not None and found.stalled and found.period]
    return f"{len(named)} / {named.count(period) if period else 0}"


def print_spells() -> None:
    """Print how often the interval within one launch is wrong if steps have slow spells, and why."""
    lengths = (100, 200, 300, 500, 700, 999, 2000)
    print(
        "\nSlow spells, 10 % longer: fraction of intervals that contain the truth, and fraction "
        "of windows: none given / wrong, the window in one state throughout / wrong otherwise"
    )
    print(f"{'share, steps of a spell':<26}" + "".join(f"{n:>22,}" for n in lengths))
    for share, length in ((0.5, 20), (0.5, 100), (0.3, 50), (0.1, 20), (0.1, 100)):
        told = (_spells(share, length, n) for n in lengths)
        print(f"{share:>4.0%}, {length:<20}" + "".join(f"{text:>22}" for text in told), flush=True)


def _spells(share: float, length: int, steps: int) -> str:
    windows = NUM_FLAGGED if QUICK else 500
    is_slow = shapes.spells(np.random.default_rng(steps), windows, steps, share=share, length=length)
    noise = 1 + 0.01 * np.random.default_rng(steps + 1).standard_normal(is_slow.shape)
    missing = unseen = wrong = 0
    for slow, times in zip(is_slow, noise * np.where(is_slow, 1.1, 1.0), strict=True):
        interval = interval_of_mean(times)
        if not isinstance(interval, Interval):
            missing += 1
        elif not interval.low <= 1 + 0.1 * share <= interval.high:
            unseen += slow.all() or not slow.any()
            wrong += slow.any() and not slow.all()
    given = windows - missing
    held = f"{1 - (unseen + wrong) / given:.0%}" if given else "–"
    return f"{held} ({missing / windows:.0%}/{unseen / windows:.0%}/{wrong / windows:.0%})"


def print_cannot_tell() -> None:
    """Print how much a flat window may scatter and still pass as steady."""
    print(f"\nFlat windows of independent steps: fraction that passes as steady, of {NUM_FLAGGED}")
    print(f"{'deviation':<22}" + "".join(f"{n:>8,}" for n in LENGTHS))
    for deviation in (0.01, 0.02, 0.03, 0.05, 0.1):
        shares = [1 - _num_flagged(noisy(deviation).draw, n) / NUM_FLAGGED for n in LENGTHS]
        print(f"{deviation:<22.0%}" + "".join(f"{share:>8.0%}" for share in shares), flush=True)


def print_coverage() -> None:
    """Print how often the interval of the mean contains the truth."""
    lengths = (60, 200, 500, 700, 999, 1000, 2000, 5000)
    print(
        "\nInterval of the mean within one launch: contains the truth (of those given) / none "
        f"given, {NUM_COVERED} windows"
    )
    print(f"{'shape':<34}" + "".join(f"{n:>16,}" for n in lengths))
    for name, shape in shapes.CARRIED.items():
        print(f"{name:<34}" + "".join(f"{_coverage(shape, n):>16}" for n in lengths), flush=True)


def _coverage(shape: Shape, steps: int) -> str:
    drawn = shape.draw(np.random.default_rng(steps), NUM_COVERED, steps)
    found = [interval_of_mean(times) for times in drawn]
    given = [interval for interval in found if isinstance(interval, Interval)]
    held = sum(interval.low <= shape.mean <= interval.high for interval in given)
    share = f"{held / len(given):.1%}" if given else "–"
    return f"{share} / {1 - len(given) / len(found):.1%}"


def print_launches() -> None:
    """Print how often Student's t on the rates of a few launches contains the truth."""
    counts = (2, 3, 5, 10, 19)
    print(
        f"\nStudent's t on launches of 1,000 steps that differ by 1 %: contains the truth, {NUM_COVERED} runs"
    )
    print(f"{'shape':<34}" + "".join(f"{n:>8}" for n in counts))
    for name, shape in shapes.CARRIED.items():
        shares = [_coverage_of_launches(shape, number) for number in counts]
        print(f"{name:<34}" + "".join(f"{share:>8.1%}" for share in shares), flush=True)


def _coverage_of_launches(shape: Shape, number: int) -> float:
    rng = np.random.default_rng(number)
    pool = np.concatenate([shape.draw(rng, 500, 1000).mean(axis=1) for _ in range(2 if QUICK else 8)])
    means = rng.choice(pool, size=(NUM_COVERED, number)) * np.exp(
        0.01 * rng.standard_normal((NUM_COVERED, number))
    )
    found = [interval_of_launches(launches) for launches in means]
    return float(np.mean([isinstance(i, Interval) and i.low <= shape.mean <= i.high for i in found]))


def stopped(times_s: Sequence[float], *, target: float) -> tuple[PrecisionLimit, float, float]:
    """Run a precision-based window over steps of about 10 ms; return the plan, mean step and seconds."""
    plan = PrecisionLimit(target, min_steps=100, limit_s=LIMIT_S, agree=int, step_s=STEP_S)
    done, elapsed_s = 0, 0.0
    while plan.next_steps(done=done, elapsed_s=elapsed_s, capacity=CHUNK) and done < len(times_s):
        chunk = times_s[done : done + CHUNK]
        plan.take(chunk)
        done += len(chunk)
        elapsed_s += STEP_S * sum(chunk)
    return plan, sum(times_s[:done]) / done, elapsed_s


def shapes_of_stops() -> Iterator[tuple[str, Shape]]:
    """Yield shapes for precision-based windows: the time limit is 60 s, or 6,000 steps of 10 ms."""
    for deviation in (0.002, 0.01, 0.05):
        yield f"normal, {deviation:.1%}", noisy(deviation)
    yield "AR(1) 0.9, 2 %", noisy(0.02, autoregressive(0.9))
    for times in (2, 10, 50):
        yield f"a stall of × {times} every 300 steps", shapes.stalls(300, times)
    yield "0.2 % of steps × 50", shapes.rare(0.002, 50)
    yield "1 % of steps × 10", shapes.rare(0.01, 10)
    for deviation in (0.002, 0.01, 0.03):
        ramp = shapes.levels(shapes.ramp, noisy(deviation))
        yield f"5 % ramp over the limit, noise {deviation:.1%}", Shape(draw=ramp, mean=1.025)


def print_stops() -> None:
    """Print how precision-based windows end, and whether "reached" is correct."""
    print(
        f"\nStop at a precision of 1 %: of {NUM_STOPS} windows, reached, median seconds, and correct of those"
    )
    for name, shape in shapes_of_stops():
        reasons, right, lasted = Counter[str](), 0, list[float]()
        for times in shape.draw(np.random.default_rng(7), NUM_STOPS, 6400):
            plan, mean, seconds = stopped(times.tolist(), target=0.01)
            reasons[plan.stop_reason] += 1
            if plan.stop_reason == "precision reached" and plan.half_width is not None:
                right += abs(mean - shape.mean) <= plan.half_width * mean
                lasted.append(seconds)
        reached = reasons["precision reached"]
        told = f"{right / reached:.1%} right, {np.median(lasted):.0f} s" if reached else "–"
        print(f"{name:<38} reached in {reached:>4}: {told}; {dict(reasons)}", flush=True)


def print_rare() -> None:
    """Print how often intervals contain the truth if one or two steps were slow, and their width."""
    lengths = (123, 500, 2000)
    print(f"\nRare slow steps in steady windows (0.05 %), {NUM_COVERED} each: truth contained (given, reach)")
    print(f"{'slow by':<26}{'seen':>6}" + "".join(f"{n:>26,}" for n in lengths))
    for times, seen in ((t, k) for t in (1.01, 1.1, 10.0) for k in (0, 1, 2)):
        cells = [_rare(times, seen, steps, expected=seen) for steps in lengths]
        print(f"{times:<26g}{seen:>6}" + "".join(f"{cell:>26}" for cell in cells), flush=True)
    for times in (1.01, 1.1):
        cells = [_rare(times, 1, steps, expected=2, is_exponential=True) for steps in lengths]
        print(f"{f'{times:g}, exponential, of 2':<26}{1:>6}" + "".join(f"{cell:>26}" for cell in cells))


def _rare(times: float, seen: int, steps: int, *, expected: int, is_exponential: bool = False) -> str:
    """Return results for windows with `seen` slow steps, if `expected` are slow in the long run.

    The excess time of slow steps is always the same, or exponential with this mean.
    """
    rng = np.random.default_rng(steps)
    drawn = 1 + 0.0005 * shapes.white(rng, NUM_COVERED, steps)
    for window in drawn:
        excess = (times - 1) * (rng.exponential(size=seen) if is_exponential else np.ones(seen))
        window[rng.choice(steps, size=seen, replace=False)] *= 1 + excess
    truth = 1 + expected / steps * (times - 1)
    given = [found for window in drawn if isinstance(found := interval_of_mean(window), Interval)]
    if not given:
        return "none given"
    held = sum(found.low <= truth <= found.high for found in given) / len(given)
    width = float(np.median([found.relative_reach or 0.0 for found in given]))
    return f"{held:.1%} ({len(given) / NUM_COVERED:.1%}, ±{width:.3%})"


def main() -> None:
    """Print all tables."""
    began = time.monotonic()
    print_stops()
    print_flagged()
    print_paces()
    print_cannot_tell()
    print_coverage()
    print_rare()
    print_spells()
    print_launches()
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
