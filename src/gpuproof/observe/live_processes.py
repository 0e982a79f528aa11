"""Who uses the GPUs? Processes of all hosts in one table, sorted and filtered as the reader asks.

In: states, an order and a word. Out: a table. What a host does not tell is a dash; names and command lines
are there only where the sampler was asked for them, which the live view does and nothing keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuproof.base.units import MISSING, memory
from gpuproof.observe.live_table import States
from gpuproof.observe.live_text import DIM, on_one_line
from gpuproof.readings.metric_text import quantity

Order = Literal["GPU memory", "CPU", "GPU", "user"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
_OWNERS: Final = ("slurm_job", "namespace", "pod", "container")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process on one GPU."""

    host: str
    gpu: int
    facts: dict[str, Any]

    def number(self, name: str) -> float | None:
        """Return a number that was told of it; None where it was not."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def owner(self) -> str:
        """Name the batch job, pod and container, where it has any."""
        return "/".join(str(self.facts[name]) for name in _OWNERS if name in self.facts)

    @property
    def words(self) -> str:
        """Return what a filter looks in, in lower case."""
        parts = (self.host, f"gpu {self.gpu}", self.facts["pid"], self.facts.get("user", ""), self.owner)
        return " ".join(map(str, (*parts, self.facts.get("command", "")))).lower()


def process_rows(states: States, *, order: Order, containing: str = "") -> list[ProcessRow]:
    """List the processes that contain a word, in an order."""
    rows = [
        ProcessRow(host=host, gpu=index, facts=process)
        for host, state in states.items()
        for index, device in state.devices.items()
        for process in device.processes or ()
    ]
    matching = [row for row in rows if containing.lower() in row.words]
    return sorted(matching, key=_KEYS[order])


def process_table(
    states: States, *, width: int, order: Order = "GPU memory", containing: str = ""
) -> RenderableType:
    """Draw the processes; at 80 columns without the owner."""
    rows = process_rows(states, order=order, containing=containing)
    table = _table(several=len(states) > 1, owners=width >= 110 and any(row.owner for row in rows))
    for row in rows:
        table.add_row(
            *_cells(row, several=len(states) > 1, owners=len(table.columns) > 7 + (len(states) > 1))
        )
    untold = [Text(f" not told on {where}", style=DIM) for where in _untold(states)]
    if rows:
        return Group(table, *untold)
    if containing or not untold:
        untold.insert(0, Text(f" none contains {containing!r}" if containing else " none", style=DIM))
    return Group(*untold)


def _table(*, several: bool, owners: bool) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1), header_style=DIM)
    if several:
        table.add_column("host", no_wrap=True, max_width=16, overflow="ellipsis")
    for name in ("GPU", "process", "GPU mem", "CPU", "host mem"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("user", no_wrap=True, max_width=12, overflow="ellipsis")
    if owners:
        table.add_column("job, pod", no_wrap=True, max_width=32, overflow="ellipsis")
    table.add_column("command", no_wrap=True, ratio=1, overflow="ellipsis")
    return table


def _cells(row: ProcessRow, *, several: bool, owners: bool) -> Iterator[Text]:
    if several:
        yield Text(on_one_line(row.host))
    yield Text(str(row.gpu), style="bold")
    yield Text(str(row.facts["pid"]))
    yield Text(memory(row.number("mem_used_bytes")))
    yield Text(quantity("cpu_percent", row.number("cpu_percent")))
    yield Text(memory(row.number("rss_bytes")))
    yield Text(on_one_line(str(row.facts.get("user", MISSING))))
    if owners:
        yield Text(on_one_line(row.owner or MISSING))
    yield Text(on_one_line(str(row.facts.get("command") or f"({row.facts.get('kind', '')})")))


def _untold(states: States) -> Iterator[str]:
    for host, state in states.items():
        untold = [str(index) for index, device in state.devices.items() if device.processes is None]
        if untold:
            yield f"{'GPU' if len(states) == 1 else on_one_line(host) + ': GPU'} {', '.join(untold)}"


def _largest(name: str) -> Callable[[ProcessRow], tuple[Any, ...]]:
    """Return the order by a number: the largest first, those that have none last."""
    return lambda row: (-(row.number(name) or 0.0), row.host, row.gpu, row.facts["pid"])


_KEYS: Final[dict[Order, Callable[[ProcessRow], tuple[Any, ...]]]] = {
    "GPU memory": _largest("mem_used_bytes"),
    "CPU": _largest("cpu_percent"),
    "GPU": lambda row: (row.host, row.gpu, row.facts["pid"]),
    "user": lambda row: (str(row.facts.get("user", "")), row.host, row.gpu, row.facts["pid"]),
}
