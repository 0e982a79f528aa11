"""The Prometheus exporter: the latest readings of all devices and the host, at `/metrics`.

In: an iterator of records. Out: an HTTP server, on loopback unless another address is given. A reading that
is not there has no line, and a sampler that stopped takes all readings away with it and shows in
`gpuproof_sampler_up`: a stale value looks like a healthy device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from gpuproof.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.observe.live_state import DeviceState, LiveState
from gpuproof.observe.metric_names import DCGM, EXPORTED, ExportedName
from gpuproof.observe.stream import Records, batches
from gpuproof.records.metrics import THROTTLE_COUNTERS
from gpuproof.records.readings import Sample

LABELS: Final = ("index", "uuid", "name", "host")
_DCGM_LABELS: Final = ("gpu", "UUID", "name", "Hostname")
"""DCGM's labels, but for its `modelName`, whose spelling `promtool check metrics` refuses."""
_STALE_FACTOR: Final = 5.0
"""Readings older than this many intervals are no longer served."""

_HOST_GAUGES: Final = {
    "cpu_percent": ("gpuproof_host_cpu_busy_ratio", 0.01, "share of CPU time that was busy"),
    "cpu_iowait_percent": ("gpuproof_host_cpu_iowait_ratio", 0.01, "share of CPU time that waited for disks"),
    "cpu_max_core_percent": ("gpuproof_host_cpu_busiest_ratio", 0.01, "busy share of the busiest CPU"),
    "load_1min": ("gpuproof_host_load_average", 1.0, "load average over one minute"),
    "mem_used_bytes": ("gpuproof_host_memory_used_bytes", 1.0, "host memory in use"),
    "mem_available_bytes": ("gpuproof_host_memory_available_bytes", 1.0, "host memory to be had"),
    "swap_used_bytes": ("gpuproof_host_swap_used_bytes", 1.0, "swap in use"),
}
_HOST_COUNTERS: Final = {
    "disk_read_bytes": ("gpuproof_host_disk_read_bytes", "bytes read from disks since boot"),
    "disk_write_bytes": ("gpuproof_host_disk_written_bytes", "bytes written to disks since boot"),
    "net_rx_bytes": ("gpuproof_host_network_received_bytes", "bytes received since boot"),
    "net_tx_bytes": ("gpuproof_host_network_sent_bytes", "bytes sent since boot"),
}


@dataclass(slots=True)
class Feed:
    """The state that one thread writes and scrapes read."""

    state: LiveState = field(default_factory=LiveState)
    lock: threading.Lock = field(default_factory=threading.Lock)
    fresh_until_s: float = 0.0
    failure: GpuproofError | None = None
    stopping: bool = False


