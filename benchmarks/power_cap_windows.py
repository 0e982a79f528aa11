"""How often is a window at the power cap misjudged? Simulated controllers with fixed seeds.

For windows of 20 periods (20 s if no period can be shown), prints how often they are VALID, how often their
interval contains the mean step of an endless window, its median half-width, and how often a drift and a drop
across the window are found, each with its 95 % bounds. Then prints the results for windows of fewer periods,
and when the worker ends a window of 1 s that continues at the cap, with the period that the worker detected.
Asserts nothing. The controllers are those of `tests/controllers.py`; no result here applies to any device.
Usage: python benchmarks/power_cap_windows.py [--quick]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from gpuproof.statistics.distributions import beta_quantile
from gpuproof.statistics.estimate import FloatArray, Interval
from gpuproof.statistics.power_cap import PowerCapWindow

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the controllers are from the tests

from controllers import WAVES, Controller, measure, window_of

WINDOWS = 50 if "--quick" in sys.argv[1:] else 1200
WORKER_WINDOWS = WINDOWS // 6
PERIODS_S = (0.3, 1.0, 3.0)
DEPTHS = (0.05, 0.10, 0.25)
CHANGES = {0.03: (0.10, 0.08), 0.01: (0.035, 0.03)}
"""Maps the scatter between periods to the drift and the drop to be found."""


def rows() -> Iterator[Controller]:
    """Yield every controller to try."""
    for wave in WAVES:
        for period_s in PERIODS_S:
            for depth in DEPTHS:
                for scatter in CHANGES:
                    yield Controller(wave=wave, period_s=period_s, depth=depth, scatter=scatter)


def share(hits: Sequence[bool]) -> str:
    """Format a fraction in percent with its exact 95 % bounds (Clopper and Pearson 1934)."""
    held, missed = sum(hits), len(hits) - sum(hits)
    low = beta_quantile(held, missed + 1, 0.025) if held else 0.0
    high = beta_quantile(held + 1, missed, 0.975) if missed else 1.0
    return f"{100 * held / len(hits):.1f} ({100 * low:.1f}–{100 * high:.1f})"


def half_width(windows: Sequence[PowerCapWindow]) -> str:
    """Return the median relative half-width of the intervals."""
    widths = [w.interval.relative_half_width or 0.0 for w in windows if isinstance(w.interval, Interval)]
    return f"±{100 * np.median(widths):.2f} %" if widths else "–"


def covered(controller: Controller, windows: Sequence[PowerCapWindow]) -> str:
    """Return how often intervals contain the mean step."""
    intervals = [window.interval for window in windows if isinstance(window.interval, Interval)]
    return share([one.low <= controller.step_s <= one.high for one in intervals]) if intervals else "–"


def is_valid(window: PowerCapWindow) -> bool:
    """Return whether a window is VALID based on the step times alone."""
    return window.verdict == "steady" and not window.stalled


def print_row(controller: Controller, seed: int) -> None:
    """Print a line of the table."""
    rng = np.random.default_rng(seed)
    windows = [measure(controller, rng) for _ in range(WINDOWS)]
    drift, drop = CHANGES[controller.scatter]
    drifted = [measure(controller.changing(drift=drift), rng) for _ in range(WINDOWS)]
    dropped = [measure(controller.changing(drop=drop), rng) for _ in range(WINDOWS)]
    cells = [
        f"{controller.wave}, {controller.period_s:g} s",
        f"{controller.depth:.0%}",
        f"{controller.scatter:.0%}",
        share([is_valid(window) for window in windows]),
        covered(controller, windows),
        half_width(windows),
        share([not is_valid(window) for window in drifted]),
        share([not is_valid(window) for window in dropped]),
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def print_fewer() -> None:
    """Print the results for windows of fewer periods."""
    print("\n| periods | said | holds the mean, % | half width |\n|---|---|---|---|")
    controller = Controller(wave="saw-tooth", period_s=1.0, depth=0.25, scatter=0.03)
    for periods in (2, 6, 10, 15, 20, 40):
        rng = np.random.default_rng(periods)
        windows = [measure(controller, rng, periods=periods) for _ in range(WINDOWS)]
        verdicts = [window.verdict for window in windows]
        usual = max(dict.fromkeys(verdicts), key=verdicts.count)
        print(f"| {periods} | {usual} | {covered(controller, windows)} | {half_width(windows)} |", flush=True)


def print_worker() -> None:
    """Print when the worker ends a window, and how often it detects the true period or a false one."""
    print("\n| steps | period seen within 10 %, % | another seen, % | window, 5–95 % |\n|---|---|---|---|")
    for seed, (name, period_s, draw) in enumerate(worker_rows()):
        rng = np.random.default_rng(seed)
        ended = [window_of(draw(rng)) for _ in range(WORKER_WINDOWS)]
        seen = [plan.period_s for _, plan in ended if plan.period_s is not None]
        right = sum(period_s is not None and abs(one / period_s - 1) < 0.1 for one in seen)
        low, high = np.quantile([window_s for window_s, _ in ended], (0.05, 0.95))
        shares = [share([True] * hits + [False] * (len(ended) - hits)) for hits in (right, len(seen) - right)]
        print(f"| {name} | {shares[0]} | {shares[1]} | {low:.1f}–{high:.1f} s |", flush=True)


def worker_rows() -> Iterator[tuple[str, float | None, Callable[[np.random.Generator], FloatArray]]]:
    """Yield steps as seen by the worker: from controllers, and from shapes without a period."""
    for wave in WAVES:
        for period_s in PERIODS_S:
            one = Controller(wave=wave, period_s=period_s, depth=0.10, scatter=0.01)
            yield f"{wave}, {period_s:g} s", period_s, partial(one.draw, window_s=70.0)
    one = Controller(wave="saw-tooth", period_s=1.0, depth=0.10, scatter=0.01)
    yield "saw-tooth, 1 s, every tenth step 30 % longer", 1.0, partial(with_rhythm, one)
    count = 3500  # steps of 20 ms
    yield "all alike", None, lambda rng: np.full(count, 0.02)
    yield "white noise of 2 %", None, lambda rng: 0.02 * (1 + 0.02 * rng.standard_normal(count))
    drift = np.linspace(0, 0.10, count)
    yield "drift of 10 %", None, lambda rng: 0.02 * (1 + drift + 0.01 * rng.standard_normal(count))
    walk = 0.001
    yield "random walk", None, lambda rng: 0.02 * np.exp(np.cumsum(walk * rng.standard_normal(count)))


def with_rhythm(controller: Controller, rng: np.random.Generator) -> FloatArray:
    """Return a window's steps with every tenth step longer, as with gradient accumulation."""
    steps = controller.draw(rng, window_s=90.0)
    steps[::10] *= 1.3
    return steps


def main() -> None:
    """Print the tables."""
    began = time.monotonic()
    print("| controller | depth | scatter | VALID, % | holds the mean, % | half width | drift, % | drop, % |")
    print("|---|---|---|---|---|---|---|---|")
    for seed, controller in enumerate(rows()):
        print_row(controller, seed)
    print_fewer()
    print_worker()
    print(f"\n{WINDOWS} windows per cell, {WORKER_WINDOWS} for the worker, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
