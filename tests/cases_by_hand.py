"""Cases of a matrix written down by hand, without running any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuproof.suites.matrix.case_values import Amount, CaseValues

UNREAD = Amount(missing="not read")


def done_case(configuration: str, seed: int, **metrics: float) -> CaseValues:
    """Return a launch that ended well; `wall_s` and `memory_bytes` are taken out of its figures."""
    wall_s = metrics.pop("wall_s", 1.0)
    memory_bytes = metrics.pop("memory_bytes", None)
    memory = UNREAD if memory_bytes is None else Amount(basis="process tree", peak_bytes=memory_bytes)
    return CaseValues(
        case_id=f"{configuration}_{seed}",
        replicate=0,
        configuration=configuration,
        assignment={"optimizer": configuration, "seed": seed},
        status="done",
        failure=None,
        exit_status=0,
        wall_s=wall_s,
        metrics=metrics,
        metrics_missing=None,
        memory=memory,
        resident=UNREAD,
        energy_j=None,
        energy_missing="not read",
        devices=(),
        host="here",
    )


def cases_of(
    values: Mapping[str, Iterable[float]], metric: str = "accuracy", **more: Any
) -> list[CaseValues]:
    """Return a launch a value of each configuration."""
    return [
        done_case(name, seed, **{metric: value}, **more)
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]