class DeviceCollector(Collector):
    """Turns the state at the moment of a scrape into metric families."""

    def __init__(self, feed: Feed, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Give all families, each with a line for every device that has the reading."""
        with self._feed.lock:
            state = self._feed.state
            fresh = self._clock() < self._feed.fresh_until_s
            yield GaugeMetricFamily(
                "gpuproof_sampler_up", "1 while readings come, 0 when they stopped", value=float(fresh)
            )
            if state.header is None or not fresh:
                return
            host = state.header.host
            yield _identities(state, host)
            for name in EXPORTED.values():
                yield from _family(name, state, host)
            yield from _throttling(state, host)
            yield from _host(state, host)

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand: what there is depends on the devices."""
        return ()


def _labels(device: DeviceState, host: str) -> list[str]:
    identity = device.identity
    return [str(identity.physical_index), identity.uuid or "", identity.name, host]


def _value(device: DeviceState, name: ExportedName) -> float | None:
    if name.kind != "static":
        return device.values.get(name.metric) if device.answering else None
    return device.identity.number(name.metric)


def _family(name: ExportedName, state: LiveState, host: str) -> Iterator[Metric]:
    """Give one metric under our name, and under DCGM's where it has one."""
    given = [(d, v) for d in state.devices.values() if (v := _value(d, name)) is not None]
    if not given:
        return
    kind = CounterMetricFamily if name.kind == "counter" else GaugeMetricFamily
    ours = kind(name.name, name.help, labels=LABELS)
    for device, value in given:
        ours.add_metric(_labels(device, host), value * name.factor)
    yield ours
    if name.metric in DCGM:
        alias, factor = DCGM[name.metric]
        theirs = UntypedMetricFamily(alias, f"{name.help} (DCGM's name and unit)", labels=_DCGM_LABELS)
        for device, value in given:
            theirs.add_metric(_labels(device, host), value * factor)
        yield theirs


def _identities(state: LiveState, host: str) -> Metric:
    info = InfoMetricFamily("gpuproof_gpu", "who each device is", labels=LABELS)
    for device in state.devices.values():
        identity = device.identity
        facts = {
            "vendor": identity.vendor,
            "pci_bus_id": identity.pci_bus_id or "",
            "driver_version": str(identity.static.get("driver_version", "")),
        }
        info.add_metric(_labels(device, host), facts)
    return info


def _throttling(state: LiveState, host: str) -> Iterator[Metric]:
    """Give each reason of now as 0 or 1, and each counter of throttled time, by a label `reason`."""
    now = GaugeMetricFamily(
        "gpuproof_gpu_throttle_reason",
        "1 while the reason holds; a device that does not tell has no line",
        labels=[*LABELS, "reason"],
    )
    spent = CounterMetricFamily(
        "gpuproof_gpu_throttle_seconds",
        "time held below the asked clock, by reason",
        labels=[*LABELS, "reason"],
    )
    for device in state.devices.values():
        labels = _labels(device, host)
        for metric, reason in THROTTLE_COUNTERS.items():
            if device.reasons is not None and reason != "thermal":
                now.add_metric([*labels, reason], float(reason in device.reasons))
            if metric in device.values and device.answering:
                spent.add_metric([*labels, reason], device.values[metric])
    yield from (family for family in (now, spent) if family.samples)


def _host(state: LiveState, host: str) -> Iterator[Metric]:
    for metric, (name, factor, text) in _HOST_GAUGES.items():
        if metric in state.host:
            gauge = GaugeMetricFamily(name, text, labels=["host"])
            gauge.add_metric([host], state.host[metric] * factor)
            yield gauge
    for metric, (name, text) in _HOST_COUNTERS.items():
        if metric in state.host:
            counter = CounterMetricFamily(name, text, labels=["host"])
            counter.add_metric([host], state.host[metric])
            yield counter


def feed_from(records: Records, feed: Feed, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Keep the feed up to date until the records end; a failure is kept in it."""
    try:
        with closing(batches(records)) as incoming:
            for batch in incoming:
                _take(batch, feed, clock())
                if feed.stopping:
                    break
    except GpuproofError as error:
        feed.failure = error
    with feed.lock:
        feed.fresh_until_s = 0.0


def _take(batch: list[Any], feed: Feed, now_s: float) -> None:
    with feed.lock:
        feed.state.apply(batch)
        if any(isinstance(record, Sample) for record in batch):
            feed.fresh_until_s = now_s + _patience_s(feed.state)


def _patience_s(state: LiveState) -> float:
    interval_s = 1.0 if state.header is None else state.header.fast_interval_s
    return max(2.0, interval_s * _STALE_FACTOR)


@dataclass(frozen=True, slots=True)
class RunningExporter:
    """A running exporter."""

    url: str
    feed: Feed
    reader: threading.Thread
    server: WSGIServer
    server_thread: threading.Thread

    def stop(self) -> None:
        """Let the reader go, which ends the sampler behind its records, and stop to answer."""
        self.feed.stopping = True
        self.reader.join()
        self.close()

    def close(self) -> None:
        """Stop to answer; the reader ends with its records."""
        self.server.shutdown()
        self.server.server_close()
        self.server_thread.join()


def serve(records: Records, *, address: str, port: int) -> RunningExporter:
    """Start to read records and to answer scrapes; port 0 takes a free one.

    Raises:
        EnvironmentUnfitError: the address cannot be listened on.
    """
    feed = Feed()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector(feed))
    try:
        server, server_thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise EnvironmentUnfitError(
            error.strerror or str(error),
            place=f"{address}:{port}",
            next_step="Name another with --address or --port",
        ) from error
    reader = threading.Thread(target=feed_from, args=(records, feed), name="readings", daemon=True)
    reader.start()
    shown = f"[{address}]" if ":" in address else address
    return RunningExporter(
        url=f"http://{shown}:{server.server_port}/metrics",
        feed=feed,
        reader=reader,
        server=server,
        server_thread=server_thread,
    )
