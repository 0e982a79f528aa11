"""Are the ranks of a launch equally fast, and if not, which of them do the others wait for?

Input: a launch with several ranks. Output: the results of each rank, how much they differ from the median of
the other ranks, and which value was compared. If ranks average gradients, every window is as long as the
slowest rank's window, so only steps that each rank ran alone can distinguish the ranks; if ranks work
independently, their own steps in the window can.

A difference between ranks' own steps counts if it is over 5 % and exceeds the differences between bursts of
equal ranks, according to Student's t-test on the log medians of the bursts, with one spread for all ranks, at
5 % per launch. If successive steps are correlated, so are bursts, and the error of a rank's mean is increased
accordingly (`_widening`). `benchmarks/rank_errors.py` shows how often the result is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import exp, log, sqrt
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuproof.launches.launch import Launch
from gpuproof.records.run import Device, Setup, Window
from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import FloatArray

UNEQUAL = 0.05
"""Ranks that differ by more than this are unequal: the slowest sets the rate of all."""
FALSE_ALARM = 0.05
"""False-positive rate for a launch with equally fast ranks."""
SHORTEST_S = 1e-9
"""The resolution of the clock."""
MOST_ALIKE = 0.95
"""Correlation of successive steps above which bursts look the same."""
MEDIAN_SPREAD = 1.57
"""Ratio of the variance of the median of many normal values to the variance of their mean: π / 2."""
Basis = Literal["own steps", "steps in the window", "windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankValues:
    """One rank. Times are in seconds."""

    rank: int
    host: str
    device: Device
    window_s: float
    step_s: float
    """Mean step in the window, including the time spent waiting for other ranks."""
    own_step_s: float | None
    """Median duration of the steps that the rank ran alone."""
    slower_by: float = 0.0
    """Difference from the median of the other ranks (0.3 is 30 %), for the value selected by
    `RanksCompared.basis`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksCompared:
    """All ranks of a launch, and which of them are outliers."""

    ranks: tuple[RankValues, ...]
    basis: Basis
    apart: tuple[RankValues, ...]
    """Ranks slower than the others, the slowest first; faster ones if most ranks are equally slow."""
    own_missing: str | None
    """Why no rank was timed alone."""

    def time_s(self, rank: RankValues) -> float:
        """Return the time used to compare a rank with the others."""
        return _by(rank, self.basis)


def compare_ranks(launch: Launch) -> RanksCompared | None:
    """Compare the ranks of a launch; None if there is only one."""
    if launch.world_size < 2:
        return None
    timed = (record for record in launch.own_compute if record.bursts_s and all(record.bursts_s))
    bursts = {record.rank: record.bursts_s for record in timed}
    waits = launch.case.model_work.trains or launch.setup.parallelism is not None
    ranks = tuple(
        _values(window, setup, bursts.get(window.rank))
        for window, setup in zip(launch.windows, launch.setups, strict=True)
    )
    missing = next((record.missing for record in launch.own_compute if record.missing), None)
    if len(bursts) == len(ranks) and len({len(of_rank) for of_rank in bursts.values()}) == 1:
        return _with_outliers(ranks, "own steps", find_outliers(list(bursts.values())), missing)
    basis: Basis = "windows" if waits else "steps in the window"
    lags = _lags(_log([_by(rank, basis) for rank in ranks]))
    return _with_outliers(ranks, basis, _far_off(lags), missing)


def _values(window: Window, setup: Setup, bursts: Sequence[Sequence[float]] | None) -> RankValues:
    return RankValues(
        rank=window.rank,
        host=window.host,
        device=setup.device,
        window_s=window.wall_s,
        step_s=window.steps_s / window.num_steps,
        own_step_s=None if bursts is None else _median(bursts),
    )


def find_outliers(bursts: Sequence[Sequence[Sequence[float]]]) -> list[bool]:
    """Determine whether each rank's own steps differ by more than chance and by more than `UNEQUAL`.

    `bursts` are step times in seconds, by rank and by burst; every rank has the same number of bursts.
    """
    steps = _log([_median(rank) for rank in bursts])
    medians = _log([[median(burst) for burst in rank] for rank in bursts])
    num_ranks, num_bursts = medians.shape
    spread = float(medians.var(axis=1, ddof=1).mean())
    others = 1.0 if num_ranks == 2 else MEDIAN_SPREAD / (num_ranks - 1)
    error = _widening(bursts) * (spread / num_bursts * (1 + others)) ** 0.5
    beyond = student_t_quantile(num_ranks * (num_bursts - 1), 1 - FALSE_ALARM / (2 * num_ranks)) * error
    by_chance = np.abs(_lags(medians.mean(axis=1))) <= beyond
    return list(_far_off(_lags(steps)) & ~by_chance)


