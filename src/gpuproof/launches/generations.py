"""Step times of decode without what comes from their place in a generation.

Each decode step attends to one token more than the one before, until the cache goes back to the prompt: equal
steps are those of equal place in their generations. In: a launch. Out: its step times, each divided by what
its place alone makes of it, so that they can be judged as those of equal steps.

Where a window holds twenty generations, what a place makes is the median of its steps; with fewer, a line
through the medians of ten parts of a generation, where they lie on one. Steps that replay one graph for each
bucket of lengths are alike within a bucket, and what counts is the bucket's median. In less than two
generations time and place run together, and a device that slows down looks like a cache that grows:
`is_separable` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuproof.launches.launch import Launch
from gpuproof.statistics.estimate import FloatArray

Places = NDArray[np.signedinteger]
MANY_GENERATIONS = 20
"""A median of fewer would take much of the noise with it."""
TOLD_APART = 2
"""Generations from which place and time do not run together."""
NUM_PARTS = 10
FEWEST_STEPS = 20
"""With less no line is drawn."""
ON_A_LINE = 0.9
"""Correlation of the parts' medians with their places; of ten that do not grow 2 in 10,000 come so near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenedSteps:
    """Step times of a launch as those of equal steps."""

    times_s: tuple[float, ...]
    growth: float | None
    """From the first place of a generation that the window holds to the last (0.1 is 10 %); None where steps
    do not grow, or nothing was evened."""
    is_separable: bool
    """Whether growth with the place could be told from a change with time."""


def evened_steps(launch: Launch) -> EvenedSteps:
    """Return the step times of a launch without the growth of a generation; others as they are."""
    times_s = launch.step_times_s
    length, begin = launch.case.model_work.steps_of_a_generation, launch.slowest.tokens_before
    enough = length is not None and len(times_s) >= MANY_GENERATIONS * length
    if length is None or len(times_s) < FEWEST_STEPS or (begin is None and not enough):
        return EvenedSteps(times_s=times_s, growth=None, is_separable=True)
    times, places = np.array(times_s), ((begin or 0) + np.arange(len(times_s))) % length
    buckets = None if begin is None else _buckets(launch, places)
    if buckets is not None:
        expected: FloatArray | None = _medians(times, buckets)
    else:
        expected = _medians(times, places) if enough else _line(times, places)
    if expected is None:
        return EvenedSteps(times_s=times_s, growth=None, is_separable=True)
    evened = times / expected * np.median(times)
    first, last = expected[np.argmin(places)], expected[np.argmax(places)]
    return EvenedSteps(
        times_s=tuple(evened.tolist()),
        growth=float(last / first) - 1,
        is_separable=len(times_s) >= TOLD_APART * length,
    )


def _buckets(launch: Launch, places: Places) -> Places | None:
    """Return the bucket of each step whose steps are alike, having one graph; None where there are none."""
    options, prompt = launch.setup.options, launch.setup.input_shape
    if options is None or not options.graph_ends or prompt is None:
        return None
    return np.searchsorted(options.graph_ends, prompt[0] + 1 + places)


def _medians(times: FloatArray, places: Places) -> FloatArray:
    """Give each step the median of the steps of its place."""
    by_place = {place: np.median(times[places == place]) for place in np.unique(places).tolist()}
    return np.array([by_place[place] for place in places.tolist()])


def _line(times: FloatArray, places: Places) -> FloatArray | None:
    """Give each step what a line makes of its place; None where steps do not become longer along one."""
    if len(np.unique(places)) < NUM_PARTS:
        return None
    parts = np.array_split(np.argsort(places, kind="stable"), NUM_PARTS)
    middles = [float(np.mean(places[part])) for part in parts]
    medians = [float(np.median(times[part])) for part in parts]
    if np.ptp(medians) == 0 or np.corrcoef(middles, medians)[0, 1] < ON_A_LINE:
        return None
    slope, start = np.polyfit(middles, medians, 1)
    if start <= 0:
        return None
    expected: FloatArray = start + slope * places
    return expected
