"""Times one piece of work over and over, between two marks of the step clock each.

What comes before a repeat (an input put back, a cache filled with something else) is outside of its time.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuproof.worker.engine.loop import StepClock, paused_collector


def nothing() -> None:
    """Do nothing."""


def time_repeats(
    run: Callable[[], None],
    *,
    clock: StepClock,
    iterations: int,
    warmup_iterations: int,
    before: Callable[[], None] = nothing,
    meet: Callable[[], None] = nothing,
    is_blocking: bool = False,
    beat: Callable[[], None] = nothing,
) -> list[float]:
    """Return the seconds of each repeat, after the warm-up.

    `before` is done before each; at `meet` all ranks wait for each other: before the first timed repeat, and
    with `is_blocking` after every one, when the device is done with it. `beat` is called when the device
    has done more of them, and not because the host asked for more.
    """
    for _ in range(warmup_iterations):
        before()
        run()
    clock.synchronize()
    meet()
    times_s: list[float] = []
    with paused_collector():
        for _ in range(iterations):
            before()
            clock.begin()
            run()
            clock.end()
            done = clock.drain(in_flight=iterations)
            times_s += done
            if done:
                beat()
            if is_blocking:
                clock.synchronize()
                meet()
        times_s += clock.drain(in_flight=0)
    return times_s
