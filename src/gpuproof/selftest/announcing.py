"""Simulate driver events during the launches of a made-up fleet, with one recording per host."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from gpuproof import __version__
from gpuproof.records.case import Case
from gpuproof.records.readings import (
    KERNEL_LOG,
    DeviceIdentity,
    DeviceReading,
    DriverEvent,
    Recording,
    Sample,
)
from gpuproof.selftest.fleet import BEGAN_UNIX_S, SETTLED_S, Fleet

RECORDED_S = 20
"""Length of a recording in seconds, which is longer than any launch that completes."""


def recorded_xids(fleet: Fleet, case: Case, host: str) -> Iterator[Any]:
    """Yield a sampler's records of one launch on a host with working devices, including planted XIDs."""
    begin_s = fleet.begins_monotonic_s - SETTLED_S
    indices = range(fleet.num_devices)
    yield Recording(
        host=host,
        pid=1,
        boot_id=None,
        gpuproof_version=__version__,
        unix_s=BEGAN_UNIX_S,
        monotonic_s=begin_s,
        fast_interval_s=1.0,
        slow_interval_s=1.0,
        devices=tuple(_identity(fleet, host, index) for index in indices),
        host_facts={},
    )
    for at_s in range(RECORDED_S):
        reading = DeviceReading(values={"util_gpu_percent": 100.0, "power_w": 600.0}, throttle_reasons=())
        devices = {str(index): reading for index in indices}
        at = {"monotonic_s": begin_s + at_s, "unix_s": BEGAN_UNIX_S + at_s}
        yield Sample(**at, lane="slow", devices=devices, host={})
    for xids in (fleet.planted.xids or ()) if case.case_id == "training" else ():
        for index, number in product(indices, range(xids.times)):
            if fleet.uuid_of(host, index) in xids.gpus:
                pid = f"pid={xids.pids[number % len(xids.pids)]}, name=python, " if xids.pids else ""
                yield DriverEvent(
                    monotonic_s=begin_s + xids.at_s + number,
                    physical_index=index,
                    event=KERNEL_LOG,
                    code=None,
                    message=f"NVRM: Xid (PCI:0000:{index:02x}:00): {xids.code}, {pid}",
                )


def _identity(fleet: Fleet, host: str, index: int) -> DeviceIdentity:
    return DeviceIdentity(
        physical_index=index,
        vendor="fake",
        vendor_index=index,
        framework_index=index,
        uuid=fleet.uuid_of(host, index),
        pci_bus_id=None,
        name=fleet.device_name,
    )
