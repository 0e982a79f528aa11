"""What the hardware can do at most: exact device name, precision and density, each with its source.

An unknown device has no ceiling and no model FLOPs utilisation; nothing is guessed from part of a name.
The figures are in `peaks.toml`, with the names, the boards that were left out, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import tomllib

from gpuproof.base.files import packaged_text

Link = Literal["host", "pair", "all"]
"""To the host, to one other device, and to all others of its host together."""

PEAK_TYPE_OF_PRECISION = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "tf32",
    "amp": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
}
"""The fastest arithmetic that a step in this precision may use.

A step in fp8 still multiplies some matrices in bf16. Its share is of the fp8 peak all the same: only that is
a ceiling, over which no honest step can come. It falls where throughput rises, so that shares of different
types of arithmetic are no ranking; each is printed with its type.
"""

UNKNOWN_HEADROOM = 1.5
"""A peak holds at the data sheet's clock, and boards may be clocked higher: the matrix engines of an H100 SXM
by 8 % (1,980 MHz over 1,830). No board of `peaks.toml` may by half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense arithmetic peak and where the figure comes from."""

    flops_per_s: float
    dtype: str
    source: str
    date: str
    printed: str = "dense"
    """How the source prints it: "dense", or "sparse", and then it is halved here."""
    clock_mhz: float | None = None
    """At which it holds; None where no public document tells."""

    @property
    def provenance(self) -> str:
        """Name the source as a report does, with what was done to its figure."""
        return _provenance(self.source, self.date, halved=self.printed == "sparse")

    def at_clock(self, clock_mhz: float | None) -> float:
        """Return the most that the device can do at its highest clock, in FLOP/s.

        Where that clock is not known, `UNKNOWN_HEADROOM` over the peak is more than any board can.
        """
        if clock_mhz is None or self.clock_mhz is None:
            return self.flops_per_s * UNKNOWN_HEADROOM
        return self.flops_per_s * max(1.0, clock_mhz / self.clock_mhz)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthPeak:
    """The bandwidth of a device's own memory, or of a link of its own, and where the figure comes from."""

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
        clock_mhz=device.get("clock_mhz", {}).get("vector" if dtype == "fp32" else "matrix"),
    )


def find_memory_peak(device_name: str) -> BandwidthPeak | None:
    """Return the memory bandwidth of the device of exactly this name."""
    device = _devices().get(device_name)
    if device is None:
        return None
    return BandwidthPeak(
        bytes_per_s=device["memory_gb_per_s"] * 1e9, source=device["source"], date=device["date"]
    )


def find_link_peak(device_name: str, link: Link) -> BandwidthPeak | None:
    """Return what a link of the device of exactly this name carries each way; None where boards differ."""
    device = _devices().get(device_name, {})
    rate = device.get("link_gb_per_s", {}).get(link)
    if rate is None:
        return None
    return BandwidthPeak(bytes_per_s=rate * 1e9, source=device["source"], date=device["date"])


def board_names() -> list[str]:
    """Name the devices of which the ceilings are known."""
    return list(_devices())


@cache
def _devices() -> dict[str, dict]:  # type: ignore[type-arg]  # the shape of peaks.toml, checked by its test
    devices = tomllib.loads(packaged_text("hardware/peaks.toml"))["device"]
    return {name: device for device in devices for name in device["names"]}
