"""One AMD card: the files of the amdgpu driver that hold each metric, and the library for the others.

In come the card's directory under /sys, its KFD node and the library's view of it; out come readouts in
which every metric is a number or has a reason. Sensors are found by their labels, since numbers differ by
card. Where two files may hold a metric, the first that exists is read, in the order given here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuproof.devices.amd import gpu_metrics, kfd
from gpuproof.devices.amd.library_card import AbsentCard, LibraryCard, both, filled
from gpuproof.devices.amd.throttle import ResidencyClock
from gpuproof.devices.base import (
    DeviceError,
    DeviceLostError,
    DeviceProcess,
    NotSupportedError,
    Readout,
    VendorDevice,
    complete_readout,
)
from gpuproof.devices.sysfs import Card, Sensors, SysfsFiles, collect, pcie_generation
from gpuproof.records.metrics import names, throttle_time_name
from gpuproof.records.readings import Lane

_Sources = dict[str, Callable[[], float]]
_NOT_IN_SYSFS = "the amdgpu driver has no file for it"
_ASLEEP = "the card is asleep; reading it would wake it"
_NEAR_CRITICAL_C = 5.0
_PWM_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class _Firmware:
    """What the firmware said in one reading, and why it did not."""

    table: dict[str, int]
    """The file's own table; empty if it cannot be read."""
    refusal: str
    cycles: dict[str, int]
    """The counts for `ResidencyClock`: the file's, else the library's."""
    cycles_refusal: str


