"""One enlarged GPU, and the processes that use the GPUs of all hosts.

Input: the state of one device, or the states of all hosts with a sort key and a search text. Output: rich
renderables of the given width. Values that a host does not report are shown as a dash. Process names and
command lines are only present if the sampler was started with that option, which the live view always does;
they are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuproof.base.units import MISSING, memory, seconds
from gpuproof.observe.live_state import DeviceState
from gpuproof.observe.live_table import States, spin_of, state_text
from gpuproof.observe.live_text import BAD, DIM, LINE, WARN, chart, on_one_line
from gpuproof.readings.metric_text import energy, quantity, throttle_title, title
from gpuproof.readings.warnings import SPIN_MEANING, limit_of
from gpuproof.records.metrics import METRICS, THROTTLE_COUNTERS

_CHARTED: Final = tuple(name for name, metric in METRICS.items() if metric.drawn)
_RATES: Final = tuple(name for name, metric in METRICS.items() if metric.live == "rate")
_PLACES: Final = {
    name: int(metric.live) for name, metric in METRICS.items() if metric.live and metric.live.isdigit()
}
_VALUES: Final = sorted(_PLACES, key=_PLACES.__getitem__)
_FACT_WIDTH: Final = 48
Order = Literal["GPU memory", "CPU", "GPU", "user"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
_OWNERS: Final = ("slurm_job", "namespace", "pod", "container")


def device_detail(device: DeviceState, *, width: int) -> RenderableType:
    """Draw one GPU with everything that it reports."""
    identity = device.identity
    address = f" {on_one_line(identity.uuid or 'no UUID')}   {on_one_line(identity.pci_bus_id or '')}"
    name = f" GPU {identity.physical_index}  {on_one_line(identity.name)}   "
    parts: list[RenderableType] = [
        Text.assemble((name, "bold"), state_text(device)),
        Text(address, style=DIM),
        *_spinning(device),
        Text(""),
        _facts_table(list(_facts(device)), width=width),
    ]
    for metric in _CHARTED:
        parts += _chart(device, metric, max(20, width - 24))
    parts += _not_read(device)
    return Group(*parts)


def _spinning(device: DeviceState) -> Iterator[Text]:
    spin = spin_of(device)
    if spin is not None:
        yield Text(f" {spin.evidence}: {SPIN_MEANING}", style=BAD)


def _facts(device: DeviceState) -> Iterator[tuple[str, str]]:
    """Return every reading that has no chart, each with its name."""
    yield "PCIe", _pcie(device)
    for metric in _RATES:
        if metric in device.rates:
            yield title(metric), f"{memory(device.rates[metric])}/s"
    for metric in _VALUES:
        if metric in device.values:
            yield title(metric), quantity(metric, device.values[metric])
    for metric, reason in THROTTLE_COUNTERS.items():
        if device.values.get(metric):
            yield f"held: {throttle_title(reason)}", seconds(device.values[metric])
    used = device.values.get("energy_j")
    if used is not None and device.energy_start_j is not None:
        yield "energy since the start", energy(used - device.energy_start_j)
    for event, times in device.events.items():
        yield f"event {event.replace('_', ' ')}", f"×{times}"


def _pcie(device: DeviceState) -> str:
    def link(gen: float | None, lanes: float | None) -> str:
        return MISSING if gen is None or lanes is None else f"{gen:.0f}.0 × {lanes:.0f}"

    now = link(device.values.get("pcie_gen"), device.values.get("pcie_width"))
    most = link(device.identity.number("pcie_gen_max"), device.identity.number("pcie_width_max"))
    return f"{now} of {most}"


def _facts_table(facts: list[tuple[str, str]], *, width: int) -> Table:
    """Lay out facts in as many columns as fit, top to bottom."""
    columns = max(1, width // _FACT_WIDTH)
    rows = -(-len(facts) // columns)
    table = Table.grid(padding=(0, 1), expand=False)
    for _ in range(columns):
        table.add_column(width=_FACT_WIDTH - 2, no_wrap=True, overflow="ellipsis")
    for row in range(rows):
        table.add_row(*(Text.assemble((f" {n:<22.22} ", DIM), v) for n, v in facts[row::rows]))
    return table


def _chart(device: DeviceState, metric: str, columns: int) -> list[RenderableType]:
    history = list(device.history.get(metric, ()))
    values = [value for value in history if value is not None]
    if not values:
        why = device.unavailable.get(metric, "not read")
        return [Text(f"\n {title(metric)}: {on_one_line(why)}", style=DIM)]
    high = max(_ceiling(device, metric), *values)
    now = quantity(metric, device.values.get(metric))
    rows = chart(history, width=columns, height=3, low=0.0, high=high)
    labels = (title(metric), now, f"max {quantity(metric, max(values))}")
    drawn = [
        Text.assemble((f" {label:<20.20} ", "" if label == now else DIM), (row, LINE))
        for label, row in zip(labels, rows, strict=True)
    ]
    return [Text(""), *drawn]


def _ceiling(device: DeviceState, metric: str) -> float:
    """Return a chart's upper limit: the device's maximum, if reported."""
    top = METRICS[metric].top or "1"
    if top == "power_limit_w":
        return limit_of(device.identity, device.values) or 1.0
    return float(top) if top.isdigit() else device.identity.number(top) or 1.0


def _not_read(device: DeviceState) -> Iterator[Text]:
    by_reason: dict[str, list[str]] = {}
    for name, why in device.unavailable.items():
        if name not in METRICS or METRICS[name].kind != "static":
            by_reason.setdefault(why, []).append(title(name))
    if by_reason:
        yield Text("\n not read", style=f"bold {WARN}")
    for why, titles in by_reason.items():
        yield Text.assemble((f" {on_one_line(why)}: ", ""), (", ".join(titles), DIM))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process on one GPU."""

    host: str
    gpu: int
    facts: dict[str, Any]

    def number(self, name: str) -> float | None:
        """Return a number reported for the process, or None."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def owner(self) -> str:
        """Return the batch job, pod and container of the process, if any."""
        return "/".join(str(self.facts[name]) for name in _OWNERS if name in self.facts)

    @property
    def words(self) -> str:
        """Return the lower-case text that a filter searches."""
        parts = (self.host, f"gpu {self.gpu}", self.facts["pid"], self.facts.get("user", ""), self.owner)
        return " ".join(map(str, (*parts, self.facts.get("command", "")))).lower()


def process_rows(states: States, *, order: Order, containing: str = "") -> list[ProcessRow]:
    """List the processes that match a search text, sorted."""
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
    """Draw the processes; at 80 columns, the owner is omitted."""
    rows = process_rows(states, order=order, containing=containing)
    table = _table(several=len(states) > 1, owners=width >= 110 and any(row.owner for row in rows))
    for row in rows:
        table.add_row(
            *_cells(row, several=len(states) > 1, owners=len(table.columns) > 7 + (len(states) > 1))
        )
    untold = [Text(f" processes unknown on {where}", style=DIM) for where in _not_reported(states)]
    if rows:
        return Group(table, *untold)
    if containing or not untold:
        untold.insert(0, Text(f" no process contains {containing!r}" if containing else " none", style=DIM))
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


def _not_reported(states: States) -> Iterator[str]:
    for host, state in states.items():
        untold = [str(index) for index, device in state.devices.items() if device.processes is None]
        if untold:
            yield f"{'GPU' if len(states) == 1 else on_one_line(host) + ': GPU'} {', '.join(untold)}"


def _largest(name: str) -> Callable[[ProcessRow], tuple[Any, ...]]:
    """Return a sort key for a number: largest first, missing numbers last."""
    return lambda row: (-(row.number(name) or 0.0), row.host, row.gpu, row.facts["pid"])


_KEYS: Final[dict[Order, Callable[[ProcessRow], tuple[Any, ...]]]] = {
    "GPU memory": _largest("mem_used_bytes"),
    "CPU": _largest("cpu_percent"),
    "GPU": lambda row: (row.host, row.gpu, row.facts["pid"]),
    "user": lambda row: (str(row.facts.get("user", "")), row.host, row.gpu, row.facts["pid"]),
}
