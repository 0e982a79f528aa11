"""Metric families returned by a scrape, for devices, their processes, events and the host.

Input: the current state (`LiveState`). Output: families for `prometheus_client`, under our names and, if DCGM
has the same metric, also under DCGM's names with DCGM's labels. The labels of a MIG instance contain its
parent GPU and `GPU_I_ID`; the labels of a GPU contain the pod or batch job if all its processes belong to a
single pod or job. Missing readings are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    UntypedMetricFamily,
)

from gpuproof.observe.live_state import RAISED, DeviceState, LiveState
from gpuproof.records import metrics as catalogue
from gpuproof.records.metrics import DCGM_FACTORS, HOST_METRICS, METRICS, THROTTLE_COUNTERS
from gpuproof.records.readings import NVIDIA_REASON_BITS

LABELS: Final = ("index", "uuid", "name", "host")
OWNER_LABELS: Final = ("pod", "namespace", "container", "slurm_job")
DCGM_LABELS: Final = (
    *("gpu", "UUID", "name", "Hostname", "pci_bus_id"),
    *("GPU_I_ID", "pod", "namespace", "container", "hpc_job"),
)
"""DCGM's labels, except its `modelName`, which `promtool check metrics` rejects because of its spelling.
Prometheus treats an empty label as absent."""
EVENTS_OF_ALL: Final = ("lost", "recovered", "hung", "unreadable")
"""Events that the sampler itself detects on every device, so their absence is reported as 0 instead of
omitted."""
_ANNOUNCED: Final = {"nvidia": ("xid", "ecc_uncorrected"), "fake": ("xid", "ecc_uncorrected")}
"""Vendor → the events that its driver reports from the start, if events can be read."""
_MIB: Final = 2.0**20

Family = GaugeMetricFamily | CounterMetricFamily | UntypedMetricFamily
Owner = tuple[str, ...]
"""The values of `OWNER_LABELS`, each empty if the process has no such owner."""


def families(state: LiveState, *, fresh: bool) -> Iterator[Metric]:
    """Return all families; for stale readings, only report that they are stale."""
    yield GaugeMetricFamily(
        "gpuproof_sampler_up", "1 while readings arrive, 0 after they have stopped", value=float(fresh)
    )
    if state.header is None or not fresh:
        return
    if state.last_unix_s is not None:
        yield GaugeMetricFamily(
            "gpuproof_last_sample_timestamp_seconds",
            "when the last sample was taken",
            value=state.last_unix_s,
        )
    exported = _Exported(state, state.header.host)
    yield from exported.identities()
    for row in METRICS.values():
        if row.name not in THROTTLE_COUNTERS:  # combined into one metric with a label `reason`
            yield from exported.metric(row)
    yield from exported.memory_left()
    yield from exported.throttling()
    yield from exported.spinning()
    yield from exported.events()
    yield from exported.owners()
    yield from _host(state, state.header.host)
    yield from _host_events(state, state.header.host)
    yield from _ports(state, state.header.host)


class _Exported:
    """The devices in one snapshot of the live state, each with its labels computed once."""

    def __init__(self, state: LiveState, host: str) -> None:
        self._devices = tuple(state.devices.values())
        self._ours = {d.identity.physical_index: _labels(d, host) for d in self._devices}
        self._theirs = {d.identity.physical_index: _dcgm_labels(d, state, host) for d in self._devices}

    def identities(self) -> Iterator[Metric]:
        """Report each device's identity, and whether it responds."""
        info = InfoMetricFamily("gpuproof_gpu", "identity of each device", labels=LABELS)
        up = GaugeMetricFamily("gpuproof_gpu_up", "1 while the device responds, otherwise 0", labels=LABELS)
        for device in self._devices:
            info.add_metric(self._of(device), _facts(device))
            up.add_metric(self._of(device), float(device.answering))
        yield from (family for family in (info, up) if family.samples)

    def metric(self, row: catalogue.Metric) -> Iterator[Metric]:
        """Yield one metric under our name, and also under DCGM's if there is one.

        DCGM's metrics are untyped: its counters lack the `_total` suffix that Prometheus' own rules require
        for counters.
        """
        kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
        family = kind(row.exported, row.description, labels=LABELS)
        yield from self._filled(family, lambda d: _value(d, row), row.unit.factor)
        if row.dcgm is not None:
            factor = DCGM_FACTORS[row.dcgm_unit]
            yield from self._under_dcgms_name(row.dcgm, row.description, lambda d: _value(d, row), factor)

    def memory_left(self) -> Iterator[Metric]:
        """Yield free memory as counted by the driver, excluding the driver's reserved memory."""
        text = "device memory that is neither in use nor reserved"
        ours = GaugeMetricFamily("gpuproof_gpu_memory_free_bytes", text, labels=LABELS)
        yield from self._filled(ours, _free_bytes, 1.0)
        yield from self._under_dcgms_name("DCGM_FI_DEV_FB_FREE", text, _free_bytes, 1 / _MIB)
        share = "fraction of unreserved memory that is in use"
        yield from self._under_dcgms_name("DCGM_FI_DEV_FB_USED_PERCENT", share, _used_share, 1.0)

    def throttling(self) -> Iterator[Metric]:
        """Return each current reason as 0 or 1, and each throttled-time counter, labelled by `reason`."""
        now = GaugeMetricFamily(
            "gpuproof_gpu_throttle_reason",
            "1 while the reason applies; a device that does not report it has no line",
            labels=[*LABELS, "reason"],
        )
        spent = CounterMetricFamily(
            "gpuproof_gpu_throttle_seconds",
            "time below the requested clock, by reason",
            labels=[*LABELS, "reason"],
        )
        for device in self._devices:
            labels = self._of(device)
            for metric, reason in THROTTLE_COUNTERS.items():
                if device.reasons is not None and reason != "thermal":
                    now.add_metric([*labels, reason], float(reason in device.reasons))
                if metric in device.values and device.answering:
                    spent.add_metric([*labels, reason], device.values[metric])
        yield from (family for family in (now, spent) if family.samples)
        text = "bit mask of the reasons that limit the clock now"
        yield from self._under_dcgms_name("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", text, _reason_bits, 1.0)

    def spinning(self) -> Iterator[Metric]:
        """Report whether each device is busy without work; no line if its readings cannot show that."""
        text = "1 after ten seconds at full utilisation and low power without memory traffic"
        family = GaugeMetricFamily("gpuproof_gpu_busy_without_work", text, labels=LABELS)
        yield from self._filled(family, _spinning, 1.0)

    def events(self) -> Iterator[Metric]:
        """Count the events since the exporter started, by kind, and XIDs by code."""
        kinds = CounterMetricFamily(
            "gpuproof_gpu_events",
            "driver events since the exporter started, by kind; flags count when they become set",
            labels=[*LABELS, "event"],
        )
        codes = CounterMetricFamily(
            "gpuproof_gpu_xid_errors", "XIDs since the exporter started, by code", labels=[*LABELS, "xid"]
        )
        for device in self._devices:
            labels = self._of(device)
            for event, times in {**dict.fromkeys(_expected(device), 0), **device.events}.items():
                kinds.add_metric([*labels, event], times)
            for code, times in sorted(device.xids.items()):
                codes.add_metric([*labels, str(code)], times)
        yield from (family for family in (kinds, codes) if family.samples)
        yield from self._under_dcgms_name(
            "DCGM_FI_DEV_XID_ERRORS", "the last XID", lambda d: d.last_xid and float(d.last_xid), 1.0
        )

    def owners(self) -> Iterator[Metric]:
        """Return the number of processes and their memory per device and pod, container or batch job."""
        num = GaugeMetricFamily(
            "gpuproof_gpu_processes", "processes on the device, by owner", labels=[*LABELS, *OWNER_LABELS]
        )
        used = GaugeMetricFamily(
            "gpuproof_gpu_process_memory_bytes",
            "device memory of processes, by owner; no line if the driver does not report it",
            labels=[*LABELS, *OWNER_LABELS],
        )
        for device in self._devices:
            for owner, processes in _by_owner(device).items():
                num.add_metric([*self._of(device), *owner], len(processes))
                amounts = [p["mem_used_bytes"] for p in processes if p.get("mem_used_bytes") is not None]
                if len(amounts) == len(processes):
                    used.add_metric([*self._of(device), *owner], sum(amounts))
        yield from (family for family in (num, used) if family.samples)

    def _of(self, device: DeviceState) -> list[str]:
        return self._ours[device.identity.physical_index]

    def _filled(
        self, family: Family, value: Callable[[DeviceState], float | None], factor: float
    ) -> Iterator[Metric]:
        """Add a line for each device that has the value; return the family if any device has it."""
        labelled = self._theirs if isinstance(family, UntypedMetricFamily) else self._ours
        listed = set()
        for device in self._devices:
            number, labels = value(device), labelled[device.identity.physical_index]
            # DCGM's labels are those of all compute instances on a GPU instance
            if number is not None and tuple(labels) not in listed:
                listed.add(tuple(labels))
                family.add_metric(labels, number * factor)
        if family.samples:
            yield family

    def _under_dcgms_name(
        self, name: str, text: str, value: Callable[[DeviceState], float | None], factor: float
    ) -> Iterator[Metric]:
        family = UntypedMetricFamily(name, f"{text} (DCGM's name and unit)", labels=DCGM_LABELS)
        yield from self._filled(family, value, factor)


