"""Stages that are probes: one property of devices, links or a disk, and silent corruption of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.work.probe import ProbeName
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import Site, StageCase, first_devices, over_all

PROBE_S = 60.0
"""Expected of a probe's own work on one host."""


def links(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the copies from and to the host, and between devices: one rank a host goes through all."""
    yield from _on_hosts(site, options, "links", "link", seconds=PROBE_S, devices=site.devices)


def pattern(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the memory test, all devices of a host at once."""
    yield from _on_hosts(site, options, "pattern", "pattern", seconds=PROBE_S, is_per_device=True)


def fingerprint(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the same work on every device: of all hosts compared together, of one device with its own."""
    yield from _fingerprints(config, options, site, "fingerprint")


def fingerprint_hot(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the same once more, while the devices are hot from the soak."""
    yield from _fingerprints(config, options, site, "fingerprint-hot")


def _fingerprints(config: RunConfig, options: ValidateOptions, site: Site, name: str) -> Iterator[StageCase]:
    spec = replace(config.probe.fingerprint, **options.probes.get("fingerprint", {}))
    seconds = float(spec.rounds) * (float(spec.heat_s) + 1)
    yield from _on_hosts(site, options, name, "fingerprint", seconds=seconds, is_per_device=True)


def overlap(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield products with an all-reduce beside them, over all devices."""
    if len(site.places) * min(site.count_on(place) for place in site.places) < 2:
        return
    yield over_all(
        site, "overlap", values=_values("overlap", options), seconds=options.start_s + PROBE_S, repeats=1
    )


def storage(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield a file written and read on each host, in the folder that the user names; else nothing."""
    if options.storage_dir is not None:
        folder = {"folder": options.storage_dir}
        yield from _on_hosts(site, options, "storage", "storage", seconds=PROBE_S, values=folder)


def nccl_tests(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield NVIDIA's program on each host; where it is not installed the launch says so."""
    yield from _on_hosts(site, options, "nccl-tests", "nccl_tests", seconds=PROBE_S, devices=site.devices)


def _on_hosts(
    site: Site,
    options: ValidateOptions,
    name: str,
    probe: ProbeName,
    *,
    seconds: float,
    devices: tuple[int, ...] | None = None,
    is_per_device: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Iterator[StageCase]:
    """Yield a probe on each host by itself; of each device, a rank each, or one rank for all."""
    for place in site.places:
        count = site.count_on(place) if is_per_device else 1
        yield StageCase(
            name=name,
            places=(place,),
            ranks_per_host=count,
            devices=first_devices(site, count) if is_per_device else devices,
            values=_values(probe, options, **(values or {})),
            seconds=options.start_s + seconds,
        )


def _values(probe: ProbeName, options: ValidateOptions, **values: Any) -> dict[str, Any]:
    keys = {**options.probes.get(probe, {}), **values}
    return {"kind": "probe", "probe": {"name": probe, **({probe: keys} if keys else {})}}
