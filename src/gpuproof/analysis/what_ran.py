"""Which share of the FLOPs ran in which arithmetic or layout?"""

from __future__ import annotations

from collections.abc import Callable

from gpuproof.records.what_ran import Effective, ObservedWork


def share_of_flops(
    effective: Effective, fits: Callable[[ObservedWork], bool], *, images: bool = False
) -> float:
    """Return the share of the observed FLOPs that fits; of those of convolutions only, with `images`.

    0 where there is nothing to be a share of.
    """
    considered = [work for work in effective.work if not images or work.operation == "convolution"]
    total = sum(work.flops for work in considered)
    return sum(work.flops for work in considered if fits(work)) / total if total else 0.0
