"""Communication profiles: which variables they set, what they do not override, and where they do nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from gpuproof.accelerators.choose import find_accelerator
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import TrainingWork
from gpuproof.records.work.parallel import CommunicationProfile
from gpuproof.worker.parallel.distributed import PROFILES, apply_profile
from gpuproof.worker.step.applicability import not_applied
from gpuproof.workloads.info.base import InputShape
from planning import next_cases
from studies_by_hand import config

KEY = "distributed.communication_profile"


@pytest.mark.promise("S2.10")
def test_each_profile_sets_its_variables_and_none_sets_none() -> None:
    assert set(PROFILES) == set(get_args(CommunicationProfile))
    environment = {"NCCL_SOCKET_IFNAME": "eth0"}
    apply_profile("none", environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "eth0"}
    apply_profile("pcie", environment)
    assert len(environment) == 11
    assert (environment["NCCL_P2P_DISABLE"], environment["NCCL_BUFFSIZE"]) == ("1", str(32 * 2**20))


def test_a_variable_that_somebody_set_is_not_overridden() -> None:
    environment = {"NCCL_ALGO": "Ring"}
    apply_profile("ring", environment)
    with pytest.raises(EnvironmentUnfitError, match=r"NCCL_ALGO is Ring.*tree sets Tree"):
        apply_profile("tree", environment)
    assert environment == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    ("device", "world_size", "backend", "reason"),
    [
        ("cuda", 2, "auto", None),
        ("cuda", 1, "auto", "one rank does not communicate with others"),
        ("cuda", 2, "gloo", "its settings are for NCCL, and ranks use gloo"),
        ("cpu", 2, "auto", "its settings are for NCCL, and ranks use gloo"),
    ],
)
def test_where_a_profile_does_nothing_is_said(
    device: str, world_size: int, backend: Any, reason: str | None
) -> None:
    case = next_cases(config())[0]
    work = case.work
    assert isinstance(work, TrainingWork)
    parallel = replace(work.parallel, communication_profile="tree", backend=backend)
    case = replace(case, work=replace(work, parallel=parallel))
    shape = InputShape(kind="features", shape=(50,), num_targets=3)
    found = not_applied(case, accelerator=find_accelerator(device), shape=shape, world_size=world_size)
    assert {item.key: item.reason for item in found}.get(KEY) == reason
