"""The ceilings: exact names only, dense figures, each with its source; nothing is guessed."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import tomllib

from gpuproof.hardware import peak_of


@pytest.mark.parametrize(
    ("name", "precision", "tflops", "dtype"),
    [
        ("NVIDIA H200", "bf16", 989.5, "bf16"),
        ("NVIDIA H200", "amp", 989.5, "fp16"),
        ("NVIDIA H200", "fp32", 67.0, "fp32"),  # the vector pipeline: TF32 is switched off
        ("NVIDIA A100-SXM4-40GB", "bf16", 312.0, "bf16"),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5, "fp32"),
    ],
)
def test_known_devices(name: str, precision: str, tflops: float, dtype: str) -> None:
    peak = peak_of(name, precision)
    assert peak is not None
    assert (peak.flops_per_s, peak.dtype) == (tflops * 1e12, dtype)


@pytest.mark.parametrize("name", ["H200", "NVIDIA H200 NVL", "nvidia h200", "NVIDIA L40S", "CPU", ""])
def test_a_name_that_is_not_exactly_known_has_no_ceiling(name: str) -> None:
    assert peak_of(name, "bf16") is None


def test_every_figure_has_a_source_and_a_date_and_no_name_stands_twice() -> None:
    devices = tomllib.loads(files("gpuproof").joinpath("peaks.toml").read_text(encoding="utf-8"))["device"]
    names = [name for device in devices for name in device["names"]]
    assert len(names) == len(set(names))
    for device in devices:
        assert set(device) == {"names", "dense_tflops", "source", "date"}
        assert "https://" in device["source"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", device["date"])
        assert set(device["dense_tflops"]) <= {"fp32", "tf32", "fp16", "bf16"}
        assert all(isinstance(value, float) and value > 0 for value in device["dense_tflops"].values())