class AmdCard:
    """One card's files, the metrics that are in them, and the library for the others."""

    def __init__(self, card: Card, node: kfd.KfdNode | None) -> None:
        self.node = node
        self.library: LibraryCard = AbsentCard()
        self.pci_bus_id = card.pci_bus_id
        self.files = SysfsFiles(card.device_dir)
        self._card = card
        self._sensors = Sensors(self.files)
        self._temperatures = self._sensors.by_label("temp")
        self._clocks = self._sensors.by_label("freq")
        self._residency = ResidencyClock()

    def read(self, lane: Lane) -> Readout:
        """Read one lane; a card that is asleep is left asleep."""
        if self.is_asleep():
            return complete_readout({}, unavailable={}, expected=names(lane=lane), otherwise=_ASLEEP)
        firmware = self._firmware()
        if lane == "slow":
            return self._readout(self._slow() | self._residencies(firmware), names(lane="slow"))
        reasons, why = self._throttle_reasons(firmware)
        return self._readout(
            self._fast() | {"energy_j": partial(_energy_j, firmware)},
            names(lane="fast"),
            throttle_reasons=reasons,
            why={"throttle_reasons": why},
        )

    def counters(self) -> Readout:
        """Read every running total."""
        if self.is_asleep():
            return complete_readout({}, unavailable={}, expected=names(kind="counter"), otherwise=_ASLEEP)
        firmware = self._firmware()
        sources = self._slow() | self._residencies(firmware)
        sources["energy_j"] = partial(_energy_j, firmware)
        expected = names(kind="counter")
        return self._readout({name: ask for name, ask in sources.items() if name in expected}, expected)

    def describe(self, version: dict[str, str]) -> VendorDevice:
        """Name the card and its static facts; `version` is the driver's."""
        values, missing = collect(self._static())
        facts, facts_missing = ({}, {}) if self.is_asleep() else self.library.facts()
        name, uuid = facts.pop("name", None), facts.pop("uuid", None)
        if not self.is_asleep():
            values, missing = filled(values, missing, library=self.library)
        unique = self._text_or_none("unique_id")
        if unique:
            uuid = f"GPU-{unique.removeprefix('0x')}"
        no_uuid = both("this card has no unique_id", facts_missing.get("uuid", ""))
        return VendorDevice(
            vendor_index=self._card.vendor_index,
            uuid=uuid,
            pci_bus_id=self._card.pci_bus_id,
            name=self._text_or_none("product_name")
            or name
            or f"AMD GPU {self._text_or_none('device') or 'unknown'}",
            static=facts | values | version | self._texts(),
            unavailable=missing | ({} if uuid else {"uuid": no_uuid}),
        )

    def library_processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes as the library knows them.

        Raises:
            NotSupportedError: there is no library, or it does not tell.
        """
        try:
            return self.library.processes()
        except DeviceError as error:
            why = both("this card is not among ROCm's (no KFD node)", error.cause)
            raise NotSupportedError(why) from error

    def _readout(
        self,
        sources: _Sources,
        expected: tuple[str, ...],
        *,
        throttle_reasons: tuple[str, ...] | None = None,
        why: dict[str, str] | None = None,
    ) -> Readout:
        values, missing = collect(sources)
        absent = {name: missing.get(name, _NOT_IN_SYSFS) for name in expected if name not in values}
        values, absent = filled(values, absent, library=self.library)
        return complete_readout(
            values,
            unavailable=absent | (why or {}),
            expected=expected,
            otherwise=_NOT_IN_SYSFS,
            throttle_reasons=throttle_reasons,
        )

    def is_asleep(self) -> bool:
        """Say whether reading the card would wake it.

        Raises:
            DeviceLostError: the card is gone.
        """
        self.files.require_card()
        return self._text_or_none("power/runtime_status") == "suspended"

    def _fast(self) -> _Sources:
        files = self.files
        return {
            "util_gpu_percent": partial(files.number, "gpu_busy_percent"),
            "util_mem_ctrl_percent": partial(files.number, "mem_busy_percent"),
            "mem_used_bytes": partial(files.number, "mem_info_vram_used"),
            "mem_host_mapped_bytes": partial(files.number, "mem_info_gtt_used"),
            "power_w": partial(self._first, ("power1_average", "power1_input"), 1e-6),
            "power_instant_w": partial(self._first, ("power1_input",), 1e-6),
            "temp_gpu_c": partial(self._temperature, ("edge", "junction"), "_input"),
            "temp_hotspot_c": partial(self._temperature, ("junction",), "_input"),
            "temp_mem_c": partial(self._temperature, ("mem",), "_input"),
            "clock_sm_mhz": partial(self._clock, "sclk"),
            "clock_mem_mhz": partial(self._clock, "mclk"),
        }

    def _slow(self) -> _Sources:
        files = self.files
        return {
            "power_limit_w": partial(self._first, ("power1_cap",), 1e-6),
            "fan_percent": partial(self._first, ("pwm1",), 100 / _PWM_MAX),
            "fan_rpm": partial(self._first, ("fan1_input",), 1.0),
            "pcie_gen": partial(pcie_generation, files, "current_link_speed"),
            "pcie_width": partial(files.number, "current_link_width"),
            "pcie_replay_count": partial(files.number, "pcie_replay_count"),
            "ecc_corrected_count": partial(self._errors, "ce"),
            "ecc_uncorrected_count": partial(self._errors, "ue"),  # codespell:ignore ue
        }

    def _static(self) -> _Sources:
        files = self.files
        return {
            "mem_total_bytes": partial(files.number, "mem_info_vram_total"),
            "power_limit_w": partial(self._first, ("power1_cap",), 1e-6),
            "power_limit_default_w": partial(self._first, ("power1_cap_default",), 1e-6),
            "power_limit_min_w": partial(self._first, ("power1_cap_min",), 1e-6),
            "power_limit_max_w": partial(self._first, ("power1_cap_max",), 1e-6),
            "temp_slowdown_c": partial(self._temperature, ("edge", "junction"), "_crit"),
            "temp_shutdown_c": partial(self._temperature, ("edge", "junction"), "_emergency"),
            "temp_mem_max_c": partial(self._temperature, ("mem",), "_crit"),
            "clock_sm_max_mhz": partial(self._dpm, "pp_dpm_sclk", max),
            "clock_sm_min_mhz": partial(self._dpm, "pp_dpm_sclk", min),
            "clock_mem_max_mhz": partial(self._dpm, "pp_dpm_mclk", max),
            "pcie_gen_max": partial(pcie_generation, files, "max_link_speed"),
            "pcie_width_max": partial(files.number, "max_link_width"),
        }

    def _texts(self) -> dict[str, Any]:
        """Read the facts that are words, where the card has them."""
        files = {
            "vbios_version": "vbios_version",
            "performance_level": "power_dpm_force_performance_level",
            "compute_partition": "current_compute_partition",
            "memory_partition": "current_memory_partition",
            "numa_node": "numa_node",
        }
        found: dict[str, Any] = {name: self._text_or_none(file) for name, file in files.items()}
        found["kfd_node"] = self.node.number if self.node else None
        return {name: value for name, value in found.items() if value is not None}

    def _text_or_none(self, name: str) -> str | None:
        try:
            return self.files.text(name) or None
        except NotSupportedError:
            return None

    def _first(self, choices: tuple[str, ...], scale: float) -> float:
        paths = [self._sensors.path(name) for name in choices]
        return self.files.number(next(filter(self.files.has, paths), paths[0]), scale)

    def _temperature(self, labels: tuple[str, ...], suffix: str) -> float:
        for label in labels:
            if label in self._temperatures:
                return self.files.number(self._temperatures[label] + suffix, 1e-3)
        raise NotSupportedError(f"this card has no {' or '.join(labels)} temperature")

    def _clock(self, label: str) -> float:
        if label in self._clocks:
            return self.files.number(self._clocks[label] + "_input", 1e-6)
        return self._dpm(f"pp_dpm_{label}", max, active=True)

    def _dpm(self, name: str, pick: Callable[[list[int]], int], *, active: bool = False) -> float:
        """Read a table of clocks such as `1: 2500Mhz *`, whose star marks the one in use."""
        star = r" \*" if active else ""
        steps = [
            int(mhz) for mhz in re.findall(rf"^\w+: (\d+)Mhz{star}", self.files.text(name), re.MULTILINE)
        ]
        if not steps:
            raise DeviceError(f"{name} names no clock")
        return pick(steps)

    def _errors(self, kind: str) -> float:
        text = self.files.text("ras/umc_err_count")
        count = re.search(rf"^{kind}: (\d+)$", text, re.MULTILINE)
        if count is None:
            raise DeviceError(f"ras/umc_err_count holds {text!r}")
        return int(count.group(1))

    def _firmware(self) -> _Firmware:
        """Read gpu_metrics once a reading; of a table that is not known here, the library's cycle counts."""
        try:
            table = gpu_metrics.parse(self.files.read("gpu_metrics"))
        except DeviceLostError:
            raise
        except DeviceError as error:
            firmware = self._firmware_of_library(error.cause)
        else:
            firmware = _Firmware(table=table, refusal="", cycles=table, cycles_refusal="")
        self._residency.advance(firmware.cycles)
        return firmware

    def _firmware_of_library(self, refusal: str) -> _Firmware:
        try:
            cycles, why = self.library.throttle_table(), ""
        except DeviceError as error:
            cycles, why = {}, error.cause
        return _Firmware(table={}, refusal=refusal, cycles=cycles, cycles_refusal=both(refusal, why))

    def _residencies(self, firmware: _Firmware) -> _Sources:
        return {
            throttle_time_name(reason): partial(
                self._residency.seconds, field, firmware.cycles, firmware.cycles_refusal
            )
            for field, reason in gpu_metrics.RESIDENCIES.items()
        }

    def _throttle_reasons(self, firmware: _Firmware) -> tuple[tuple[str, ...] | None, str]:
        if not firmware.cycles:
            return None, firmware.cycles_refusal
        if "indep_throttle_status" in firmware.table:
            status = self._without_stuck_bit(firmware.table["indep_throttle_status"])
            return gpu_metrics.throttle_reasons(status), ""
        return self._residency.reasons(firmware.cycles)

    def _without_stuck_bit(self, status: int) -> int:
        values, _ = collect(
            {
                "now": partial(self._temperature, ("junction",), "_input"),
                "critical": partial(self._temperature, ("junction",), "_crit"),
            }
        )
        near = len(values) == 2 and values["critical"] - values["now"] <= _NEAR_CRITICAL_C
        return status if near else status & ~(1 << gpu_metrics.HOTSPOT_BIT)


def _energy_j(firmware: _Firmware) -> float:
    table = firmware.table
    if not table:
        raise NotSupportedError(firmware.refusal)
    if table["content"] < 4:
        raise NotSupportedError(f"gpu_metrics 1.{table['content']} does not document its energy unit")
    if "energy_accumulator" not in table:
        raise NotSupportedError("the firmware leaves the energy counter empty")
    return table["energy_accumulator"] * gpu_metrics.ENERGY_UNIT_J
