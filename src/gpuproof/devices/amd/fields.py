"""Which metric AMD's library gives, from which call, and why that call.

A source is asked only when a metric of its is missing from the driver's files. What comes out for each
metric is a number in our unit, or the reason why there is none: the binding's `N/A`, and the all-ones that
the library itself leaves, are never numbers.

- utilisation, power, VRAM, temperatures, clocks, PCIe: the same readings as the files, for cards, kernels
  and containers that lack the file.
- `energy_j`: counter × the resolution that the library states. The files' table 1.1 to 1.3 holds the
  counter but not its unit. On MI100 and MI200 users report counters that stand still; one at 0 is refused.
- throttling: the library's own copy of the firmware table, for tables newer than `gpu_metrics` knows. Its
  `amdsmi_get_violation_status` makes the `active_*` flags from two such tables, and sleeps 100 ms between
  them on every call: for eight GPUs, longer than a tick. `ResidencyClock` makes the same difference from
  the tables of two ticks.
- `ecc_*_count`: over every block of the chip, where the files' count is of device memory only.
- `nvlink_*`: xGMI, which no file gives. AMD counts in KB, taken here as 1,024 bytes.
- `remapped_rows_*`: AMD retires pages where NVIDIA remaps rows; the kernel tells root only.
- not asked: fans and performance level, which the library takes from the same files;
  `amdsmi_get_gpu_pci_throughput`, which blocks for a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuproof.devices.amd.gpu_metrics import RESIDENCIES
from gpuproof.devices.base import DeviceError, NotSupportedError
from gpuproof.devices.sysfs import pcie_generation_of

Answer = dict[str, float | str]
"""Metric → its number, or why there is none."""

_ALL_ONES = (2**32 - 1, 2**64 - 1)
_ALL_ONES_16 = (2**16 - 1, *_ALL_ONES)
NOTHING = "the library answers N/A"
_PAGE_RETIRED, _PAGE_PENDING, _PAGE_FAILED = 0, 1, 2
_XGMI_LINK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One question to the library, and the metrics that its answer holds."""

    metrics: tuple[str, ...]
    ask: Callable[[Any, Any], Answer]
    """Called with the binding and a card's handle; raises the binding's errors."""


def number(
    answer: Mapping[str, Any], key: str, *, scale: float = 1, empty: tuple[int, ...] = _ALL_ONES
) -> float:
    """Take a number out of one of the binding's dicts.

    Raises:
        NotSupportedError: this release of the binding has no such key.
        DeviceError: the library left it empty.
    """
    if key not in answer:
        raise NotSupportedError(f"this amdsmi does not tell {key}")
    value = answer[key]
    if not isinstance(value, int | float) or value in empty:
        raise DeviceError(NOTHING)
    return value * scale


def throttle_table(amdsmi: Any, handle: Any) -> dict[str, int]:
    """Read the firmware's cycle counts, named as `gpu_metrics.parse` names them; without those left empty."""
    answer = amdsmi.amdsmi_get_gpu_metrics_info(handle)
    wanted = ("accumulation_counter", "firmware_timestamp", *RESIDENCIES)
    table = {name: _or_reason(answer, name) for name in wanted}
    return {name: int(value) for name, value in table.items() if not isinstance(value, str)}


def _or_reason(answer: Mapping[str, Any], key: str, **how: Any) -> float | str:
    try:
        return number(answer, key, **how)
    except DeviceError as error:
        return error.cause


