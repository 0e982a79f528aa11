"""How is the current state drawn in a terminal? As text: sparklines, bars and charts.

In: values, or a `LiveState` and the available width. Out: text for rich. Colour only repeats what a word
already says, so the view is readable without colour; a missing reading is a dash or a gap, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.text import Text

from gpuproof.base.outside import plain
from gpuproof.base.units import MISSING, memory, seconds
from gpuproof.observe.live_state import LiveState
from gpuproof.readings.metric_text import quantity
from gpuproof.readings.ports import port_changes
from gpuproof.records.metrics import HOST_METRICS
from gpuproof.records.ports import growth_text

DIM: Final = "#7a7a7a"
GOOD, WARN, BAD = "#00875f", "#b26a00", "#e0393e"
LINE: Final = "#3b78d8"
"""Colours with a luminance between a dark and a light background, and a contrast ratio above 3 against
both."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LEVELS: Final = 7
"""Characters of a sparkline, without the full block, so that adjacent lines stay separate."""
EVENTS_SHOWN: Final = 8


def on_one_line(text: str) -> str:
    r"""Make text from another machine safe to print in a terminal and in table rows.

    >>> on_one_line("python\x1b[2J\n")
    'python [2J '
    """
    return plain(text, allowed="")


def sparkline(values: Sequence[float | None], *, width: int, low: float, high: float) -> str:
    """Draw the last `width` values as blocks; a missing value is a blank.

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
    """Draw values as columns of blocks, `height` rows high, newest on the right.

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
    """Draw a fraction from 0 to 1 as a bar, or as dots if it is unknown.

    >>> bar(0.5, width=4), bar(None, width=4)
    ('━━╌╌', '····')
    """
    if share is None:
        return "·" * width
    filled = round(min(1.0, max(0.0, share)) * width)
    return "━" * filled + "╌" * (width - filled)


def head_line(states: Mapping[str, LiveState]) -> Text:
    """Show which machines are watched, for how long, and the state published by the watched workload."""
    started = {name: state for name, state in states.items() if state.header is not None}
    if not started:
        waiting = Text(" waiting for the first reading …", style=DIM)
        has_stopped = all(state.stopped for state in states.values())
        return Text(" the recording stopped before the first reading", style=WARN) if has_stopped else waiting
    state, *others = started.values()
    host = "" if state.header is None else state.header.host
    name = f" {len(states)} hosts" if len(states) > 1 else f" {on_one_line(host)}"
    gpus = sum(len(watched.devices) for watched in started.values())
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append_text(Text.assemble((" gpuproof ", "bold"), (name, "bold")))
    line.append(f"  {gpus} GPU(s)  ·  {seconds(state.elapsed_s)}", style=DIM)
    line.append(f"  ·  {sum(watched.samples for watched in started.values()):,} samples", style=DIM)
    if others:
        return line
    if state.end is not None:
        line.append(f"  ·  ended: {on_one_line(state.end.reason)}", style=WARN)
    elif state.stopped:
        line.append("  ·  readings stopped", style=WARN)
    place = "  ".join(f"{key} {value}" for key, value in state.metadata.items() if value is not None)
    if place:
        line.append(f"  ·  {on_one_line(place)}", style=LINE)
    return line


def host_line(state: LiveState, *, width: int, name: str = "host") -> Text:
    """Format the host's CPUs, memory, disks and network on one line, as far as they fit."""
    cpu = state.host_history.get("cpu_percent", ())
    spark = sparkline(list(cpu), width=max(6, min(24, width - 130)), low=0.0, high=100.0)
    parts = [
        f"memory {memory(state.host.get('mem_used_bytes'))}",
        f"busiest CPU {quantity('_percent', state.host.get('cpu_max_core_percent'))}",
        f"load {quantity('load', state.host.get('load_1min'))}",
    ]
    for name_of_rate, metric in HOST_METRICS.items():
        if metric.live is not None:
            rate = state.host_rates.get(name_of_rate)
            parts.append(f"{metric.live} {MISSING if rate is None else memory(rate) + '/s'}")
    value = quantity("cpu_percent", state.host.get("cpu_percent"))
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append_text(
        Text.assemble((f" {on_one_line(name)} ", "bold"), ("CPU ", ""), (spark, LINE), f" {value}")
    )
    for part in parts:
        if line.cell_len + 3 + len(part) <= width:
            line.append(f"   {part}", style=DIM)
    return line


def event_lines(states: Mapping[str, LiveState]) -> Text:
    """List driver events, newest first, and ports that counted errors; empty if there are none."""
    events = [
        (event.monotonic_s - state.header.monotonic_s, host, event)
        for host, state in states.items()
        for event in state.events
        if state.header is not None
    ]
    events.sort(key=lambda row: -row[0])
    lines = []
    for at_s, host, event in events[:EVENTS_SHOWN]:
        where = f"{on_one_line(host)}  " if len(states) > 1 else ""
        where += "host" if event.physical_index is None else f"GPU {event.physical_index}"
        text = f" {seconds(at_s):>8}  {where}  {event.title}: {event.message}"
        lines.append(Text(on_one_line(text), style=BAD, no_wrap=True, overflow="ellipsis"))
    if len(events) > EVENTS_SHOWN:
        lines.append(Text(f" and {len(events) - EVENTS_SHOWN} before", style=DIM))
    for host, state in states.items():
        where = f"{host}  " if len(states) > 1 else ""
        grown = ((c.port.name, growth_text(c.grown("error"))) for c in port_changes(state.ports))
        texts = (f" {where}{port}  {errors}" for port, errors in grown if errors)
        lines += [Text(on_one_line(text), style=WARN) for text in texts]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