def _widening(bursts: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return the error of a rank's mean, relative to the error that independent bursts would have.

    Steps are modelled as AR(1), with a coefficient that is pooled over ranks and corrected for the bias of
    short series (Kendall 1954, Note on bias in the estimation of autocorrelation, Biometrika 41). The gap
    between two bursts is as long as a burst. With a mean correlation r between B bursts, the variance of the
    mean is σ²(1 + (B − 1)r)/B, while the bursts' own variance shows σ²(1 − r).
    """
    num_steps = min(len(burst) for rank in bursts for burst in rank)
    if num_steps < 2:
        return 1.0
    logs = _log([[list(burst[:num_steps]) for burst in rank] for rank in bursts])
    num_bursts = logs.shape[1]
    among = _correlations(_coefficient(logs), num_bursts=num_bursts, num_steps=num_steps)
    common = float(among[~np.eye(num_bursts, dtype=bool)].mean())
    return sqrt((1 + (num_bursts - 1) * common) / (1 - common))


def _coefficient(logs: FloatArray) -> float:
    """Return the AR(1) coefficient of steps (by rank, burst and step), from adjacent steps in bursts."""
    off = logs - logs.mean(axis=(1, 2), keepdims=True)
    squares = float((off * off).mean())
    if squares == 0:
        return 0.0
    seen, num_values = float((off[..., 1:] * off[..., :-1]).mean()) / squares, logs[0].size
    return min(MOST_ALIKE, max(0.0, (int(num_values) * seen + 1) / (int(num_values) - 3)))


def _correlations(coefficient: float, *, num_bursts: int, num_steps: int) -> FloatArray:
    """Return the correlations between the means of bursts separated by one burst length."""
    places = (np.arange(num_bursts)[:, None] * 2 * num_steps + np.arange(num_steps)).ravel()
    steps = coefficient ** np.abs(places[:, None] - places)
    means: FloatArray = steps.reshape(num_bursts, num_steps, num_bursts, num_steps).mean(axis=(1, 3))
    correlations: FloatArray = means / means[0, 0]
    return correlations


def _median(bursts: Sequence[Sequence[float]]) -> float:
    return float(median(chain.from_iterable(bursts)))


def _log(
    times_s: Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]],
) -> FloatArray:
    logarithms: FloatArray = np.log(np.maximum(np.array(times_s, dtype=np.float64), SHORTEST_S))
    return logarithms


def _lags(log_times: FloatArray) -> FloatArray:
    """Return the difference between each rank's log time and the median of the other ranks."""
    order = np.argsort(log_times, kind="stable")
    ranked, num_others = log_times[order], len(log_times) - 1
    low, high = (num_others - 1) // 2, num_others // 2  # among the others: the middle one, or the middle two
    positions = np.empty(len(log_times), dtype=np.intp)
    positions[order] = np.arange(len(log_times))
    medians = (ranked[low + (positions <= low)] + ranked[high + (positions <= high)]) / 2
    lags: FloatArray = log_times - medians
    return lags


def _far_off(lags: FloatArray) -> NDArray[np.bool_]:
    far: NDArray[np.bool_] = np.abs(lags) > log(1 + UNEQUAL)
    return far


def _with_outliers(
    ranks: Sequence[RankValues],
    basis: Basis,
    is_apart: Sequence[bool] | NDArray[np.bool_],
    missing: str | None,
) -> RanksCompared:
    lags = _lags(_log([_by(rank, basis) for rank in ranks]))
    compared = [replace(rank, slower_by=exp(lag) - 1) for rank, lag in zip(ranks, lags, strict=True)]
    apart = [rank for rank, far in zip(compared, is_apart, strict=True) if far]
    slow = sorted((r for r in apart if r.slower_by > 0), key=lambda rank: -rank.slower_by)
    return RanksCompared(ranks=tuple(compared), basis=basis, apart=tuple(slow or apart), own_missing=missing)


def _by(rank: RankValues, basis: Basis) -> float:
    """Return the time used to compare the ranks."""
    if basis == "own steps":
        assert rank.own_step_s is not None
        return rank.own_step_s
    return rank.step_s if basis == "steps in the window" else rank.window_s
