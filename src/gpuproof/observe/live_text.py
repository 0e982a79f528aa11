"""How is the present written on a terminal? Rows, sparklines, bars and charts made of characters.

In: a `LiveState` and the width there is. Out: rich renderables. Colour repeats what a word says, so that
the view can be read without colours; a missing reading is a dash or a gap, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuproof.observe.live_state import DeviceState, LiveState
from gpuproof.readings.metric_text import STATE_REASONS, energy, quantity, throttle_title, title
from gpuproof.records.metrics import names
from gpuproof.units import MISSING, memory, seconds

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LEVELS: Final = 7
"""Of a sparkline: the full block is left out, so that lines above one another stay apart."""
_DIM: Final = "grey58"
_GOOD, _WARN, _BAD = "#3fb68b", "#f5a524", "#ff5d5d"
_LINE: Final = "#5b9cf5"
_FIXED_COLUMNS: Final = 98
"""Characters of a row beside its two sparklines."""
_CHARTED: Final = ("util_gpu_percent", "mem_used_bytes", "power_w", "temp_gpu_c", "clock_sm_mhz")


def sparkline(values: Sequence[float | None], *, width: int, low: float, high: float) -> str:
    """Draw the last `width` values as blocks; a value that was not read is a blank.

    >>> sparkline([0.0, 50.0, None, 100.0], width=4, low=0.0, high=100.0)
    '▁▄ ▇'
    """
    shown = list(values)[-width:]
    return "".join(_block(value, low, high) for value in shown).rjust(width)


def _block(value: float | None, low: float, high: float) -> str:
    if value is None:
        return " "
    share = (value - low) / (high - low) if high > low else 0.0
    return _BLOCKS[min(_LEVELS - 1, max(0, int(share * _LEVELS)))]


def chart(values: Sequence[float | None], *, width: int, height: int, low: float, high: float) -> list[str]:
    """Draw values as columns of blocks, `height` rows high, the newest at the right.

    >>> chart([0.0, 50.0, 100.0], width=3, height=2, low=0.0, high=100.0)
    ['  █', '▁██']
    """
    shown = list(values)[-width:]
    rows = []
    for row in reversed(range(height)):
        line = ""
        for value in shown:
            share = 0.0 if value is None or high <= low else (value - low) / (high - low)
            eighths = min(8, max(0, round(share * height * 8) - row * 8))
            empty = " " if value is None or row else _BLOCKS[0]
            line += _BLOCKS[eighths - 1] if eighths else empty
        rows.append(line.rjust(width))
    return rows


def bar(share: float | None, *, width: int) -> str:
    """Draw a share, 0 to 1, as a bar; dots where it is unknown.

    >>> bar(0.5, width=4), bar(None, width=4)
    ('━━╌╌', '····')
    """
    if share is None:
        return "·" * width
    filled = round(min(1.0, max(0.0, share)) * width)
    return "━" * filled + "╌" * (width - filled)


def head_line(state: LiveState) -> Text:
    """Say which machine this is, since when it is watched, and where the watched work is."""
    if state.header is None:
        waiting = Text(" waiting for the first reading …", style=_DIM)
        return Text(" the readings stopped before the first one", style=_WARN) if state.stopped else waiting
    line = Text.assemble(
        (" gpuproof ", "bold"),
        (f" {state.header.host}", "bold"),
        (f"  {len(state.devices)} GPU(s)  ·  {seconds(state.elapsed_s)}", _DIM),
        (f"  ·  {state.samples:,} samples", _DIM),
    )
    place = "  ".join(f"{key} {value}" for key, value in state.metadata.items() if value is not None)
    if place:
        line.append(f"  ·  {place}", style=_LINE)
    if state.end is not None:
        line.append(f"  ·  ended: {state.end.reason}", style=_WARN)
    elif state.stopped:
        line.append("  ·  stopped: no more readings come", style=_WARN)
    return line


def device_table(state: LiveState, *, width: int) -> RenderableType:
    """Draw a row a GPU: utilisation and power with their history, memory, temperature, clock, state."""
    if state.header is not None and not state.devices:
        return Text(" No GPU here: the host's readings are below.", style=_WARN)
    spark = max(6, min(40, (width - _FIXED_COLUMNS) // 2))
    table = Table(box=None, expand=True, padding=(0, 1), header_style=_DIM)
    for name in ("GPU", "utilisation", "memory", "power", "temp", "SM clock", "state"):
        table.add_column(name, no_wrap=True, ratio=1 if name == "state" else None)
    for index, device in state.devices.items():
        table.add_row(
            Text(str(index), style="bold"),
            _with_history(device, "util_gpu_percent", spark, high=100.0),
            _memory(device),
            _with_history(device, "power_w", spark, high=_power_limit(device)),
            _temperature(device),
            Text(quantity("clock_sm_mhz", device.values.get("clock_sm_mhz"))),
            _state(device),
        )
    return table


def _with_history(device: DeviceState, metric: str, width: int, *, high: float | None) -> Text:
    history = device.history.get(metric, ())
    top = high or max((value for value in history if value is not None), default=1.0)
    value = quantity(metric, device.values.get(metric))
    return Text.assemble((sparkline(list(history), width=width, low=0.0, high=top), _LINE), f" {value:>6}")


def _memory(device: DeviceState) -> Text:
    used = device.values.get("mem_used_bytes")
    total = device.identity.static.get("mem_total_bytes")
    share = used / total if used is not None and total else None
    colour = _BAD if share is not None and share > 0.97 else _GOOD
    amount = MISSING if used is None else f"{used / 2**30:.1f}"
    whole = f"{total / 2**30:.0f} GiB" if total else "GiB"
    return Text.assemble((bar(share, width=8), colour), f" {amount}/{whole}")


def _power_limit(device: DeviceState) -> float | None:
    static = device.identity.static
    limit = device.values.get("power_limit_w", static.get("power_limit_w"))
    return limit or static.get("power_limit_default_w")


def _temperature(device: DeviceState) -> Text:
    value = device.values.get("temp_gpu_c", device.values.get("temp_hotspot_c"))
    slowdown = device.identity.static.get("temp_slowdown_c")
    near = value is not None and slowdown is not None and value >= slowdown - 3
    return Text(quantity("temp_gpu_c", value), style=_BAD if near else "")


def _state(device: DeviceState) -> Text:
    """Say in words what holds the device back; what was not told is not called fine."""
    if not device.answering:
        return Text(f"✗ {_silence(device)}", style=f"bold {_BAD}")
    if device.reasons is None:
        return Text("– not told", style=_DIM)
    held = [reason for reason in device.reasons if reason not in STATE_REASONS]
    if held:
        colour = _WARN if held == ["power_cap"] else _BAD
        return Text("▲ " + ", ".join(map(throttle_title, held)), style=colour)
    if "idle" in device.reasons:
        return Text("○ idle", style=_DIM)
    return Text("● not held back", style=_GOOD)


def _silence(device: DeviceState) -> str:
    """Say why a device gives nothing: what most of its metrics say, as some have never been there."""
    reasons = Counter(device.unavailable[m] for m in names(lane="fast") if m in device.unavailable)
    return next((reason for reason, _ in reasons.most_common(1)), "no reading")


def host_line(state: LiveState, *, width: int) -> Text:
    """Write the host's processors, memory, disks and network in one line."""
    cpu = state.host_history.get("cpu_percent", ())
    spark = sparkline(list(cpu), width=max(6, min(24, width - 130)), low=0.0, high=100.0)
    parts = [
        f"busiest CPU {quantity('_percent', state.host.get('cpu_max_core_percent'))}",
        f"load {quantity('load', state.host.get('load_1min'))}",
        f"memory {memory(state.host.get('mem_used_bytes'))}",
    ]
    for name, label in (("disk_read_bytes", "disk ↓"), ("disk_write_bytes", "↑"), ("net_rx_bytes", "net ↓"),
                        ("net_tx_bytes", "↑")):  # fmt: skip
        rate = state.host_rates.get(name)
        parts.append(f"{label} {MISSING if rate is None else memory(rate) + '/s'}")
    value = quantity("cpu_percent", state.host.get("cpu_percent"))
    return Text.assemble(
        (" host ", "bold"), ("CPU ", ""), (spark, _LINE), f" {value}   ", ("   ".join(parts), _DIM)
    )


