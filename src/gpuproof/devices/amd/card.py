"""One AMD card: AMD's library if it lists the card, and the driver's files for everything else.

In: the card's directory under /sys and its KFD node. Out: readouts in which every metric has either a number
or a reason; if neither source provides the metric, both reasons are given. A sleeping card is not woken.
Sensors are found by label, since their numbers differ between cards. If two files may contain a metric, the
first that exists is read, in the order given here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

from gpuproof.devices.amd import gpu_metrics
from gpuproof.devices.amd.kfd import KfdNode
from gpuproof.devices.amd.library import SmiLibrary
from gpuproof.devices.amd.library_metrics import FACTS, OFFERED, LibraryCard
from gpuproof.devices.base import (
    THROTTLE_REASONS,
    DeviceError,
    DeviceLostError,
    DeviceProcess,
    Gathered,
    NotSupportedError,
    VendorDevice,
)
from gpuproof.devices.sources import collect
from gpuproof.devices.sysfs import Card, Sensors, SysfsFiles, pcie_generation
from gpuproof.records.metrics import names, throttle_time_name
from gpuproof.records.readings import UNSUPPORTED

NOT_IN_SYSFS = "not supported by the amdgpu driver: it has no file for it"
_ASLEEP = "the card is asleep; reading it would wake it"
_NEAR_CRITICAL_C = 5.0
_WORDS = ("vbios_version", "performance_level", "compute_partition", "memory_partition", "numa_node")
_IDENTITY = ("name", "uuid", "kfd_node")
"""Facts for which the files take precedence: a card's identity must not depend on whether the library is
installed."""
_THROTTLE_TIMES = {throttle_time_name(reason): field for field, reason in gpu_metrics.RESIDENCIES.items()}
_Table = Callable[[], dict[str, int]]
_PWM_MAX = 255


class AmdCard:
    """One card's two sources of metrics."""

    def __init__(self, card: Card, node: KfdNode | None) -> None:
        self.node = node
        self.pci_bus_id = card.pci_bus_id
        self.files = CardFiles(card, node)
        self.library: LibraryCard | None = None
        self._no_library = ""
        """Why the library is not queried; empty if it was not meant to be queried."""
        self._vendor_index = card.vendor_index
        self._residency = gpu_metrics.ResidencyClock()

    def attach(self, library: SmiLibrary | None, *, otherwise: str) -> None:
        """Find the card in the library; `otherwise` is the reason why the library is not open."""
        if library is None:
            self._no_library = otherwise
        elif self.pci_bus_id in library.handles:
            self.library = LibraryCard(library, library.handles[self.pci_bus_id])
        else:
            self._no_library = "AMD's library does not list this card"

    def read(self, wanted: Collection[str]) -> Gathered:
        """Read the requested metrics, without waking a sleeping card.

        Raises:
            DeviceLostError: the card is gone.
        """
        if self.files.is_asleep():
            return {}, dict.fromkeys(wanted, _ASLEEP)
        return self._gather(wanted, self._firmware_sources())

    def describe(self, version: Mapping[str, str]) -> VendorDevice:
        """Identify the card and read its static facts; `version` is the driver version, read from its files.

        Raises:
            DeviceLostError: the card is gone.
        """
        listed = self.files.sources.keys() | OFFERED
        metrics = [name for name in (*names(kind="static"), "power_limit_w") if name in listed]
        use_library = not self.files.is_asleep()
        facts, missing = self._gather([*metrics, *FACTS, *_WORDS, "device_id"], use_library=use_library)
        facts |= collect({fact: self.files.sources[fact] for fact in _IDENTITY})[0]
        name, uuid, device_id = (facts.pop(fact, None) for fact in ("name", "uuid", "device_id"))
        return VendorDevice(
            vendor_index=self._vendor_index,
            uuid=uuid,
            pci_bus_id=self.pci_bus_id,
            name=name or f"AMD GPU {device_id or 'unknown'}",
            static={**version, **facts},
            unavailable={fact: missing[fact] for fact in (*metrics, "uuid") if fact in missing},
        )

    def library_processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes known to the library, for a card that ROCm's kernel driver does not list.

        Raises:
            NotSupportedError: the library is missing, or never lists them.
            DeviceError: the library does not list them at the moment.
        """
        try:
            if self.library is None:
                raise NotSupportedError(self._no_library)
            return self.library.processes()
        except DeviceError as error:
            why = self._both("this card is not listed by ROCm (no KFD node)", error.cause)
            raise type(error)(why) from error

    def _gather(
        self,
        wanted: Collection[str],
        more: Mapping[str, Callable[[], Any]] | None = None,
        *,
        use_library: bool = True,
    ) -> Gathered:
        """Query the library for everything; for missing values, read the files and query `more`."""
        values: dict[str, Any] = {}
        refused = {name: self._no_library for name in wanted if name in OFFERED}
        if use_library and self.library is not None:
            values, refused = self.library.give(wanted)
        sources = {**self.files.sources, **(more or {})}
        of_files, missing = collect(
            {name: sources[name] for name in wanted if name in sources and name not in values}
        )
        values |= of_files
        reasons = {name: missing.get(name, NOT_IN_SYSFS) for name in wanted if name not in values}
        return values, {name: self._both(why, refused.get(name, "")) for name, why in reasons.items()}

    def _both(self, of_files: str, of_library: str) -> str:
        """Join two reasons, one that may change first; the library has none if it was not queried."""
        if not of_library:
            return of_files
        reasons = (of_files, f"amdsmi: {of_library}")
        may_change = self.library is not None and not of_library.startswith(UNSUPPORTED)
        return "; ".join(reversed(reasons) if may_change else reasons)

    def _firmware_sources(self) -> dict[str, Callable[[], Any]]:
        """Return the queries that the firmware answers; the firmware is queried at most once per reading."""
        firmware = _once(self.files.firmware)
        table = _once(lambda: self._throttle_table(firmware))
        sources: dict[str, Callable[[], Any]] = {
            name: partial(self._throttle_seconds, field, table) for name, field in _THROTTLE_TIMES.items()
        }
        sources["energy_j"] = lambda: gpu_metrics.energy_j(firmware())
        sources[THROTTLE_REASONS] = lambda: self._throttle_reasons(table())
        return sources

    def _throttle_table(self, firmware: _Table) -> dict[str, int]:
        """Read throttling as reported by the firmware: cycle counts from the library, else the table file."""
        refused = self._no_library
        try:
            if self.library is not None:
                return self._residency.advance(self.library.cycle_counts())
        except DeviceError as error:
            refused = error.cause
        try:
            return self._residency.advance(firmware())
        except DeviceLostError:
            raise
        except DeviceError as error:
            raise DeviceError(self._both(error.cause, refused)) from error

    def _throttle_seconds(self, field: str, table: _Table) -> float:
        return self._residency.seconds(field, table())

    def _throttle_reasons(self, table: dict[str, int]) -> tuple[str, ...]:
        status = table.get(gpu_metrics.STATUS)
        if status is None:
            return self._residency.reasons(table)
        if status & gpu_metrics.HOTSPOT_BIT and not self._is_near_critical():
            status &= ~gpu_metrics.HOTSPOT_BIT
        return gpu_metrics.throttle_reasons(status)

    def _is_near_critical(self) -> bool:
        degrees, _ = self._gather(("temp_hotspot_critical_c", "temp_hotspot_c"))
        return len(degrees) == 2 and (
            degrees["temp_hotspot_critical_c"] - degrees["temp_hotspot_c"] <= _NEAR_CRITICAL_C
        )


def _once(ask: _Table) -> _Table:
    """Cache the outcome of the first call, whether it is a table or an error."""

    @cache
    def outcome() -> dict[str, int] | DeviceError:
        try:
            return ask()
        except DeviceError as error:
            return error

    def answer() -> dict[str, int]:
        if isinstance(table := outcome(), DeviceError):
            raise table
        return table

    return answer


class CardFiles:
    """The files of one card; metrics have the same names as in the catalogue."""

    def __init__(self, card: Card, node: KfdNode | None) -> None:
        self._files = SysfsFiles(card.device_dir)
        self._node = node
        self._sensors = Sensors(self._files)
        self._temperatures = self._sensors.by_label("temp")
        self._clocks = self._sensors.by_label("freq")
        self.sources: dict[str, Callable[[], Any]] = self._metrics() | self._limits() | self._words()
        """Metric or fact → how to read it; reading raises a `DeviceError` with the reason if there is no
        value."""

    def close(self) -> None:
        """Close every file."""
        self._files.close()

    def is_asleep(self) -> bool:
        """Return whether reading the card would wake it.

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
            DeviceError: the card has no table, or one with an unknown version.
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
            "power_limit_w": partial(self._power_cap, "power1_cap"),
            "power_limit_default_w": partial(self._power_cap, "power1_cap_default"),
            "power_limit_min_w": partial(self._sensor, "power1_cap_min", scale=1e-6),
            "power_limit_max_w": partial(self._power_cap, "power1_cap_max"),
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
            raise NotSupportedError("this card is not listed by ROCm (no KFD node)")
        return self._node.number

    def _sensor(self, *choices: str, scale: float = 1.0) -> float:
        paths = [self._sensors.path(name) for name in choices]
        return self._files.number(next(filter(self._files.has, paths), paths[0]), scale)

    def _power_cap(self, name: str) -> float:
        watts = self._sensor(name, scale=1e-6)
        if watts == 0:
            raise NotSupportedError(f"{name} is 0, so there is no limit")
        return watts

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
        """Read a table of clocks, e.g. `1: 2500Mhz *`; the star marks the clock in use."""
        star = r" \*" if active else ""
        text = self._files.text(name)
        steps = [int(mhz) for mhz in re.findall(rf"^\w+: (\d+)Mhz{star}", text, re.MULTILINE)]
        if not steps:
            raise DeviceError(f"{name} lists no clock")
        return pick(steps)

    def _errors(self, kind: str) -> float:
        text = self._files.text("ras/umc_err_count")
        count = re.search(rf"^{kind}: (\d+)$", text, re.MULTILINE)
        if count is None:
            raise DeviceError(f"ras/umc_err_count contains {text!r}")
        return int(count.group(1))
