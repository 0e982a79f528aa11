"""What the hardware can do at most: exact device name, precision and density, each with its source.

An unknown device has no ceiling and no model FLOPs utilisation; nothing is guessed from part of a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import tomllib

PEAK_TYPE_OF_PRECISION = {"fp32": "fp32", "amp": "fp16", "bf16": "bf16"}
"""The fastest arithmetic that a step in this precision may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense arithmetic peak and where the figure comes from."""

    flops_per_s: float
    dtype: str
    source: str
    date: str


def peak_of(device_name: str, precision: str) -> Peak | None:
    """Return the dense peak of the device of exactly this name, in the arithmetic of `precision`."""
    dtype = PEAK_TYPE_OF_PRECISION[precision]
    for device in _devices():
        if device_name in device["names"] and dtype in device["dense_tflops"]:
            return Peak(
                flops_per_s=device["dense_tflops"][dtype] * 1e12,
                dtype=dtype,
                source=device["source"],
                date=device["date"],
            )
    return None


@cache
def _devices() -> list[dict]:  # type: ignore[type-arg]  # the shape of peaks.toml, checked by its test
    text = files("gpuproof").joinpath("peaks.toml").read_text(encoding="utf-8")
    devices: list[dict] = tomllib.loads(text)["device"]  # type: ignore[type-arg]  # as above
    return devices
