"""One curve of a study, a batch size under one law: where it breaks, what a step takes more than its share.

A law holds for one way of talking. Where the next number of devices talks in another way (over another
backend, by another algorithm, into a second host), the curve is broken there, and nothing is fitted or
predicted across the break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuproof.launches.launch import Launch
from gpuproof.statistics.comparison import MIN_LAUNCHES
from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import Interval, Unavailable

ALGORITHM = re.compile(r"_(RING|TREE|NVLS_TREE|NVLS|COLLNET_DIRECT|COLLNET_CHAIN|PAT)_")
"""In the name of an NCCL kernel. Newer NCCL names several algorithms' kernels after the ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """How the ranks of a point talk, as far as their records say."""

    num_hosts: int
    backend: str | None
    """None on one device."""
    algorithms: tuple[str, ...]
    """By the names of the collectives' kernels; empty where these name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveBreak:
    """Between these two numbers of devices ranks begin to talk in another way."""

    before: int
    after: int
    reason: str


def fabric_of(launches: Sequence[Launch]) -> Fabric:
    """Say how the ranks of one point's launches talk; hosts are counted by their names."""
    kernels = [name for x in launches for overlap in x.collective_overlap for name in overlap.kernels]
    algorithms = {match[1] for name in kernels if (match := ALGORITHM.search(name))}
    return Fabric(
        num_hosts=max((len({w.host for w in launch.windows}) for launch in launches), default=1),
        backend=next((launch.setup.backend for launch in launches if launch.setup.backend), None),
        algorithms=tuple(sorted(algorithms)),
    )


def breaks_of(fabrics: Sequence[tuple[int, Fabric]]) -> Iterator[CurveBreak]:
    """Yield the breaks of a curve, whose points are in order of devices; one device talks in no way."""
    several = [item for item in fabrics if item[0] > 1]
    for (before, near), (after, far) in pairwise(several):
        if reason := _difference(near, far):
            yield CurveBreak(before=before, after=after, reason=reason)
    if fabrics and several and fabrics[0][0] == 1 and several[0][1].num_hosts > 1:
        reason = f"into {several[0][1].num_hosts} hosts"
        yield CurveBreak(before=1, after=several[0][0], reason=reason)


def _difference(near: Fabric, far: Fabric) -> str | None:
    if near.num_hosts != far.num_hosts:
        return f"from {near.num_hosts} host{'s' * (near.num_hosts > 1)} to {far.num_hosts}"
    if near.backend != far.backend:
        return f"from {near.backend} to {far.backend}"
    if near.algorithms != far.algorithms and near.algorithms and far.algorithms:
        return f"from {'+'.join(near.algorithms)} to {'+'.join(far.algorithms)}"
    return None


def overhead(
    single_s: Sequence[float], several_s: Sequence[float], *, ideal_share: float, confidence: float
) -> Interval | Unavailable:
    """Return by how much a step on several devices takes longer than its share of one device's, in seconds.

    `single_s` and `several_s` are mean steps of launches; `ideal_share` is what a step would take of one
    device's, did devices only divide the work: 1 / N under strong scaling, 1 under weak. Noise adds to
    seconds, so that this is a difference, by Welch's t with the degrees of freedom of the smaller side.
    """
    if min(len(single_s), len(several_s)) < MIN_LAUNCHES:
        return Unavailable(reason=f"a side has fewer than {MIN_LAUNCHES} launches")
    one, several = np.array(single_s), np.array(several_s)
    centre = float(several.mean() - ideal_share * one.mean())
    variance = several.var(ddof=1) / several.size + ideal_share**2 * one.var(ddof=1) / one.size
    freedom = min(one.size, several.size) - 1
    reach = student_t_quantile(freedom, (1 + confidence) / 2) * float(variance) ** 0.5
    return Interval(
        low=centre - reach,
        high=centre + reach,
        centre=centre,
        confidence=confidence,
        method="Welch's t on mean steps of launches",
        num_launches=one.size + several.size,
        num_samples=one.size + several.size,
        between_launches=True,
    )
