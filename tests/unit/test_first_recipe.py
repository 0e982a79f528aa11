"""`gpuproof init`: what is written for a host loads, and says what the host has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.config.first_recipe import first_recipe
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig

GIB = 2**30
HOST: dict[str, Any] = {
    "gpuproof": "0.1.0",
    "executable": "/usr/bin/python3",
    "host": "node1",
    "torch": "2.13.0",
    "torch_hip": None,
    "devices": [],
    "cpu": {"name": "EPYC", "logical_cpus": 128, "usable_cpus": 96},
    "accelerators": {"devices": []},
}


def gpu(name: str, capability: str, memory_bytes: int) -> dict[str, Any]:
    return {"name": name, "compute_capability": capability, "memory_total_bytes": memory_bytes}


def loaded(tmp_path: Path, **changes: Any) -> RunConfig:
    path = tmp_path / "host.yaml"
    path.write_text(first_recipe({**HOST, **changes}))
    return load_config(str(path)).config


@pytest.mark.parametrize(
    ("devices", "hip", "precision", "batch_size"),
    [
        ([gpu("H200", "9.0", 141 * GIB)] * 8, None, "bf16", 256),
        ([gpu("A100", "8.0", 40 * GIB)] * 4, None, "bf16", 128),
        ([gpu("V100", "7.0", 16 * GIB)], None, "amp", 64),
        ([gpu("P40", "6.1", 8 * GIB)], None, "fp32", 32),
        ([gpu("small", "8.6", 4 * GIB)], None, "bf16", 16),
        ([gpu("A100", "8.0", 80 * GIB), gpu("V100", "7.0", 32 * GIB)], None, "amp", 128),
        ([gpu("MI300X", "9.4", 192 * GIB)] * 2, "6.2", "bf16", 256),
    ],
)
def test_gpus(
    devices: list[dict[str, Any]], hip: str | None, precision: str, batch_size: int, tmp_path: Path
) -> None:
    config = loaded(tmp_path, devices=devices, torch_hip=hip)
    assert config.distributed.device == "cuda"
    assert config.distributed.nproc == len(devices)
    assert config.distributed.threads_per_rank == 96 // len(devices)
    assert (config.training.precision, config.data.batch_size) == (precision, batch_size)
    assert config.run.experiment_name == "first-node1"


def test_a_processor(tmp_path: Path) -> None:
    config = loaded(tmp_path, host="a host/with: odd\nname")
    assert (config.distributed.device, config.distributed.nproc) == ("cpu", 1)
    assert config.distributed.threads_per_rank == 96
    assert config.run.experiment_name == "first-a-host-with-odd-name"


def test_devices_that_torch_does_not_see_are_said() -> None:
    listed = {"devices": [{"name": "NVIDIA H200"}]}
    assert "The driver lists NVIDIA H200, but torch sees none" in first_recipe(
        {**HOST, "accelerators": listed}
    )


def test_without_torch_there_is_nothing_to_write() -> None:
    with pytest.raises(EnvironmentUnfitError, match="No module named 'torch'"):
        first_recipe({**HOST, "torch": None, "torch_missing": "No module named 'torch'"})
