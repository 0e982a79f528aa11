"""One AMD card as the amdgpu driver's files show it: read without AMD's library, and where it gives nothing.

In come the card's directory under /sys and its KFD node; out come, for each metric and fact, how to read it.
Sensors are found by their labels, since numbers differ by card. Where two files may hold a metric, the first
that exists is read, in the order given here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuproof.devices.amd import gpu_metrics
from gpuproof.devices.amd.kfd import KfdNode
from gpuproof.devices.base import DeviceError, NotSupportedError
from gpuproof.devices.sysfs import Card, Sensors, SysfsFiles, pcie_generation

_PWM_MAX = 255


class CardFiles:
    """The files of one card, each metric under its name in the catalogue."""

    def __init__(self, card: Card, node: KfdNode | None) -> None:
        self._files = SysfsFiles(card.device_dir)
        self._node = node
        self._sensors = Sensors(self._files)
        self._temperatures = self._sensors.by_label("temp")
        self._clocks = self._sensors.by_label("freq")
        self.sources: dict[str, Callable[[], Any]] = self._metrics() | self._limits() | self._words()
        """Metric or fact → how to read it; raises a `DeviceError` that says why there is none."""

    def close(self) -> None:
        """Close every file."""
        self._files.close()

    def is_asleep(self) -> bool:
        """Say whether reading the card would wake it.

        Raises:
            DeviceLostError: the card is gone.
        """
        self._files.require_card()
        try:
            return self._files.text("power/runtime_status") == "suspended"
        except NotSupportedError:
            return False

    def firmware(self) -> dict[str, int]:
        """Read the firmware's table.

        Raises:
            DeviceError: the card has none, or one that is not known here.
        """
        return gpu_metrics.parse(self._files.read("gpu_metrics"))

    def _metrics(self) -> dict[str, Callable[[], float]]:
        number = partial(partial, self._files.number)
        return {
            "util_gpu_percent": number("gpu_busy_percent"),
            "util_mem_ctrl_percent": number("mem_busy_percent"),
            "mem_used_bytes": number("mem_info_vram_used"),
            "mem_host_mapped_bytes": number("mem_info_gtt_used"),
            "power_w": partial(self._sensor, "power1_average", "power1_input", scale=1e-6),
            "power_instant_w": partial(self._sensor, "power1_input", scale=1e-6),
            "temp_gpu_c": partial(self._temperature, "edge", "junction"),
            "temp_hotspot_c": partial(self._temperature, "junction"),
            "temp_hotspot_critical_c": partial(self._temperature, "junction", suffix="_crit"),
            "temp_mem_c": partial(self._temperature, "mem"),
            "clock_sm_mhz": partial(self._clock, "sclk"),
            "clock_mem_mhz": partial(self._clock, "mclk"),
            "fan_percent": partial(self._sensor, "pwm1", scale=100 / _PWM_MAX),
            "fan_rpm": partial(self._sensor, "fan1_input"),
            "pcie_gen": partial(pcie_generation, self._files, "current_link_speed"),
            "pcie_width": number("current_link_width"),
            "pcie_replay_count": number("pcie_replay_count"),
            "ecc_corrected_count": partial(self._errors, "ce"),
            "ecc_uncorrected_count": partial(self._errors, "ue"),  # codespell:ignore ue
        }

    def _limits(self) -> dict[str, Callable[[], float]]:
        number = partial(partial, self._files.number)
        return {
            "mem_total_bytes": number("mem_info_vram_total"),
            "power_limit_w": partial(self._sensor, "power1_cap", scale=1e-6),
            "power_limit_default_w": partial(self._sensor, "power1_cap_default", scale=1e-6),
            "power_limit_min_w": partial(self._sensor, "power1_cap_min", scale=1e-6),
            "power_limit_max_w": partial(self._sensor, "power1_cap_max", scale=1e-6),
            "temp_slowdown_c": partial(self._temperature, "edge", "junction", suffix="_crit"),
            "temp_shutdown_c": partial(self._temperature, "edge", "junction", suffix="_emergency"),
            "temp_mem_max_c": partial(self._temperature, "mem", suffix="_crit"),
            "clock_sm_max_mhz": partial(self._dpm, "pp_dpm_sclk", max),
            "clock_sm_min_mhz": partial(self._dpm, "pp_dpm_sclk", min),
            "clock_mem_max_mhz": partial(self._dpm, "pp_dpm_mclk", max),
            "pcie_gen_max": partial(pcie_generation, self._files, "max_link_speed"),
            "pcie_width_max": number("max_link_width"),
        }

    def _words(self) -> dict[str, Callable[[], Any]]:
        word = partial(partial, self._word)
        return {
            "name": word("product_name"),
            "uuid": self._uuid,
            "vbios_version": word("vbios_version"),
            "performance_level": word("power_dpm_force_performance_level"),
            "compute_partition": word("current_compute_partition"),
            "memory_partition": word("current_memory_partition"),
            "numa_node": word("numa_node"),
            "kfd_node": self._kfd_node,
            "device_id": word("device"),
        }

    def _word(self, name: str) -> str:
        if text := self._files.text(name):
            return text
        raise NotSupportedError(f"this card leaves {name} empty")

    def _uuid(self) -> str:
        try:
            return f"GPU-{self._word('unique_id').removeprefix('0x')}"
        except NotSupportedError as error:
            raise NotSupportedError("this card has no unique_id") from error

    def _kfd_node(self) -> int:
        if self._node is None:
            raise NotSupportedError("this card is not among ROCm's (no KFD node)")
        return self._node.number

    def _sensor(self, *choices: str, scale: float = 1.0) -> float:
        paths = [self._sensors.path(name) for name in choices]
        return self._files.number(next(filter(self._files.has, paths), paths[0]), scale)

    def _temperature(self, *labels: str, suffix: str = "_input") -> float:
        for label in labels:
            if label in self._temperatures:
                return self._files.number(self._temperatures[label] + suffix, 1e-3)
        raise NotSupportedError(f"this card has no {' or '.join(labels)} temperature")

    def _clock(self, label: str) -> float:
        if label in self._clocks:
            return self._files.number(self._clocks[label] + "_input", 1e-6)
        return self._dpm(f"pp_dpm_{label}", max, active=True)

    def _dpm(self, name: str, pick: Callable[[list[int]], int], *, active: bool = False) -> float:
        """Read a table of clocks such as `1: 2500Mhz *`, whose star marks the one in use."""
        star = r" \*" if active else ""
        text = self._files.text(name)
        steps = [int(mhz) for mhz in re.findall(rf"^\w+: (\d+)Mhz{star}", text, re.MULTILINE)]
        if not steps:
            raise DeviceError(f"{name} names no clock")
        return pick(steps)

    def _errors(self, kind: str) -> float:
        text = self._files.text("ras/umc_err_count")
        count = re.search(rf"^{kind}: (\d+)$", text, re.MULTILINE)
        if count is None:
            raise DeviceError(f"ras/umc_err_count holds {text!r}")
        return int(count.group(1))
