"""A limit on what torch takes of a device: asked of the device's module, refused, or said not to apply."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuproof.accelerators.base import Accelerator, DeviceProperties
from gpuproof.accelerators.choose import PROCESSOR, find_accelerator
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.parallel import ParallelSpec
from gpuproof.worker.step.applicability import not_applied
from gpuproof.workloads.info.base import InputShape
from records_by_hand import case

KEY = "distributed.memory_limit_bytes"
FEATURES = InputShape(kind="features", shape=(50,), num_targets=3)
DEVICE = torch.device("cpu")
GIB = 2**30


class Limited(Accelerator):
    """A device of 16 GiB (or of nobody knows how much) that keeps what it was told."""

    type = "limited"
    title = "Limited"

    def __init__(self, total_bytes: int | None) -> None:
        self.total_bytes = total_bytes
        self.told: list[float] = []

    @property
    def module(self) -> Any:
        return SimpleNamespace(set_per_process_memory_fraction=lambda share, _device: self.told.append(share))

    def properties(self, device: torch.device) -> DeviceProperties:
        return DeviceProperties(name="limited", memory_total_bytes=self.total_bytes)


def reasons(accelerator: Accelerator, limit_bytes: int | None) -> dict[str, str]:
    asked = case()
    work = asked.model_work
    parallel: ParallelSpec = replace(work.parallel, memory_limit_bytes=limit_bytes)
    asked = replace(asked, work=replace(work, parallel=parallel))  # type: ignore[arg-type]
    found = not_applied(asked, accelerator=accelerator, shape=FEATURES, world_size=1)
    return {item.key: item.reason for item in found}


@pytest.mark.promise("S2.11")
def test_twelve_of_sixteen_gibibytes_are_three_quarters() -> None:
    device = Limited(16 * GIB)
    device.limit_memory(12 * GIB, DEVICE)
    assert device.told == [0.75]
    assert KEY not in reasons(device, 12 * GIB)


@pytest.mark.parametrize(("total_bytes", "has"), [(8 * GIB, "8,589,934,592"), (None, "an unknown amount")])
def test_more_than_there_is_is_refused(total_bytes: int | None, has: str) -> None:
    device = Limited(total_bytes)
    with pytest.raises(EnvironmentUnfitError, match=has):
        device.limit_memory(12 * GIB, DEVICE)
    assert device.told == []


def test_a_processor_has_no_limit_and_says_so() -> None:
    assert "does not limit a process's memory on CPU devices" in reasons(PROCESSOR, 12 * GIB)[KEY]
    assert KEY not in reasons(PROCESSOR, None)
    assert find_accelerator("cuda").reason_no_memory_limit() is None