def _activity(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_gpu_activity(handle)
    keys = {"util_gpu_percent": "gfx_activity", "util_mem_ctrl_percent": "umc_activity"}
    return {metric: _or_reason(answer, key, empty=_ALL_ONES_16) for metric, key in keys.items()}


def _power(amdsmi: Any, handle: Any) -> Answer:
    """Read watts: MI300 and later tell the present power only, the cards before it the average only."""
    answer = amdsmi.amdsmi_get_power_info(handle)
    instant = _or_reason(answer, "current_socket_power", empty=_ALL_ONES_16)
    average = _or_reason(answer, "average_socket_power", empty=_ALL_ONES_16)
    return {"power_w": instant if isinstance(average, str) else average, "power_instant_w": instant}


def _memory(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_gpu_vram_usage(handle)
    keys = {"mem_used_bytes": "vram_used", "mem_total_bytes": "vram_total"}
    return {metric: _or_reason(answer, key, scale=2**20) for metric, key in keys.items()}


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
            return {metric: _or_reason({sensor: degrees}, sensor, empty=_ALL_ONES_16)}
        raise refusal

    return Source(metrics=(metric,), ask=ask)


def _clock(metric: str, clock: str, key: str) -> Source:
    def ask(amdsmi: Any, handle: Any) -> Answer:
        answer = amdsmi.amdsmi_get_clock_info(handle, getattr(amdsmi.AmdSmiClkType, clock))
        return {metric: _or_reason(answer, key, empty=_ALL_ONES_16)}

    return Source(metrics=(metric,), ask=ask)


def _energy(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_energy_count(handle)
    resolution_j = _or_reason(answer, "counter_resolution", scale=1e-6)
    count = _or_reason(answer, "energy_accumulator")
    if isinstance(resolution_j, str) or isinstance(count, str):
        return {"energy_j": next(part for part in (count, resolution_j) if isinstance(part, str))}
    if count == 0 or resolution_j <= 0:
        return {"energy_j": "the library's energy counter stands at 0"}
    return {"energy_j": count * resolution_j}


def _power_caps(amdsmi: Any, handle: Any) -> Answer:
    """Read the caps, which the library gives in microwatts; a cap of 0 is none."""
    answer = amdsmi.amdsmi_get_power_cap_info(handle)
    return {
        "power_limit_w": _or_reason(answer, "power_cap", scale=1e-6, empty=(0, *_ALL_ONES)),
        "power_limit_default_w": _or_reason(answer, "default_power_cap", scale=1e-6, empty=(0, *_ALL_ONES)),
        "power_limit_min_w": _or_reason(answer, "min_power_cap", scale=1e-6),
        "power_limit_max_w": _or_reason(answer, "max_power_cap", scale=1e-6, empty=(0, *_ALL_ONES)),
    }


def _pcie(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_pcie_info(handle)
    now, most = answer["pcie_metric"], answer["pcie_static"]
    return {
        "pcie_gen": _generation(now, "pcie_speed"),
        "pcie_width": _or_reason(now, "pcie_width", empty=(0, *_ALL_ONES_16)),
        "pcie_replay_count": _or_reason(now, "pcie_replay_count"),
        "pcie_gen_max": _generation(most, "max_pcie_speed"),
        "pcie_width_max": _or_reason(most, "max_pcie_width", empty=(0, *_ALL_ONES_16)),
    }


def _generation(answer: Mapping[str, Any], key: str) -> float | str:
    megatransfers_per_s = _or_reason(answer, key)
    if isinstance(megatransfers_per_s, str):
        return megatransfers_per_s
    generation = pcie_generation_of(megatransfers_per_s / 1000)
    return generation or f"{key} is {megatransfers_per_s:g} MT/s, not a known link speed"


def _replays(amdsmi: Any, handle: Any) -> Answer:
    answer = {"count": amdsmi.amdsmi_get_gpu_pci_replay_counter(handle)}
    return {"pcie_replay_count": _or_reason(answer, "count")}


def _ecc(amdsmi: Any, handle: Any) -> Answer:
    answer = amdsmi.amdsmi_get_gpu_total_ecc_count(handle)
    keys = {"ecc_corrected_count": "correctable_count", "ecc_uncorrected_count": "uncorrectable_count"}
    return {metric: _or_reason(answer, key) for metric, key in keys.items()}


def _bad_pages(amdsmi: Any, handle: Any) -> Answer:
    states = [page["status"] for page in amdsmi.amdsmi_get_gpu_bad_page_info(handle)]
    return {
        "remapped_rows_pending": int(_PAGE_PENDING in states),
        "remapped_rows_failed": int(_PAGE_FAILED in states),
        "remapped_rows_uncorrected_count": states.count(_PAGE_RETIRED),
    }


def _xgmi_bytes(amdsmi: Any, handle: Any) -> Answer:
    """Add up the links; one that the library leaves empty makes the total unknown, not smaller."""
    answer = amdsmi.amdsmi_get_link_metrics(handle)
    links = [link for link in answer["links"][: answer["num_links"]] if link["link_type"] == _XGMI_LINK]
    if not links:
        return dict.fromkeys(("nvlink_tx_bytes", "nvlink_rx_bytes"), "this card has no xGMI link")
    return {"nvlink_tx_bytes": _sum(links, "write"), "nvlink_rx_bytes": _sum(links, "read")}


def _sum(links: list[dict[str, Any]], key: str) -> float | str:
    parts = [_or_reason(link, key, scale=1024) for link in links]
    unknown = [part for part in parts if isinstance(part, str)]
    return unknown[0] if unknown else sum(part for part in parts if not isinstance(part, str))


def _xgmi_links(amdsmi: Any, handle: Any) -> Answer:
    status = amdsmi.amdsmi_get_gpu_xgmi_link_status(handle)["status"]
    return {"nvlink_links_active": status.count("U") if status else "this card has no xGMI link"}


SOURCES = (
    Source(metrics=("util_gpu_percent", "util_mem_ctrl_percent"), ask=_activity),
    Source(metrics=("power_w", "power_instant_w"), ask=_power),
    Source(metrics=("mem_used_bytes", "mem_total_bytes"), ask=_memory),
    _temperature("temp_gpu_c", ("EDGE", "HOTSPOT")),
    _temperature("temp_hotspot_c", ("HOTSPOT",)),
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
    Source(
        metrics=("power_limit_w", "power_limit_default_w", "power_limit_min_w", "power_limit_max_w"),
        ask=_power_caps,
    ),
    Source(
        metrics=("pcie_gen", "pcie_width", "pcie_replay_count", "pcie_gen_max", "pcie_width_max"), ask=_pcie
    ),
    Source(metrics=("pcie_replay_count",), ask=_replays),
    Source(metrics=("ecc_corrected_count", "ecc_uncorrected_count"), ask=_ecc),
    Source(
        metrics=("remapped_rows_pending", "remapped_rows_failed", "remapped_rows_uncorrected_count"),
        ask=_bad_pages,
    ),
    Source(metrics=("nvlink_tx_bytes", "nvlink_rx_bytes"), ask=_xgmi_bytes),
    Source(metrics=("nvlink_links_active",), ask=_xgmi_links),
)
