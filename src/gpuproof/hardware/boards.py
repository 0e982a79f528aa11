"""Hardware limits by exact device name, precision and density, each with its source.

An unknown device has no ceiling and no model FLOPs utilisation; nothing is guessed from part of a name.
`peaks.toml` contains the values and the device names, and lists the boards that were omitted and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import tomllib

from gpuproof.base.files import packaged_text

Link = Literal["host", "pair", "all"]
"""Kind of link: to the host, to one other device, or to all other devices of the host together."""

PEAK_TYPE_OF_PRECISION = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "tf32",
    "amp": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
}
"""Precision of a step → the fastest data type available to it.

A step in fp8 still runs some matmuls in bf16. Its utilisation is nevertheless relative to the fp8 peak, since
only that is a ceiling that no valid step can exceed. Utilisation can fall while throughput rises, so
utilisations at different precisions cannot be ranked; each is printed with its data type.
"""

UNKNOWN_HEADROOM = 1.5
"""Maximum clock headroom if the clock is unknown. A peak applies at the clock in the data sheet, but boards
may be clocked higher: the matrix engines of an H100 SXM by 8 % (1,980 MHz instead of 1,830). No board in
`peaks.toml` can be clocked 50 % higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A dense compute peak and its source."""

    flops_per_s: float
    dtype: str
    source: str
    date: str
    printed: str = "dense"
    """How the source states the value: "dense" or "sparse"; a sparse value is halved here."""
    clock_mhz: float | None = None
    """The clock at which the peak applies; None if no public document states it."""

    @property
    def provenance(self) -> str:
        """Describe the source for reports, including how its value was adjusted."""
        return _provenance(self.source, self.date, halved=self.printed == "sparse")

    def at_clock(self, clock_mhz: float | None) -> float:
        """Return the maximum rate of the device, at its highest clock, in FLOP/s.

        If that clock is unknown, use `UNKNOWN_HEADROOM` times the peak, which no board can exceed.
        """
        if clock_mhz is None or self.clock_mhz is None:
            return self.flops_per_s * UNKNOWN_HEADROOM
        return self.flops_per_s * max(1.0, clock_mhz / self.clock_mhz)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthPeak:
    """The bandwidth of a device's own memory or of one of its links, with its source."""

    bytes_per_s: float
    source: str
    date: str

    @property
    def provenance(self) -> str:
        """Describe the source for reports."""
        return _provenance(self.source, self.date, halved=False)


def _provenance(source: str, date: str, *, halved: bool) -> str:
    return f"{source}{' (half the sparse value)' if halved else ''}, as of {date}"


def find_peak(device_name: str, precision: str) -> Peak | None:
    """Return the dense peak of the device with exactly this name, in the data type of `precision`."""
    device = _devices().get(device_name)
    dtype = PEAK_TYPE_OF_PRECISION.get(precision)
    if device is None or dtype is None or dtype not in device["dense_tflops"]:
        return None
    return Peak(
        flops_per_s=device["dense_tflops"][dtype] * 1e12,
        dtype=dtype,
        source=device["source"],
        date=device["date"],
        # The vector pipeline has no sparsity support, so its value is dense in every data sheet.
        printed="dense" if dtype == "fp32" else device["printed"],
        clock_mhz=device.get("clock_mhz", {}).get("vector" if dtype == "fp32" else "matrix"),
    )


def find_memory_peak(device_name: str) -> BandwidthPeak | None:
    """Return the memory bandwidth of the device with exactly this name."""
    device = _devices().get(device_name)
    if device is None:
        return None
    return BandwidthPeak(
        bytes_per_s=device["memory_gb_per_s"] * 1e9, source=device["source"], date=device["date"]
    )


def find_link_peak(device_name: str, link: Link) -> BandwidthPeak | None:
    """Return the per-direction link bandwidth of the device with exactly this name; None if boards vary."""
    device = _devices().get(device_name, {})
    rate = device.get("link_gb_per_s", {}).get(link)
    if rate is None:
        return None
    return BandwidthPeak(bytes_per_s=rate * 1e9, source=device["source"], date=device["date"])


def board_names() -> list[str]:
    """Return the names of the devices with known ceilings."""
    return list(_devices())


@cache
def _devices() -> dict[str, dict]:  # type: ignore[type-arg]  # the shape of peaks.toml, checked by its test
    devices = tomllib.loads(packaged_text("hardware/peaks.toml"))["device"]
    return {name: device for device in devices for name in device["names"]}
