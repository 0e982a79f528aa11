"""Current state of devices and host: latest readings, recent history, and problems.

In: records, in the order in which a sampler writes them. Out: the state that a live view draws and an
exporter serves. A metric that the device no longer reports is removed, so that an old value is never mistaken
for a new one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from gpuproof.hardware.events import named_event
from gpuproof.readings.totals import SHORT_COUNTER_BYTES
from gpuproof.readings.warnings import SpinWatch, is_judged, limit_of, longest_gap_s
from gpuproof.records import readings as r
from gpuproof.records.metrics import METRICS, names
from gpuproof.records.ports import PortTotals

HISTORY: Final = 600
"""Number of readings stored per metric: ten minutes at one reading per second."""
MAX_EVENTS: Final = 50
COUNTERS: Final = frozenset(names(kind="counter"))
RAISED: Final = {
    "remapped_rows_pending": "row_remap_pending",
    "remapped_rows_failed": "row_remap_failed",
}
"""Device flags that count as an event when set."""

History = deque[float | None]


@dataclass(slots=True)
class DeviceState:
    """The current state of one device."""

    identity: r.DeviceIdentity
    values: dict[str, float] = field(default_factory=dict)
    history: dict[str, History] = field(default_factory=dict)
    reasons: tuple[str, ...] | None = None
    """Throttle reasons in the latest reading; None if it had none."""
    unavailable: dict[str, str] = field(default_factory=dict)
    processes: tuple[dict[str, Any], ...] | None = None
    """Processes that use the device; None if the driver does not report them."""
    energy_start_j: float | None = None
    answering: bool = True
    """Whether the last sample had a reading from this device."""
    events: Counter[str] = field(default_factory=Counter)
    """How often each kind of event was reported or each flag became set since the recording started."""
    xids: Counter[int] = field(default_factory=Counter)
    """How often each XID was reported."""
    reported: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))
    """How often each XID was reported by the driver's library, and in the kernel log."""
    last_xid: int | None = None
    rates: dict[str, float] = field(default_factory=dict)
    """Per-second increase in each running total, between its last two readings."""
    read_s: dict[str, float] = field(default_factory=dict)
    """When each running total was last read."""
    running_over: set[str] = field(default_factory=set)
    """Running byte totals that wrap at 32 bits, so their growth is unknown."""
    spinning: SpinWatch | None = None
    """Whether the device is busy without work; None if its utilisation metrics cannot show that."""
    processes_s: float | None = None
    """When the processes were last reported, which happens whenever anything about them changes."""


