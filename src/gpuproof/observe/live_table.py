"""How do many GPUs fit into one table? Most important first, with as many columns as fit.

Input: the states of one or more hosts, and the width. Output: a table with the state column right after the
GPU column; this column is never cut off, so even at 80 columns, the table shows which GPU is lost or
thermally throttled. With several hosts, hosts with problems come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpuproof.base.units import MISSING, seconds
from gpuproof.observe.live_state import DeviceState, LiveState
from gpuproof.observe.live_text import BAD, DIM, GOOD, LINE, WARN, bar, chart, on_one_line, sparkline
from gpuproof.readings.metric_text import STATE_REASONS, quantity, throttle_title
from gpuproof.readings.warnings import Spin, limit_of
from gpuproof.records.metrics import names

States = Mapping[str, LiveState]
STATE_WIDTH: Final = 30
LONGEST_STATE: Final = 56
_SHORTEST_LINE, _LONGEST_LINE = 8, 40
_LOWEST_CHART, _HIGHEST_CHART = 3, 9
"""Number of lines for a GPU's history, including the blank line below it."""
_PADDING: Final = 2
_GRAVE_EVENTS: Final = ("xid", "ecc_uncorrected", "row_remap_failed", "row_remap_pending", "gpu_pre_reset")


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    cell: Callable[[DeviceState], Text]


def device_table(states: States, *, width: int) -> RenderableType:
    """Draw one row per GPU: its state first, then as many readings as fit."""
    several = len(states) > 1
    if not several and all(s.header is not None and not s.devices for s in states.values()):
        return Text(" No GPU here: the host's readings are below.", style=WARN)
    devices = [device for state in states.values() for device in state.devices.values()]
    columns, line = _chosen(width, several=several, has_problems=any(map(_problems, devices)))
    table = Table(box=None, expand=True, padding=(0, 1), header_style=DIM)
    if several:
        table.add_column("host", no_wrap=True, width=_HOST_WIDTH - _PADDING, overflow="ellipsis")
    table.add_column("GPU", no_wrap=True, width=3)
    table.add_column("state", no_wrap=True, ratio=1, overflow="ellipsis", max_width=LONGEST_STATE)
    for column in columns:
        extra = line if column in _LINES else 0
        title = Text(column.title, justify="left" if column in _OF_WORDS else "right")
        table.add_column(title, no_wrap=True, width=column.width - _PADDING + extra)
    for host, device in _ordered(states):
        cells = [_cell(column, device, line) for column in columns]
        named = [Text(on_one_line(host))] if several else []
        index = Text(str(device.identity.physical_index), style="bold")
        table.add_row(*named, index, state_text(device), *cells)
    return table