def process_table(state: LiveState) -> RenderableType:
    """List the processes on the GPUs by number; their names are not shown."""
    table = Table(box=None, padding=(0, 2), header_style=_DIM)
    for name in ("GPU", "process", "memory", "kind"):
        table.add_column(name, no_wrap=True)
    untold = [str(index) for index, device in state.devices.items() if device.processes is None]
    for index, device in state.devices.items():
        for process in device.processes or ():
            used = process.get("mem_used_bytes")
            table.add_row(str(index), str(process["pid"]), memory(used), str(process.get("kind", "")))
    parts: list[RenderableType] = [table] if table.row_count else []
    if untold:
        parts.append(Text(f" not told on GPU {', '.join(untold)}", style=_DIM))
    return Group(*parts) if parts else Text(" none", style=_DIM)


def event_lines(state: LiveState) -> Text:
    """List what drivers announced, the newest first."""
    if not state.events or state.header is None:
        return Text(" none", style=_DIM)
    lines = Text()
    for event in reversed(state.events):
        at = seconds(event.monotonic_s - state.header.monotonic_s)
        lines.append(f" {at:>10}  GPU {event.physical_index}  {event.title}: {event.message}\n", style=_BAD)
    return lines


def device_detail(device: DeviceState, *, width: int) -> RenderableType:
    """Draw one GPU's history large, with what else it tells."""
    columns = max(20, width - 24)
    parts: list[RenderableType] = [
        Text(f" GPU {device.identity.physical_index}  {device.identity.name}", style="bold"),
        Text(f" {device.identity.uuid or 'no UUID'}   {device.identity.pci_bus_id or ''}", style=_DIM),
    ]
    for metric in _CHARTED:
        history = list(device.history.get(metric, ()))
        known = [value for value in history if value is not None]
        if not known:
            parts.append(
                Text(f"\n {title(metric)}: {device.unavailable.get(metric, 'not read')}", style=_DIM)
            )
            continue
        high = max(_ceiling(device, metric), *known)
        now = quantity(metric, device.values.get(metric))
        rows = chart(history, width=columns, height=3, low=0.0, high=high)
        labels = (title(metric), now, f"max {quantity(metric, max(known))}")
        parts.append(Text(""))
        for label, row in zip(labels, rows, strict=True):
            parts.append(Text.assemble((f" {label:<20.20} ", "" if label == now else _DIM), (row, _LINE)))
    used = device.values.get("energy_j")
    if used is not None and device.energy_start_j is not None:
        parts.append(Text(f"\n energy since the start   {energy(used - device.energy_start_j)}"))
    parts += _not_read(device)
    return Group(*parts)


def _ceiling(device: DeviceState, metric: str) -> float:
    """Give the top of a chart: what the device could reach, where it says so."""
    static = device.identity.static
    tops = {
        "util_gpu_percent": 100.0,
        "mem_used_bytes": static.get("mem_total_bytes"),
        "power_w": _power_limit(device),
        "temp_gpu_c": static.get("temp_slowdown_c"),
        "clock_sm_mhz": static.get("clock_sm_max_mhz"),
    }
    return float(tops.get(metric) or 1.0)


def _not_read(device: DeviceState) -> Iterator[Text]:
    by_reason: dict[str, list[str]] = {}
    for name, why in device.unavailable.items():
        by_reason.setdefault(why, []).append(title(name))
    if by_reason:
        yield Text("\n not read", style="bold")
    for why, titles in by_reason.items():
        yield Text.assemble((f" {why}: ", ""), (", ".join(titles), _DIM))
