"""One card as AMD's library sees it: what the driver's files left open, filled in.

In come the names of the missing metrics, out come their values, and a reason for each that the library
refuses too. `AbsentCard` stands where there is no library, or where it does not list the card.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Protocol

from gpuproof.devices.amd.fields import NOTHING, SOURCES, Answer, Source, number, throttle_table
from gpuproof.devices.amd.library import SmiLibrary
from gpuproof.devices.base import DeviceError, DeviceProcess, NotSupportedError

_OFFERED = frozenset(metric for source in SOURCES for metric in source.metrics)

Facts = tuple[dict[str, Any], dict[str, str]]
"""Fact → what it is, and fact → why it is not known."""

_FACTS: dict[str, tuple[str, str | None]] = {
    "name": ("amdsmi_get_gpu_asic_info", "market_name"),
    "compute_units": ("amdsmi_get_gpu_asic_info", "num_compute_units"),
    "gfx_target": ("amdsmi_get_gpu_asic_info", "target_graphics_version"),
    "oam_id": ("amdsmi_get_gpu_asic_info", "oam_id"),
    "uuid": ("amdsmi_get_gpu_enumeration_info", "hip_uuid"),
    "hip_id": ("amdsmi_get_gpu_enumeration_info", "hip_id"),
    "kfd_node": ("amdsmi_get_gpu_kfd_info", "node_id"),
    "driver_version": ("amdsmi_get_gpu_driver_info", "driver_version"),
    "smi_uuid": ("amdsmi_get_gpu_device_uuid", None),
}
"""Fact → the call that tells it, and where in its answer. `uuid` is ROCm's, `GPU-` and 16 digits, which
ROCR_VISIBLE_DEVICES takes; `smi_uuid` is the library's own."""


class LibraryCard(Protocol):
    """What can be asked beyond the driver's files."""

    def fill(self, missing: Collection[str]) -> Answer:
        """Give the missing metrics that the library knows of, each as a number or a reason."""

    def throttle_table(self) -> dict[str, int]:
        """Give the firmware's cycle counts.

        Raises:
            DeviceError: the library does not tell them.
        """

    def facts(self) -> Facts:
        """Give the card's identity."""

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes on the card.

        Raises:
            DeviceError: the library does not tell.
        """


class AbsentCard:
    """No library for this card, and why; without a reason it was never to be asked."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason

    def fill(self, missing: Collection[str]) -> Answer:
        """Answer every metric with the reason."""
        return dict.fromkeys(_OFFERED.intersection(missing), self._reason) if self._reason else {}

    def throttle_table(self) -> dict[str, int]:
        """Refuse.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(self._reason)

    def facts(self) -> Facts:
        """Answer every fact with the reason."""
        return {}, dict.fromkeys(_FACTS, self._reason) if self._reason else {}

    def processes(self) -> tuple[DeviceProcess, ...]:
        """Refuse.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(self._reason)


class SmiCard:
    """A card that the library lists. What it never gives is asked once."""

    def __init__(self, library: SmiLibrary, handle: Any) -> None:
        self._library = library
        self._amdsmi = library.amdsmi
        self._handle = handle
        self._silent: dict[Source, str] = {}

    def fill(self, missing: Collection[str]) -> Answer:
        """Ask each source that has a missing metric, until one gives it."""
        found: Answer = {}
        for source in SOURCES:
            open_metrics = [
                metric
                for metric in source.metrics
                if metric in missing and isinstance(found.get(metric, ""), str)
            ]
            if open_metrics:
                answer = self._answer(source)
                found |= {metric: answer[metric] for metric in open_metrics}
        return found

    def throttle_table(self) -> dict[str, int]:
        """Read the cycle counts.

        Raises:
            DeviceError: the library does not tell them.
        """
        return self._library.ask(partial(throttle_table, self._amdsmi, self._handle))

    def facts(self) -> Facts:
        """Read who the card is, each call once."""
        answers = {function: self._called(function) for function, _ in _FACTS.values()}
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for fact, (function, key) in _FACTS.items():
            answer = answers[function]
            if isinstance(answer, DeviceError):
                missing[fact] = answer.cause
                continue
            value = answer if key is None else answer.get(key, "N/A")
            if value in ("N/A", ""):
                missing[fact] = NOTHING
            else:
                values[fact] = value
        return values, missing

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes; the library writes 0 bytes where it may not read them, so 0 is unknown.

        Raises:
            DeviceError: the library does not tell.
        """
        listed = self._library.ask(lambda: self._amdsmi.amdsmi_get_gpu_process_list(self._handle))
        return tuple(
            DeviceProcess(
                pid=process["pid"], mem_used_bytes=_vram_or_none(process["memory_usage"]), kind="compute"
            )
            for process in listed
            if process["pid"] != os.getpid()
        )

    def _answer(self, source: Source) -> Answer:
        if source in self._silent:
            return dict.fromkeys(source.metrics, self._silent[source])
        try:
            return self._library.ask(partial(source.ask, self._amdsmi, self._handle))
        except DeviceError as error:
            if isinstance(error, NotSupportedError):
                self._silent[source] = error.cause
            return dict.fromkeys(source.metrics, error.cause)

    def _called(self, function: str) -> Any:
        try:
            return self._library.ask(lambda: getattr(self._amdsmi, function)(self._handle))
        except DeviceError as error:
            return error


def filled(
    values: dict[str, float], missing: Mapping[str, str], *, library: LibraryCard
) -> tuple[dict[str, float], dict[str, str]]:
    """Add what the library gives to what the files gave; what neither gives keeps both reasons."""
    values, reasons = dict(values), dict(missing)
    for metric, answer in library.fill(reasons).items():
        if isinstance(answer, str):
            reasons[metric] = both(reasons[metric], answer)
        else:
            values[metric] = answer
            del reasons[metric]
    return values, reasons


def both(of_files: str, of_library: str) -> str:
    """Put the files' reason and the library's together; the library has none where it was not asked."""
    return f"{of_files}; amdsmi: {of_library}" if of_library else of_files


def _vram_or_none(usage: dict[str, Any]) -> int | None:
    try:
        return int(number(usage, "vram_mem")) or None
    except DeviceError:
        return None
