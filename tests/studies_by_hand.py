"""Scaling studies whose launches are written by hand: step times in, what they are concluded to out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from planning import next_cases
from records_by_hand import NUM_STEPS, Story, setup, steady_times, window, write_run

REPEATS = 3
NO_DATA: dict[str, Any] = {"data": {}}


def sections(**block: Any) -> dict[str, Any]:
    return {
        "suite": "scale",
        "scale": {"batch_sizes": [32], "num_devices": [1, 2], **block},
        "model": {"name": "large"},
        "monitoring": {"enabled": False},
        "run": {"repeats": REPEATS},
    }


def config(**block: Any) -> RunConfig:
    return RunConfig.model_validate(sections(**block))


def launches(of: RunConfig, step_s: Mapping[str, tuple[float, ...]]) -> list[CaseRecords]:
    """Write every launch down; `step_s` has the step time of each replicate, by point."""
    found = []
    for case in next_cases(of):
        ranks = range(case.placement.num_ranks)
        own_s = step_s[case.case_id][case.replicate]
        batch = case.model_work.data.batch_size
        windows = [
            window(rank, items=NUM_STEPS * batch, wall_s=NUM_STEPS * own_s, steps_s=NUM_STEPS * own_s)
            for rank in ranks
        ]
        setups = [setup(rank, items_per_step=batch, num_parameters=2_021_379) for rank in ranks]
        times = steady_times(NUM_STEPS, own_s)
        found.append(Story(case=case, windows=windows, setups=setups, times_s=times).records())
    return found


def concluded(tmp_path: Path, step_s: Mapping[str, tuple[float, ...]], **block: Any) -> Concluded:
    of = config(laws=["strong"], **block)
    run = write_run(tmp_path, launches(of, step_s), **{**NO_DATA, **sections(laws=["strong"], **block)})
    return conclude(run)