def _labels(device: DeviceState, host: str) -> list[str]:
    identity = device.identity
    return [str(identity.physical_index), identity.uuid or "", identity.name, host]


def _dcgm_labels(device: DeviceState, state: LiveState, host: str) -> list[str]:
    """Identify a MIG instance by its GPU and its number on that GPU, as DCGM does."""
    whole, instance = device.identity, ""
    parent = device.identity.static.get("mig_parent_uuid")
    if parent is not None:
        instance = str(device.identity.static.get("mig_gpu_instance_id", ""))
        whole = next((d.identity for d in state.devices.values() if d.identity.uuid == parent), whole)
    owners = list(_by_owner(device))
    owner = owners[0] if len(owners) == 1 else ("",) * len(OWNER_LABELS)
    index = str(whole.physical_index)
    return [index, whole.uuid or "", whole.name, host, whole.pci_bus_id or "", instance, *owner]


def _facts(device: DeviceState) -> dict[str, str]:
    identity = device.identity
    static = {
        "driver_version": "driver_version",
        "gpu_instance_id": "mig_gpu_instance_id",
        "compute_instance_id": "mig_compute_instance_id",
        "parent_uuid": "mig_parent_uuid",
    }
    facts = {label: str(identity.static.get(fact, "")) for label, fact in static.items()}
    return {"vendor": identity.vendor, "pci_bus_id": identity.pci_bus_id or "", **facts}


