"""Two configurations in turns, whose launches are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.ab import SUITE
from planning import HERE
from records_by_hand import NUM_STEPS, Story, setup, steady_times, window, write_run

NOISE = (0.0, 0.004, -0.003, 0.002, -0.004)
"""Logarithms of launches, in turns."""


def sections(**block: Any) -> dict[str, Any]:
    own = {"b": {"training.precision": "bf16"}, "pilot_pairs": 4, "max_pairs": 8, "b_name": "--b…", **block}
    return {
        "suite": "ab",
        "ab": own,
        "model": {"name": "medium"},
        "data": {},
        "monitoring": {"enabled": False},
    }


def config(**block: Any) -> RunConfig:
    return RunConfig.model_validate(sections(**block))


def launched(case: Case, slower: float) -> CaseRecords:
    """A launch whose step takes 10 ms with some noise, on B longer by a share."""
    place = 2 * case.replicate + (case.case_id == "b")
    step_s = 0.01 * exp(NOISE[place % 5]) * (1 + slower if case.case_id == "b" else 1)
    batch = case.model_work.data.batch_size
    own = window(items=NUM_STEPS * batch, wall_s=NUM_STEPS * step_s, steps_s=NUM_STEPS * step_s)
    return Story(
        case=case,
        windows=[own],
        setups=[setup(items_per_step=batch)],
        times_s=steady_times(NUM_STEPS, step_s),
    ).records()


def run_to_its_end(
    of: RunConfig, slower: float, end: Callable[[Case, float], CaseRecords] = launched
) -> list[CaseRecords]:
    """Launch all that the suite asks for, in its order."""
    state, found = SUITE.begin(of, HERE), []
    while cases := list(SUITE.next(state, {}, None)):
        assert SUITE.remaining(state).num_launches == len(cases)
        for case in cases:
            found.append(end(case, slower))
            state = SUITE.settle(state, found[-1])
    return found


def concluded(tmp_path: Path, slower: float, **block: Any) -> Concluded:
    launches = run_to_its_end(config(**block), slower)
    return conclude(write_run(tmp_path, launches, **sections(**block)))
