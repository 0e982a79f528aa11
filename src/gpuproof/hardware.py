"""What the hardware can do at most: exact device name, precision and density, each with its source.

An unknown device has no ceiling and no model FLOPs utilisation; nothing is guessed from part of a name.
The figures are in `peaks.toml`, with the names, the boards that were left out, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import tomllib

PEAK_TYPE_OF_PRECISION = {"fp32": "fp32", "tf32": "tf32", "amp": "fp16", "bf16": "bf16", "fp8": "fp8"}
"""The fastest arithmetic that a step in this precision may use.

A step in fp8 still multiplies some matrices in bf16. Its share is of the fp8 peak all the same: only that is
a ceiling, over which no honest step can come. It falls where throughput rises, so that shares of different
types of arithmetic are no ranking; each is printed with its type.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense arithmetic peak and where the figure comes from."""

    flops_per_s: float
    dtype: str
    source: str
    date: str
    printed: str = "dense"
    """How the source prints it: "dense", or "sparse", and then it is halved here."""

    @property
    def provenance(self) -> str:
        """Name the source as a report does, with what was done to its figure."""
        return _provenance(self.source, self.date, halved=self.printed == "sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The bandwidth of a device's own memory and where the figure comes from."""

    bytes_per_s: float
    source: str
    date: str

    @property
    def provenance(self) -> str:
        """Name the source as a report does."""
        return _provenance(self.source, self.date, halved=False)


def _provenance(source: str, date: str, *, halved: bool) -> str:
    return f"{source}{', which prints it with sparsity: halved' if halved else ''}, as of {date}"


def find_peak(device_name: str, precision: str) -> Peak | None:
    """Return the dense peak of the device of exactly this name, in the arithmetic of `precision`."""
    device = _devices().get(device_name)
    dtype = PEAK_TYPE_OF_PRECISION.get(precision)
    if device is None or dtype is None or dtype not in device["dense_tflops"]:
        return None
    return Peak(
        flops_per_s=device["dense_tflops"][dtype] * 1e12,
        dtype=dtype,
        source=device["source"],
        date=device["date"],
        # The vector pipeline knows no sparsity: its figure is dense in every data sheet.
        printed="dense" if dtype == "fp32" else device["printed"],
    )


def find_memory_peak(device_name: str) -> MemoryPeak | None:
    """Return the memory bandwidth of the device of exactly this name."""
    device = _devices().get(device_name)
    if device is None:
        return None
    return MemoryPeak(
        bytes_per_s=device["memory_gb_per_s"] * 1e9, source=device["source"], date=device["date"]
    )


@cache
def _devices() -> dict[str, dict]:  # type: ignore[type-arg]  # the shape of peaks.toml, checked by its test
    text = files("gpuproof").joinpath("peaks.toml").read_text(encoding="utf-8")
    return {name: device for device in tomllib.loads(text)["device"] for name in device["names"]}
