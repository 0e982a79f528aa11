"""One AMD card: AMD's library where it lists the card, and the driver's files for what it does not give.

Out come readouts in which every metric is a number or has a reason; one that neither source gives names both
reasons. A card that is asleep is left asleep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpuproof.devices.amd import gpu_metrics, kfd
from gpuproof.devices.amd.files import CardFiles
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
from gpuproof.devices.sysfs import Card
from gpuproof.records.metrics import names, throttle_time_name

NOT_IN_SYSFS = "the amdgpu driver has no file for it"
_ASLEEP = "the card is asleep; reading it would wake it"
_NEAR_CRITICAL_C = 5.0
_WORDS = ("vbios_version", "performance_level", "compute_partition", "memory_partition", "numa_node")
_IDENTITY = ("name", "uuid", "kfd_node")
"""Facts for which the files come first: who a card is must not depend on whether the library is there."""
_THROTTLE_TIMES = {throttle_time_name(reason): field for field, reason in gpu_metrics.RESIDENCIES.items()}
_Table = Callable[[], dict[str, int]]


class AmdCard:
    """One card's two sources of metrics."""

    def __init__(self, card: Card, node: kfd.KfdNode | None) -> None:
        self.node = node
        self.pci_bus_id = card.pci_bus_id
        self.files = CardFiles(card, node)
        self.library: LibraryCard | None = None
        self._no_library = ""
        """Why the library is not asked; empty where it was never to be."""
        self._vendor_index = card.vendor_index
        self._residency = gpu_metrics.ResidencyClock()

    def attach(self, library: SmiLibrary | None, *, otherwise: str) -> None:
        """Take the card's place in the library; `otherwise` says why it is not open."""
        if library is None:
            self._no_library = otherwise
        elif self.pci_bus_id in library.handles:
            self.library = LibraryCard(library, library.handles[self.pci_bus_id])
        else:
            self._no_library = "AMD's library does not list this card"

    def read(self, wanted: Collection[str]) -> Gathered:
        """Read the wanted metrics; a card that is asleep is left asleep.

        Raises:
            DeviceLostError: the card is gone.
        """
        if self.files.is_asleep():
            return {}, dict.fromkeys(wanted, _ASLEEP)
        return self._gather(wanted, self._firmware_sources())

    def describe(self, version: Mapping[str, str]) -> VendorDevice:
        """Name the card and its static facts; `version` is the driver's, as its files give it.

        Raises:
            DeviceLostError: the card is gone.
        """
        metrics = [name for name in (*names(kind="static"), "power_limit_w") if self._is_listed(name)]
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
        """List the processes as the library knows them, for a card that ROCm's kernel side does not list.

        Raises:
            NotSupportedError: there is no library, or it does not list them.
        """
        try:
            if self.library is None:
                raise NotSupportedError(self._no_library)
            return self.library.processes()
        except DeviceError as error:
            why = _both("this card is not among ROCm's (no KFD node)", error.cause)
            raise NotSupportedError(why) from error

    def _is_listed(self, metric: str) -> bool:
        return metric in self.files.sources or metric in OFFERED

    def _gather(
        self,
        wanted: Collection[str],
        more: Mapping[str, Callable[[], Any]] | None = None,
        *,
        use_library: bool = True,
    ) -> Gathered:
        """Ask the library for everything, then the files and `more` for what it did not give."""
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
        return values, {name: _both(why, refused.get(name, "")) for name, why in reasons.items()}

    def _firmware_sources(self) -> dict[str, Callable[[], Any]]:
        """Return the questions that the firmware answers; it is asked once a reading, where it is needed."""
        firmware = _once(self.files.firmware)
        table = _once(lambda: self._throttle_table(firmware))
        sources: dict[str, Callable[[], Any]] = {
            name: functools.partial(self._throttle_seconds, field, table)
            for name, field in _THROTTLE_TIMES.items()
        }
        sources["energy_j"] = lambda: gpu_metrics.energy_j(firmware())
        sources[THROTTLE_REASONS] = lambda: self._throttle_reasons(table())
        return sources

    def _throttle_table(self, firmware: _Table) -> dict[str, int]:
        """Read what the firmware reports of throttling: the library's cycle counts, else the file's table."""
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
            raise DeviceError(_both(error.cause, refused)) from error

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
    """Ask at the first call only, whether the answer is a table or a refusal."""

    @functools.cache
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


def _both(of_files: str, of_library: str) -> str:
    """Put the files' reason and the library's together; the library has none where it was not asked."""
    return f"{of_files}; amdsmi: {of_library}" if of_library else of_files