@dataclass(slots=True)
class LiveState:
    """Everything that a recording has reported so far."""

    header: r.Recording | None = None
    devices: dict[int, DeviceState] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    host_history: dict[str, History] = field(default_factory=dict)
    host_rates: dict[str, float] = field(default_factory=dict)
    """Per-second increase in the host's running totals, between the last two samples."""
    metadata: dict[str, Any] = field(default_factory=dict)
    events: deque[r.DriverEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    host_events: Counter[str] = field(default_factory=Counter)
    """How often each kind of event was reported that names no recorded device, e.g. by an NVSwitch."""
    ports: list[PortTotals] = field(default_factory=list)
    """Port counters at the start and at the latest reading."""
    end: r.RecordingEnd | None = None
    stopped: bool = False
    """Whether no more readings can arrive because the process that wrote them exited or was lost."""
    samples: int = 0
    last_s: float | None = None
    """Monotonic time of the last sample."""
    last_unix_s: float | None = None
    _host_s: float | None = None
    _slow_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds from the recording's first line to its last sample."""
        if self.header is None or self.last_s is None:
            return 0.0
        return self.last_s - self.header.monotonic_s

    def apply(self, records: Iterable[Any]) -> None:
        """Handle records; kinds that say nothing about the current state are ignored."""
        for record in records:
            match record:
                case r.Recording():
                    self.header = record
                    self.devices = {d.physical_index: _device(d, record) for d in record.devices}
                case r.DevicesAppeared() if self.header is not None:
                    self.devices |= {d.physical_index: _device(d, self.header) for d in record.devices}
                case r.Sample():
                    self._sample(record)
                case r.UnavailableMetrics():
                    self._unavailable(record)
                case r.DeviceProcesses():
                    self._processes(record)
                case r.DriverEvent():
                    self._event(record)
                case r.Mark():
                    self.metadata.update(record.metadata)
                case r.RecordingEnd():
                    self.end = record
                case _:
                    self._note_ports(record)

    def _note_ports(self, record: Any) -> None:
        if isinstance(record, PortTotals):
            self.ports = [*self.ports[:1], record]

    def _sample(self, sample: r.Sample) -> None:
        self._host(sample)
        self.samples += 1
        self.last_s, self.last_unix_s = sample.monotonic_s, sample.unix_s
        for index, device in self.devices.items():
            reading = sample.devices.get(str(index))
            device.answering = reading is not None and bool(reading.values)
            values = {} if reading is None else reading.values
            _count_raised(device, values)
            _note_rates(device, values, sample.monotonic_s)
            if sample.lane == "slow":
                self._note_rest(device)
            fast = {m for m in device.values if m in METRICS and METRICS[m].lane == "fast"}
            for metric in fast - values.keys():
                del device.values[metric]
            device.values.update(values)
            if device.spinning is not None:
                limit_w = limit_of(device.identity, device.values)
                device.spinning.take(sample.monotonic_s, values, limit_w=limit_w)
            device.reasons = None if reading is None else reading.throttle_reasons
            if device.energy_start_j is None:
                device.energy_start_j = values.get("energy_j")
            _remember(device.history, values)
            for metric in values:
                device.unavailable.pop(metric, None)
        if sample.lane == "slow":
            self._slow_s = sample.monotonic_s

    def _note_rest(self, device: DeviceState) -> None:
        """Record that processes missing from the last reading have used no CPU time since then."""
        if device.processes_s is not None and self._slow_s is not None and device.processes_s < self._slow_s:
            device.processes = tuple(
                {**process, "cpu_percent": 0.0} if "cpu_percent" in process else process
                for process in device.processes or ()
            )

    def _host(self, sample: r.Sample) -> None:
        """Handle the host's readings; most fast-lane samples have none."""
        if not sample.host:
            return
        if self._host_s is not None and sample.monotonic_s > self._host_s:
            span_s = sample.monotonic_s - self._host_s
            self.host_rates = {
                name: (total - self.host[name]) / span_s
                for name, total in sample.host.items()
                if name.startswith(("disk_", "net_")) and name in self.host
            }
        self._host_s = sample.monotonic_s
        self.host.update(sample.host)
        _remember(self.host_history, sample.host)

    def _unavailable(self, record: r.UnavailableMetrics) -> None:
        device = self.devices.get(record.physical_index)
        if device is not None:
            device.unavailable.update(record.reasons)
            for metric in record.reasons:
                device.values.pop(metric, None)

    def _event(self, record: r.DriverEvent) -> None:
        event = named_event(record)
        if event is None or event.event == r.KERNEL_LOG:  # not an event, or something that was not read
            return
        self.events.append(event)
        device = None if event.physical_index is None else self.devices.get(event.physical_index)
        if device is None:
            self.host_events[event.title] += 1
            return
        source, _, code = event.title.partition(" ")
        if source != "xid" or not code.isdigit():
            device.events[event.event] += 1
            return
        # most XIDs are reported twice, by the library and in the log, and some only in the log
        device.last_xid = int(code)
        device.reported[event.code is None][device.last_xid] += 1
        device.xids[device.last_xid] = max(counts[device.last_xid] for counts in device.reported)
        device.events["xid"] = device.xids.total()

    def _processes(self, record: r.DeviceProcesses) -> None:
        for key, entry in record.devices.items():
            device = self.devices.get(int(key))
            if device is not None:
                rows = entry.get("processes")
                device.processes = None if rows is None else _with_shares(device, rows, record.monotonic_s)
                device.processes_s = record.monotonic_s


def _device(identity: r.DeviceIdentity, header: r.Recording) -> DeviceState:
    watch = SpinWatch(longest_gap_s=longest_gap_s(header.fast_interval_s)) if is_judged(identity) else None
    return DeviceState(identity=identity, unavailable=dict(identity.unavailable), spinning=watch)


def _note_rates(device: DeviceState, values: dict[str, float], now_s: float) -> None:
    for metric in values.keys() & COUNTERS:
        before, at_s = device.values.get(metric), device.read_s.get(metric)
        device.rates.pop(metric, None)
        device.read_s[metric] = now_s
        if before is None or at_s is None or now_s <= at_s:
            continue
        if metric.endswith("_bytes") and values[metric] < before < SHORT_COUNTER_BYTES:
            device.running_over.add(metric)
        elif values[metric] >= before and metric not in device.running_over:
            device.rates[metric] = (values[metric] - before) / (now_s - at_s)


def _with_shares(
    device: DeviceState, processes: list[dict[str, Any]], now_s: float
) -> tuple[dict[str, Any], ...]:
    """Add `cpu_percent` (100 is one CPU) to each process that was listed before and reports CPU time."""
    before = {_same(process): process for process in device.processes or ()}
    span_s = 0.0 if device.processes_s is None else now_s - device.processes_s
    return tuple(_with_share(process, before.get(_same(process)), span_s) for process in processes)


def _same(process: dict[str, Any]) -> tuple[Any, Any]:
    return process["pid"], process.get("started_ticks")


def _with_share(process: dict[str, Any], before: dict[str, Any] | None, span_s: float) -> dict[str, Any]:
    if before is None or span_s <= 0 or "cpu_s" not in process or "cpu_s" not in before:
        return process
    return {**process, "cpu_percent": max(0.0, (process["cpu_s"] - before["cpu_s"]) / span_s * 100)}


def _count_raised(device: DeviceState, values: dict[str, float]) -> None:
    """Count each time a flag becomes set; a flag already set at the first reading does not count."""
    for metric, event in RAISED.items():
        if values.get(metric) == 1.0 and device.values.get(metric) == 0.0:
            device.events[event] += 1


def _remember(history: dict[str, History], values: dict[str, float]) -> None:
    """Append to every history line; None if this sample has no reading."""
    for name in values.keys() - history.keys():
        history[name] = deque(maxlen=HISTORY)
    for name, line in history.items():
        line.append(values.get(name))