def _value(device: DeviceState, row: catalogue.Metric) -> float | None:
    if row.kind != "static":
        return device.values.get(row.name) if device.answering else None
    return device.identity.number(row.name)


def _free_bytes(device: DeviceState) -> float | None:
    used, total = device.values.get("mem_used_bytes"), device.identity.number("mem_total_bytes")
    if used is None or total is None or not device.answering:
        return None
    return max(0.0, total - device.values.get("mem_reserved_bytes", 0.0) - used)


def _used_share(device: DeviceState) -> float | None:
    free, used = _free_bytes(device), device.values.get("mem_used_bytes", 0.0)
    return None if free is None or free + used <= 0 else used / (free + used)


def _spinning(device: DeviceState) -> float | None:
    watch = device.spinning
    return float(watch.now is not None) if watch is not None and watch.can_tell else None


def _reason_bits(device: DeviceState) -> float | None:
    """Recombine NVML's bits; other vendors' reasons have no such bits."""
    if device.identity.vendor != "nvidia" or device.reasons is None:
        return None
    return float(sum(bit for bit, reason in NVIDIA_REASON_BITS.items() if reason in device.reasons))


def _expected(device: DeviceState) -> tuple[str, ...]:
    """List the events that would have been detected; XIDs only if the driver supports them at all."""
    of_flags = [event for metric, event in RAISED.items() if metric in device.values]
    is_heard = "driver_events" not in device.unavailable
    announced = _ANNOUNCED.get(device.identity.vendor, ()) if is_heard else ()
    return (*EVENTS_OF_ALL, *of_flags, *announced)


def _by_owner(device: DeviceState) -> Mapping[Owner, list[dict[str, Any]]]:
    owners: dict[Owner, list[dict[str, Any]]] = {}
    for process in (device.processes or ()) if device.answering else ():
        owner = tuple(str(process.get(label, "")) for label in OWNER_LABELS)
        owners.setdefault(owner, []).append(process)
    return owners


def _ports(state: LiveState, host: str) -> Iterator[Metric]:
    """Return every port's counts since its driver was loaded, as last read (every 10 s)."""
    text = "counters of InfiniBand, RoCE and Ethernet ports and PCIe links, as the kernel names them"
    family = CounterMetricFamily("gpuproof_port_events", text, labels=["host", "port", "counter"])
    for port in state.ports[-1].ports if state.ports else ():
        for name, total in port.without_traffic().items():
            family.add_metric([host, port.name, name], total)
    if family.samples:
        yield family


def _host_events(state: LiveState, host: str) -> Iterator[Metric]:
    """Count the events that name no recorded device: of NVSwitches, and log lines without an address."""
    text = "driver events since the exporter started that name no GPU, by kind, e.g. of NVSwitches"
    family = CounterMetricFamily("gpuproof_host_events", text, labels=["host", "event"])
    for event, times in state.host_events.items():
        family.add_metric([host, event], times)
    if family.samples:
        yield family


def _host(state: LiveState, host: str) -> Iterator[Metric]:
    for name, row in HOST_METRICS.items():
        if name in state.host:
            kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = kind(row.exported, row.description, labels=["host"])
            family.add_metric([host], state.host[name] * row.unit.factor)
            yield family
