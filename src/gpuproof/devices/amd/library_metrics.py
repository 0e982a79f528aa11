"""One card as seen by AMD's library: which call is used for each metric and fact, and why.

In: the requested names. Out: for each, its value in our unit, or the reason why there is none. The binding's
`N/A`, and the values with all bits set that the library passes through, are never treated as numbers.

- `mem_*_bytes`: from the calls that return bytes or, if those fail, from `amdsmi_get_gpu_vram_usage`, in MiB.
- `energy_j`: the counter times the resolution reported by the library. Users report that counters on MI100
  and MI200 do not advance; a counter at 0 is rejected.
- throttling: from the cycle counts in the library's copy of the firmware table. Its
  `amdsmi_get_violation_status` computes the `active_*` flags from two such tables and sleeps 100 ms between
  them on every call; for eight GPUs, that is longer than a tick. `ResidencyClock` computes the same
  difference from the tables of two ticks. Cards without such counts have status bits, which the binding (7.0)
  reduces to a boolean, so the file's bits are read instead.
- `ecc_*_count`: for device memory or, if errors are not counted for that block, for all blocks of the chip.
- `nvlink_*`: values for xGMI, which no file provides. AMD counts in KB, taken as 1,024 bytes here.
- `remapped_rows_*`: AMD retires pages, while NVIDIA remaps rows; the kernel shows retired pages only to root.
- not queried: `amdsmi_get_gpu_pci_throughput`, which blocks for a second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpuproof.devices.amd.gpu_metrics import CYCLE_COUNTS
from gpuproof.devices.amd.library import NOT_SUPPORTED, SmiLibrary
from gpuproof.devices.base import DeviceError, DeviceProcess, NotSupportedError
from gpuproof.devices.sources import Answer, Source, SourceReader
from gpuproof.devices.sysfs import pcie_generation_at

_ALL_ONES = (2**32 - 1, 2**64 - 1)
_ALL_ONES_16 = (2**16 - 1, *_ALL_ONES)
_NOTHING = "the library answers N/A"
_NO_LINK = "this card has no xGMI link"
_PAGE_RETIRED, _PAGE_PENDING, _PAGE_FAILED = 0, 1, 2
_XGMI_LINK = 2
_FAN_MAX = 255


class LibraryCard(SourceReader):
    """A card listed by the library."""

    def __init__(self, library: SmiLibrary, handle: Any) -> None:
        super().__init__(SOURCES, lambda source: library.ask(partial(source.ask, library.amdsmi, handle)))
        self._library = library
        self._amdsmi = library.amdsmi
        self._handle = handle

    def cycle_counts(self) -> dict[str, int]:
        """Read the firmware's cycle counts, named as in `gpu_metrics.parse`.

        Raises:
            DeviceError: the library does not provide all cycle counts.
        """
        answer = self._library.ask(partial(self._amdsmi.amdsmi_get_gpu_metrics_info, self._handle))
        counts = {name: _number(answer, name) for name in CYCLE_COUNTS}
        for count in counts.values():
            if isinstance(count, DeviceError):
                raise count
        return {name: int(count) for name, count in counts.items() if not isinstance(count, DeviceError)}

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes; the library reports 0 bytes if access is denied, so 0 means unknown.

        Raises:
            DeviceError: the library does not list them.
        """
        listed = self._library.ask(lambda: self._amdsmi.amdsmi_get_gpu_process_list(self._handle))
        return tuple(
            DeviceProcess(
                pid=process["pid"], mem_used_bytes=_vram_or_none(process["memory_usage"]), kind="compute"
            )
            for process in listed
            if process["pid"] != os.getpid()
        )


def _vram_or_none(usage: dict[str, Any]) -> int | None:
    used = _number(usage, "vram_mem")
    return None if isinstance(used, DeviceError) else int(used) or None


