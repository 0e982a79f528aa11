"""How often is a normal rank accused, and a slow one missed? Each rank's own steps are simulated.

The rule is the one used by reports (`gpuproof.launches.ranks.stands_apart`), applied to bursts as measured by
the worker: five bursts, separated by equally many steps of all ranks. It only does arithmetic; nothing is
run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np

from gpuproof.base.units import share
from gpuproof.launches.ranks import find_outliers
from gpuproof.statistics.estimate import FloatArray
from gpuproof.worker.rank.after_window import NUM_BURSTS

Shape = Callable[[np.random.Generator, tuple[int, int]], FloatArray]
RANKS = (2, 8, 64)
STEPS = (4, 10, 20, 50)
"""Steps per burst, for step times of at least 25 ms, 10 ms, 5 ms, and at most 2 ms."""
SLOWER = (1.1, 1.3)


def normal(deviation: float) -> Shape:
    """Independent noise."""
    return lambda rng, size: np.exp(deviation * rng.standard_normal(size))


def autocorrelated(deviation: float, phi: float) -> Shape:
    """Noise that is correlated between neighbouring steps."""

    def draw(rng: np.random.Generator, size: tuple[int, int]) -> FloatArray:
        noise = rng.standard_normal(size)
        for i in range(1, size[1]):
            noise[:, i] = phi * noise[:, i - 1] + (1 - phi**2) ** 0.5 * noise[:, i]
        return np.asarray(np.exp(deviation * noise))

    return draw


def stalls(rng: np.random.Generator, size: tuple[int, int]) -> FloatArray:
    """One step in twenty takes ten times as long."""
    return np.asarray(normal(0.02)(rng, size) * np.where(rng.random(size) < 0.05, 10, 1))


def two_speeds(rng: np.random.Generator, size: tuple[int, int]) -> FloatArray:
    """Steps take 1 or 1.1 at random."""
    return np.where(rng.random(size) < 0.5, 1.0, 1.1)


def drifting(rng: np.random.Generator, size: tuple[int, int]) -> FloatArray:
    """All ranks become 20 % slower."""
    return np.asarray(normal(0.02)(rng, size) * np.linspace(1, 1.2, size[1]))


SHAPES: Mapping[str, Shape] = {
    "noise of 1 %": normal(0.01),
    "noise of 10 %": normal(0.1),
    "noise of 30 %": normal(0.3),
    "AR(1) 0.9, 5 %": autocorrelated(0.05, 0.9),
    "AR(1) 0.9, 10 %": autocorrelated(0.1, 0.9),
    "stalls × 10, 5 %": stalls,
    "two speeds": two_speeds,
    "drift of 20 %": drifting,
}


def launch(rng: np.random.Generator, shape: Shape, *, ranks: int, steps: int) -> FloatArray:
    """Return each rank's own step times, by rank, burst and step."""
    times = shape(rng, (ranks, NUM_BURSTS * (2 * steps + 1)))
    return times.reshape(ranks, NUM_BURSTS, -1)[:, :, :steps]


def errors(shape: Shape, *, ranks: int, steps: int, draws: int, slower: float = 1.0) -> tuple[float, float]:
    """Return the fractions of launches in which the first rank is accused, and in which any other is."""
    rng = np.random.default_rng(1)
    first = others = 0
    for _ in range(draws):
        times = launch(rng, shape, ranks=ranks, steps=steps)
        times[0] *= slower
        apart = find_outliers(times.tolist())
        first += apart[0]
        others += any(apart[1:])
    return first / draws, others / draws


def main() -> None:
    """Print one table of false accusations, and one of correctly named slow ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 launches of each instead of 400")
    draws = 50 if parser.parse_args().quick else 400
    columns = [(ranks, steps) for ranks in RANKS for steps in STEPS]
    print(f"launches of equal ranks in which any rank is accused, out of {draws} each")
    print(f"{'':17} " + " ".join(f"{ranks:>3}r {steps:>2}s" for ranks, steps in columns))
    for name, shape in SHAPES.items():
        found = [max(errors(shape, ranks=ranks, steps=steps, draws=draws)) for ranks, steps in columns]
        print(f"{name:17} " + " ".join(f"{share(value):>7}" for value in found), flush=True)
    for slower in SLOWER:
        print(f"launches in which the only slow rank, at {slower} ×, is named")
        for name, shape in SHAPES.items():
            found = [
                errors(shape, ranks=ranks, steps=steps, draws=max(20, draws // 5), slower=slower)[0]
                for ranks, steps in columns
            ]
            print(f"{name:17} " + " ".join(f"{share(value):>7}" for value in found), flush=True)


if __name__ == "__main__":
    main()