def history_charts(states: States, *, width: int, height: int) -> RenderableType:
    """Draw the recent utilisation of each GPU on one host, as tall as space allows."""
    devices = [device for state in states.values() for device in state.devices.values()]
    rows = min(_HIGHEST_CHART, height // max(1, len(devices)))
    if len(states) != 1 or rows < _LOWEST_CHART:
        return Text("")
    lines: list[Text] = []
    for device in devices:
        history = list(device.history.get("util_gpu_percent", ()))
        label = f" GPU {device.identity.physical_index} busy "
        for row, line in enumerate(chart(history, width=width - 14, height=rows - 1, low=0.0, high=100.0)):
            lines.append(Text.assemble((f"{label if row == 0 else '':<14}", DIM), (line, LINE)))
        lines.append(Text(""))
    return Text("\n").join(lines)


def _cell(column: _Column, device: DeviceState, line: int) -> Text:
    if column not in _LINES:
        return column.cell(device)
    metric, top = _LINES[column]
    history = list(device.history.get(metric, ()))
    high = top(device) or max((value for value in history if value is not None), default=1.0)
    drawn = sparkline(history, width=line - 1, low=0.0, high=high) + " " if line else ""
    return Text.assemble((drawn, LINE), column.cell(device))


def _chosen(width: int, *, several: bool, has_problems: bool) -> tuple[list[_Column], int]:
    """Choose columns by importance while they fit; sparklines get the remaining space."""
    left = width - 5 - STATE_WIDTH - _PADDING - (_HOST_WIDTH if several else 0)
    taken = []
    for column in _BY_WORTH:
        if column.width <= left and (has_problems or column is not _PROBLEM):
            taken.append(column)
            left -= column.width
    drawn = sum(column in _LINES for column in taken)
    line = min(_LONGEST_LINE, left // drawn) if drawn else 0
    shown = [column for column in _IN_ORDER if column in taken]
    return shown, line if line >= _SHORTEST_LINE else 0


def _ordered(states: States) -> Iterator[tuple[str, DeviceState]]:
    rows = [(host, device) for host, state in states.items() for device in state.devices.values()]
    if len(states) > 1:
        rows.sort(key=lambda row: (-_gravity(row[1]), row[0], row[1].identity.physical_index))
    yield from rows


def _gravity(device: DeviceState) -> int:
    held = _held(device)
    if not device.answering:
        return 3
    if any(reason.startswith("thermal") for reason in held) or spin_of(device) is not None:
        return 2
    return 1 if held or _events(device) else 0


def spin_of(device: DeviceState) -> Spin | None:
    """Return how long the device has been busy without working; None if it has not, or if unknown."""
    return None if device.spinning is None else device.spinning.now


def state_text(device: DeviceState) -> Text:
    """Describe what is wrong, worst first; unreported metrics are not assumed to be fine."""
    events = _events(device)
    if not device.answering:
        return Text(" · ".join([f"✗ {on_one_line(silence(device))}", *events]), style=f"bold {BAD}")
    held = _held(device)
    words = [*map(throttle_title, held), *events]
    spin = spin_of(device)
    if spin is not None:
        words.insert(0, f"busy without work {seconds(spin.duration_s)}")
    if words:
        return Text("▲ " + ", ".join(words), style=WARN if words == ["power cap"] else BAD)
    if device.reasons is None:
        return Text("– unknown", style=DIM)
    if "idle" in device.reasons:
        return Text("○ idle", style=DIM)
    return Text("● not throttled", style=GOOD)


def _held(device: DeviceState) -> list[str]:
    """List what throttles the device, temperature first."""
    held = [reason for reason in device.reasons or () if reason not in STATE_REASONS]
    return sorted(held, key=lambda reason: not reason.startswith("thermal"))


def _events(device: DeviceState) -> list[str]:
    """List severe events with their counts; XIDs are listed by code."""
    times_by_title = {f"xid {code}": times for code, times in device.xids.items()}
    times_by_title |= {kind.replace("_", " "): device.events[kind] for kind in _GRAVE_EVENTS if kind != "xid"}
    return [title if times == 1 else f"{title} ×{times}" for title, times in times_by_title.items() if times]


def silence(device: DeviceState) -> str:
    """Explain why a device reports nothing: the most common reason; some metrics are never available."""
    reasons = Counter(device.unavailable[m] for m in names(lane="fast") if m in device.unavailable)
    return next((reason for reason, _ in reasons.most_common(1)), "no reading")


def models(states: States) -> Text:
    """List the models: one per GPU, or the number of each model with several hosts."""
    devices = [device for state in states.values() for device in state.devices.values()]
    if len(states) > 1:
        counted = Counter(on_one_line(device.identity.name) for device in devices)
        parts = [f"{times} × {name}" for name, times in counted.most_common()]
    else:
        parts = [f"GPU {numbers} {name}" for name, numbers in _numbers(devices).items()]
    return Text(" " + "   ".join(parts), style=DIM, no_wrap=True, overflow="ellipsis")


def _numbers(devices: list[DeviceState]) -> dict[str, str]:
    """Name → the indices of its devices, e.g. `0–2,5`."""
    spans: dict[str, list[list[int]]] = {}
    for device in devices:
        of_model = spans.setdefault(on_one_line(device.identity.name), [])
        index = device.identity.physical_index
        if of_model and of_model[-1][1] == index - 1:
            of_model[-1][1] = index
        else:
            of_model.append([index, index])
    return {
        name: ",".join(str(first) if first == last else f"{first}–{last}" for first, last in of_model)
        for name, of_model in spans.items()
    }


def _value(metric: str, width: int) -> Callable[[DeviceState], Text]:
    return lambda device: Text(f"{quantity(metric, device.values.get(metric)):>{width}}")


def _memory(device: DeviceState) -> Text:
    share, amount = _memory_share(device)
    nearly_full = share is not None and share > 0.97
    return Text(f"{amount:>13}", style=BAD if nearly_full else "")


def _memory_bar(device: DeviceState) -> Text:
    share, _ = _memory_share(device)
    return Text(bar(share, width=8), style=BAD if share is not None and share > 0.97 else GOOD)


def _memory_share(device: DeviceState) -> tuple[float | None, str]:
    used = device.values.get("mem_used_bytes")
    total = device.identity.number("mem_total_bytes")
    amount = MISSING if used is None else f"{used / 2**30:.1f}"
    whole = f"{total / 2**30:.0f} GiB" if total else "GiB"
    return used / total if used is not None and total else None, f"{amount}/{whole}"


def _temperature(device: DeviceState) -> Text:
    value = device.values.get("temp_gpu_c", device.values.get("temp_hotspot_c"))
    slowdown = device.identity.number("temp_slowdown_c")
    near = value is not None and slowdown is not None and value >= slowdown - 3
    return Text(f"{quantity('temp_gpu_c', value):>6}", style=BAD if near else "")


def _link(device: DeviceState) -> Text:
    gen, lanes = device.values.get("pcie_gen"), device.values.get("pcie_width")
    most = device.identity.number("pcie_width_max")
    few = lanes is not None and most is not None and lanes < most
    text = MISSING if gen is None or lanes is None else f"{gen:.0f}×{lanes:.0f}"
    return Text(f"{text:>5}", style=WARN if few else "")


def _limit(device: DeviceState) -> Text:
    limit_w = limit_of(device.identity, device.values)
    return Text("" if limit_w is None else f"of {quantity('power_w', limit_w)}", style=DIM)


def _problems(device: DeviceState) -> Text:
    """List problems with a device's memory and link, whatever it is doing, most severe first."""
    counts = {name: int(device.values.get(metric) or 0) for metric, name in _PROBLEMS.items()}
    words = [f"{name} {times}" if times > 1 else name for name, times in counts.items() if times]
    lanes, most = device.values.get("pcie_width"), device.identity.number("pcie_width_max")
    if lanes is not None and most is not None and lanes < most:
        words.append(f"PCIe ×{lanes:.0f} of {most:.0f}")
    return Text(", ".join(words), style=BAD if any(counts.values()) else WARN)


_PROBLEMS: Final = {
    "remapped_rows_failed": "remap failed",
    "ecc_uncorrected_count": "ECC errors",
    "remapped_rows_pending": "remap pending",
    "retired_pages_pending": "retirement pending",
}
"""Device flags and counters that need attention."""
_HOST_WIDTH: Final = 16
_UTILISATION = _Column("util", 8, _value("util_gpu_percent", 6))
_TEMPERATURE = _Column("temp", 8, _temperature)
_POWER = _Column("power", 9, _value("power_w", 7))
_MEMORY = _Column("memory", 15, _memory)
_CLOCK = _Column("SM clock", 11, _value("clock_sm_mhz", 9))
_BAR = _Column("", 10, _memory_bar)
_NAME = _Column("name", 24, lambda device: Text(on_one_line(device.identity.name)[:22]))
_MEMORY_TEMPERATURE = _Column("mem temp", 10, _value("temp_mem_c", 8))
_ACTIVE = _Column("SM active", 11, _value("sm_active_percent", 9))
_PCIE = _Column("PCIe", 7, _link)
_LIMIT = _Column("limit", 12, _limit)
_PROBLEM = _Column("problems", 32, _problems)
_FAN = _Column("fan", 8, _value("fan_percent", 6))
_OF_WORDS = (_NAME, _BAR, _LIMIT, _PROBLEM)
_BY_WORTH = (
    *(_UTILISATION, _TEMPERATURE, _POWER, _MEMORY, _CLOCK, _LIMIT, _PROBLEM, _BAR, _NAME),
    *(_MEMORY_TEMPERATURE, _ACTIVE, _PCIE, _FAN),
)
_IN_ORDER = (
    *(_PROBLEM, _NAME, _UTILISATION, _ACTIVE, _MEMORY, _BAR, _POWER, _LIMIT, _TEMPERATURE),
    *(_MEMORY_TEMPERATURE, _CLOCK, _PCIE, _FAN),
)
_LINES: Final[Mapping[_Column, tuple[str, Callable[[DeviceState], float | None]]]] = {
    _UTILISATION: ("util_gpu_percent", lambda _: 100.0),
    _POWER: ("power_w", lambda device: limit_of(device.identity, device.values)),
}
"""Columns that are preceded by their history if there is space."""
