"""One look at every host: what the live view would show now, as on_one_line text that can be kept or sent on.

In: the records of each host. Out: text, once each host told its readings and processes, or why it cannot.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from rich.console import Console, RenderableType
from rich.text import Text

from gpuproof.base.errors import GpuproofError
from gpuproof.observe.live_processes import process_table
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.live_table import device_table, models
from gpuproof.observe.live_text import BAD, event_lines, head_line, host_line, on_one_line
from gpuproof.observe.stream import Records, batches
from gpuproof.records.readings import Sample

LOOKS = 2
"""Slow samples to wait for: shares of processor time are over the time between two looks."""


def look(sources: Mapping[str, Records]) -> tuple[dict[str, LiveState], dict[str, GpuproofError]]:
    """Read each host until it was looked at twice; return what is known, and of whom nothing is, and why."""
    with ThreadPoolExecutor(max_workers=len(sources)) as readers:
        looks = dict(zip(sources, readers.map(_look, sources.values()), strict=True))
    states = {host: state for host, state in looks.items() if isinstance(state, LiveState)}
    return states, {host: error for host, error in looks.items() if isinstance(error, GpuproofError)}


def _look(records: Records) -> LiveState | GpuproofError:
    state, looks = LiveState(), 0
    try:
        with closing(batches(records)) as incoming:
            for batch in incoming:
                state.apply(batch)
                looks += sum(isinstance(record, Sample) and record.lane == "slow" for record in batch)
                if looks >= LOOKS:
                    break
    except GpuproofError as error:
        return error
    return state


def written(
    states: Mapping[str, LiveState], failures: Mapping[str, GpuproofError], *, width: int, colour: bool
) -> str:
    """Write one look as text that ends with a line end."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    events = event_lines(states)
    parts: list[RenderableType] = [head_line(states), models(states), device_table(states, width=width)]
    parts += [Text("\n Driver events"), events] if events else []
    parts.append(Text(""))
    for host, state in states.items():
        parts.append(host_line(state, width=width, name=host if len(states) + len(failures) > 1 else "host"))
    parts += [
        Text(f" ✗ {on_one_line(host)}: {on_one_line(str(error))}", style=BAD)
        for host, error in failures.items()
    ]
    parts += [Text("\n Processes"), process_table(states, width=width)]
    for part in parts:
        console.print(part)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())