def _number(
    answer: Mapping[str, Any], key: str, *, scale: float = 1, empty: tuple[int, ...] = _ALL_ONES
) -> float | DeviceError:
    """Extract a number from one of the binding's dicts; raise an error if it was left empty."""
    if key not in answer:
        return NotSupportedError(f"this amdsmi does not report {key}")
    value = answer[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value in empty:
        return DeviceError(_NOTHING)
    return value * scale


def _numbers(function: str, keys: Mapping[str, str], **how: Any) -> Source:
    """Create a source from a call that returns a dict: metric → key of the number in it."""

    def ask(amdsmi: Any, handle: Any) -> Answer:
        answer = getattr(amdsmi, function)(handle)
        return {metric: _number(answer, key, **how) for metric, key in keys.items()}

    return Source(metrics=tuple(keys), ask=ask)


def _one(metric: str, function: str, *arguments: int | str, scale: float = 1) -> Source:
    """Create a source from a function that returns a number; `Enum.NAME` refers to the binding."""

    def ask(amdsmi: Any, handle: Any) -> Answer:
        answer = getattr(amdsmi, function)(handle, *(_argument(amdsmi, argument) for argument in arguments))
        return {metric: _number({metric: answer}, metric, scale=scale)}

    return Source(metrics=(metric,), ask=ask)


def _argument(amdsmi: Any, argument: int | str) -> Any:
    if isinstance(argument, int):
        return argument
    enum, _, name = argument.partition(".")
    return getattr(getattr(amdsmi, enum), name)


def _power(amdsmi: Any, handle: Any) -> Answer:
    """Read the power: MI300 and later report only the current value, earlier cards only the average."""
    answer = amdsmi.amdsmi_get_power_info(handle)
    instant = _number(answer, "current_socket_power", empty=_ALL_ONES_16)
    average = _number(answer, "average_socket_power", empty=_ALL_ONES_16)
    return {"power_w": instant if isinstance(average, DeviceError) else average, "power_instant_w": instant}


def _temperature(metric: str, sensors: tuple[str, ...], limit: str = "CURRENT") -> Source:
    def ask(amdsmi: Any, handle: Any) -> Answer:
        kind = getattr(amdsmi.AmdSmiTemperatureMetric, limit)
        refusal: Any = None
        for sensor in sensors:
            try:
                degrees = amdsmi.amdsmi_get_temp_metric(
                    handle, getattr(amdsmi.AmdSmiTemperatureType, sensor), kind
                )
            except amdsmi.AmdSmiLibraryException as error:
                refusal = error
                continue
            return {metric: _number({sensor: degrees}, sensor, empty=_ALL_ONES_16)}
        raise refusal

    return Source(metrics=(metric,), ask=ask)


def _clock(metric: str, clock: str, key: str) -> Source:
    def ask(amdsmi: Any, handle: Any) -> Answer:
        answer = amdsmi.amdsmi_get_clock_info(handle, getattr(amdsmi.AmdSmiClkType, clock))
        return {metric: _number(answer, key, empty=_ALL_ONES_16)}

    return Source(metrics=(metric,), ask=ask)


def _energy(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_energy_count(handle)
    resolution_j = _number(answer, "counter_resolution", scale=1e-6)
    count = _number(answer, "energy_accumulator")
    if isinstance(count, DeviceError) or isinstance(resolution_j, DeviceError):
        return {"energy_j": count if isinstance(count, DeviceError) else resolution_j}
    if count == 0 or resolution_j <= 0:
        return {"energy_j": DeviceError("the library's energy counter is at 0")}
    return {"energy_j": count * resolution_j}


def _pcie(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_pcie_info(handle)
    now, most = answer["pcie_metric"], answer["pcie_static"]
    return {
        "pcie_gen": _generation(now, "pcie_speed"),
        "pcie_width": _number(now, "pcie_width", empty=(0, *_ALL_ONES_16)),
        "pcie_replay_count": _number(now, "pcie_replay_count"),
        "pcie_gen_max": _generation(most, "max_pcie_speed"),
        "pcie_width_max": _number(most, "max_pcie_width", empty=(0, *_ALL_ONES_16)),
    }


def _generation(answer: Mapping[str, Any], key: str) -> float | DeviceError:
    megatransfers_per_s = _number(answer, key)
    if isinstance(megatransfers_per_s, DeviceError):
        return megatransfers_per_s
    generation = pcie_generation_at(megatransfers_per_s / 1000)
    return generation or DeviceError(f"{key} is {megatransfers_per_s:g} MT/s, not a known link speed")


def _memory_errors(amdsmi: Any, handle: Any) -> Answer:
    """Count the errors in device memory (UMC), or in the whole chip if these are not counted."""
    try:
        answer = amdsmi.amdsmi_get_gpu_ecc_count(handle, amdsmi.AmdSmiGpuBlock.UMC)
    except amdsmi.AmdSmiLibraryException as error:
        if error.get_error_code() != NOT_SUPPORTED:
            raise
        answer = amdsmi.amdsmi_get_gpu_total_ecc_count(handle)
    keys = {"ecc_corrected_count": "correctable_count", "ecc_uncorrected_count": "uncorrectable_count"}
    return {metric: _number(answer, key) for metric, key in keys.items()}


def _bad_pages(amdsmi: Any, handle: Any) -> Answer:
    states = [page["status"] for page in amdsmi.amdsmi_get_gpu_bad_page_info(handle)]
    return {
        "remapped_rows_pending": int(_PAGE_PENDING in states),
        "remapped_rows_failed": int(_PAGE_FAILED in states),
        "remapped_rows_uncorrected_count": states.count(_PAGE_RETIRED),
    }


def _xgmi_bytes(amdsmi: Any, handle: Any) -> Answer:
    """Sum over the links; if the library leaves one empty, the total is unknown, not smaller."""
    answer = amdsmi.amdsmi_get_link_metrics(handle)
    links = [link for link in answer["links"][: answer["num_links"]] if link["link_type"] == _XGMI_LINK]
    return {"nvlink_tx_bytes": _sum(links, "write"), "nvlink_rx_bytes": _sum(links, "read")}


def _sum(links: list[dict[str, Any]], key: str) -> float | DeviceError:
    parts = [_number(link, key, scale=1024) for link in links]
    unknown = [part for part in parts if isinstance(part, DeviceError)]
    if not links:
        unknown = [NotSupportedError(_NO_LINK)]
    return unknown[0] if unknown else sum(part for part in parts if not isinstance(part, DeviceError))


def _xgmi_links(amdsmi: Any, handle: Any) -> Answer:
    status = amdsmi.amdsmi_get_gpu_xgmi_link_status(handle)["status"]
    return {"nvlink_links_active": status.count("U") if status else NotSupportedError(_NO_LINK)}


def _facts(function: str, **keys: str) -> Source:
    """Create a source of facts: fact=key in the returned dict; an empty key means the value itself."""

    def ask(amdsmi: Any, handle: Any) -> Answer:
        answer = getattr(amdsmi, function)(handle)
        facts = {fact: answer.get(key, "N/A") if key else answer for fact, key in keys.items()}
        return {
            fact: DeviceError(_NOTHING) if value in ("N/A", "") else value for fact, value in facts.items()
        }

    return Source(metrics=tuple(keys), ask=ask)


_FACT_SOURCES = (
    _facts(
        "amdsmi_get_gpu_asic_info",
        name="market_name",
        compute_units="num_compute_units",
        gfx_target="target_graphics_version",
        oam_id="oam_id",
    ),
    # `uuid` is the ROCm UUID: `GPU-` and 16 digits, accepted by ROCR_VISIBLE_DEVICES; `smi_uuid` is the
    # library's own UUID.
    _facts("amdsmi_get_gpu_enumeration_info", uuid="hip_uuid", hip_id="hip_id"),
    _facts("amdsmi_get_gpu_kfd_info", kfd_node="node_id"),
    _facts("amdsmi_get_gpu_driver_info", driver_version="driver_version"),
    _facts("amdsmi_get_gpu_device_uuid", smi_uuid=""),
)
FACTS = tuple(fact for source in _FACT_SOURCES for fact in source.metrics)

SOURCES = (
    _numbers(
        "amdsmi_get_gpu_activity",
        {"util_gpu_percent": "gfx_activity", "util_mem_ctrl_percent": "umc_activity"},
        empty=_ALL_ONES_16,
    ),
    Source(metrics=("power_w", "power_instant_w"), ask=_power),
    _one("mem_used_bytes", "amdsmi_get_gpu_memory_usage", "AmdSmiMemoryType.VRAM"),
    _one("mem_total_bytes", "amdsmi_get_gpu_memory_total", "AmdSmiMemoryType.VRAM"),
    _one("mem_host_mapped_bytes", "amdsmi_get_gpu_memory_usage", "AmdSmiMemoryType.GTT"),
    _numbers(
        "amdsmi_get_gpu_vram_usage",
        {"mem_used_bytes": "vram_used", "mem_total_bytes": "vram_total"},
        scale=2**20,
    ),
    _temperature("temp_gpu_c", ("EDGE", "HOTSPOT")),
    _temperature("temp_hotspot_c", ("HOTSPOT",)),
    _temperature("temp_hotspot_critical_c", ("HOTSPOT",), "CRITICAL"),
    _temperature("temp_mem_c", ("VRAM",)),
    _temperature("temp_slowdown_c", ("EDGE", "HOTSPOT"), "CRITICAL"),
    _temperature("temp_shutdown_c", ("EDGE", "HOTSPOT"), "EMERGENCY"),
    _temperature("temp_mem_max_c", ("VRAM",), "CRITICAL"),
    _clock("clock_sm_mhz", "GFX", "clk"),
    _clock("clock_mem_mhz", "MEM", "clk"),
    _clock("clock_sm_max_mhz", "GFX", "max_clk"),
    _clock("clock_sm_min_mhz", "GFX", "min_clk"),
    _clock("clock_mem_max_mhz", "MEM", "max_clk"),
    Source(metrics=("energy_j",), ask=_energy),
    # Power caps are in microwatts, and 0 means no cap.
    _numbers(
        "amdsmi_get_power_cap_info",
        {
            "power_limit_w": "power_cap",
            "power_limit_default_w": "default_power_cap",
            "power_limit_max_w": "max_power_cap",
        },
        scale=1e-6,
        empty=(0, *_ALL_ONES),
    ),
    _numbers("amdsmi_get_power_cap_info", {"power_limit_min_w": "min_power_cap"}, scale=1e-6),
    _one("fan_percent", "amdsmi_get_gpu_fan_speed", 0, scale=100 / _FAN_MAX),
    _one("fan_rpm", "amdsmi_get_gpu_fan_rpms", 0),
    Source(
        metrics=("pcie_gen", "pcie_width", "pcie_replay_count", "pcie_gen_max", "pcie_width_max"), ask=_pcie
    ),
    _one("pcie_replay_count", "amdsmi_get_gpu_pci_replay_counter"),
    Source(metrics=("ecc_corrected_count", "ecc_uncorrected_count"), ask=_memory_errors),
    Source(
        metrics=("remapped_rows_pending", "remapped_rows_failed", "remapped_rows_uncorrected_count"),
        ask=_bad_pages,
    ),
    Source(metrics=("nvlink_tx_bytes", "nvlink_rx_bytes"), ask=_xgmi_bytes),
    Source(metrics=("nvlink_links_active",), ask=_xgmi_links),
    *_FACT_SOURCES,
)
OFFERED = frozenset(metric for source in SOURCES for metric in source.metrics)
"""Metrics that the library can provide, if it is installed."""
