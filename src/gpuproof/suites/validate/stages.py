"""The stages of a validation, each with a name and its launches.

Each measurement is one function in `STAGES`, which yields what to launch, with which recipe and where. Each
launch has its own recipe and is evaluated by that recipe's suite. Probe stages examine one property of
devices, links or a disk, or look for silent data corruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, Placement
from gpuproof.records.work.parallel import CommunicationProfile
from gpuproof.records.work.probe import ProbeName
from gpuproof.suites.base import HostPlace
from gpuproof.suites.cases import build_case
from gpuproof.suites.points.plan import config_at
from gpuproof.suites.validate.options import StageName, ValidateOptions
from gpuproof.suites.validate.placing import (
    HOST_MEMORY,
    Site,
    Stage,
    StageCase,
    first_devices,
    on_devices,
    over_all,
)

PROBE_S = 60.0
"""Expected duration of a probe's own work on one host."""
WARMUP_SHARE = 0.5
"""Expected warm-up time, as a fraction of the window."""
GEMMS_PER_STEP = 4
PASSES_PER_STEP = 4
COLLECTIVE: Mapping[str, Any] = {
    "operations": ["all_reduce"],
    "min_bytes": "8K",
    "max_bytes": "1G",
    "factor": 8,
}
COMPARED: Mapping[str, Any] = {"operations": ["all_reduce"], "min_bytes": "64M", "max_bytes": "64M"}
"""Size that is large enough for bandwidth, not latency, to dominate."""
COMPARED_S = 10.0
"""Expected duration, not including start-up."""
SWITCHES: Mapping[str, CommunicationProfile] = {
    "peer_to_peer": "no_p2p",
    "fabric": "no_fabric",
    "gpudirect": "no_gpudirect",
}
"""The feature that each profile disables, by the label of the results measured with and without it."""


def links(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield copies to and from the host and between devices; one rank per host runs them all."""
    yield from _on_hosts(site, options, "links", "link", seconds=PROBE_S, devices=site.devices)


def pattern(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the memory test, run on all devices of a host at once."""
    yield from _on_hosts(site, options, "pattern", "pattern", seconds=PROBE_S, is_per_device=True)


def fingerprint(
    config: RunConfig, options: ValidateOptions, site: Site, *, name: str = "fingerprint"
) -> Iterator[StageCase]:
    """Yield the same workload for every device, to compare all hosts and the repeats of each device."""
    of_fingerprint = _values("fingerprint", options)
    spec = config_at(_without_model(config), of_fingerprint).probe.fingerprint
    seconds = float(spec.rounds) * (float(spec.heat_s) + 1)
    yield from _on_hosts(site, options, name, "fingerprint", seconds=seconds, is_per_device=True)


def overlap(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield GEMMs that run concurrently with an all-reduce over all devices."""
    if len(site.places) * min(site.count_on(place) for place in site.places) < 2:
        return
    yield over_all(
        site, "overlap", values=_values("overlap", options), seconds=options.start_s + PROBE_S, repeats=1
    )


def nccl_ras(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield what NCCL reports about its ranks, over all devices; if NCCL is missing, report that."""
    if len(site.places) * min(site.count_on(place) for place in site.places) > 1:
        seconds = options.start_s + PROBE_S
        yield over_all(site, "nccl-ras", values=_values("nccl_ras", options), seconds=seconds, repeats=1)


def storage(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield a file write and read test for each host, in the user's folder; none without a folder."""
    if options.storage_dir is not None:
        folder = {"folder": options.storage_dir}
        yield from _on_hosts(site, options, "storage", "storage", seconds=PROBE_S, values=folder)


def nccl_tests(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield NVIDIA's nccl-tests on each host; if they are not installed, the launch reports that."""
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
    """Yield a probe on each host separately, with one rank per device or one rank for all."""
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


def stages_of(config: RunConfig, options: ValidateOptions, site: Site) -> tuple[Stage, ...]:
    """Return the stages of a recipe in order; after the soak, the hot devices are compared once more."""
    names = options.stages
    if "soak" in names and "fingerprint" in names:
        names = (*names, "fingerprint_hot")
    return tuple(
        Stage(
            name=name,
            is_required=_is_required(name, options),
            cases=tuple(STAGES[name](config, options, site)),
        )
        for name in names
    )


def _is_required(name: StageName, options: ValidateOptions) -> bool:
    """Check whether a stage affects the verdict; one with no disk, or slowed on purpose, does not."""
    is_decisive = name not in ("host_memory", "switched_off", "nccl_ras") and (
        name != "storage" or options.storage_dir is not None
    )
    return is_decisive and not {name, name.removesuffix("_hot")} & {*options.advisory}


def recipe_of(case: StageCase, config: RunConfig) -> RunConfig:
    """Return the recipe for a case's launches.

    Raises:
        UsageError: the recipe cannot be run.
    """
    keys = {
        "benchmark.of_device": True,
        "suite": None,
        "suite_options": {},
        "run.repeats": case.repeats,
        "distributed.nproc": case.ranks_per_host,
        "distributed.devices": None if case.devices is None else list(case.devices),
        **case.values,
    }
    return config_at(config if case.of_model else _without_model(config), keys)


class Recipes:
    """The recipes of a validation, built once each: across hosts, they differ only in placement."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._recipes: dict[str, RunConfig] = {}

    def of(self, case: StageCase) -> RunConfig:
        """Return the recipe for a case's launches.

        Raises:
            UsageError: the recipe cannot be run.
        """
        content = repr((case.of_model, case.repeats, case.ranks_per_host, case.devices, case.values))
        if content not in self._recipes:
            self._recipes[content] = recipe_of(case, self._config)
        return self._recipes[content]


def build_launch(case: StageCase, config: RunConfig, replicate: int, places: Sequence[HostPlace]) -> Case:
    """Build a launch on the hosts that remain for the case.

    Raises:
        UsageError: the recipe cannot be run.
    """
    built = build_case(recipe_of(case, config), replicate, case_id=case.case_id)
    placement = Placement(
        hosts=tuple(place.name for place in places if place.name),
        num_hosts=len(places),
        ranks_per_host=case.ranks_per_host,
        device=built.placement.device,
        devices=case.devices,
    )
    return replace(built, placement=placement)


def _without_model(config: RunConfig) -> RunConfig:
    """Return a recipe with only the parts that every kind of run uses."""
    blocks = {name: getattr(config, name) for name in ("distributed", "monitoring", "run")}
    return RunConfig(kind="inference", **blocks)


def _time_options(options: ValidateOptions) -> dict[str, Any]:
    return {
        "data.name": "synthetic",
        "benchmark.warmup_steps": 5,
        "benchmark.measure_by": "time",
        "benchmark.measure_seconds": options.window_s,
        "benchmark.measure_steps": None,
    }


def _gemm(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    size = dict.fromkeys(("m", "n", "k"), options.gemm_size)
    seconds = options.start_s + options.window_s * (1 + WARMUP_SHARE)
    for precision in options.precisions:
        values = {
            **_time_options(options),
            "model": {"name": "gemm", "options": size},
            "data.batch_size": GEMMS_PER_STEP,
            "training.precision": precision,
        }
        shared: dict[str, Any] = {"seconds": seconds, "repeats": config.run.repeats, "alone": options.alone}
        yield from on_devices(site, f"gemm-{precision}", values, **shared)


def _memory(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    values = {
        **_time_options(options),
        "model": {"name": "memory", "options": {"buffer_bytes": options.memory_buffer_bytes}},
        "data.batch_size": PASSES_PER_STEP,
        "training.precision": "fp32",
    }
    seconds = options.start_s + options.window_s * (1 + WARMUP_SHARE)
    shared: dict[str, Any] = {"seconds": seconds, "repeats": config.run.repeats, "alone": options.alone}
    yield from on_devices(site, "memory", values, **shared)


def _host_memory(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the same passes over each host's own memory, by one rank with all CPUs that it may use."""
    for place in site.places:
        yield StageCase(
            name=HOST_MEMORY,
            places=(place,),
            ranks_per_host=1,
            values={
                **_time_options(options),
                "model": {"name": "memory", "options": {"buffer_bytes": options.host_memory_buffer_bytes}},
                "data.batch_size": 1,
                "training.precision": "fp32",
                "distributed.device": "cpu",
                "distributed.threads_per_rank": None,
                # Other stages describe the host and wait for its drivers; work on CPUs does not need to.
                "run.capture_env": config.run.capture_env and len(options.stages) == 1,
            },
            seconds=options.start_s + options.window_s * (1 + WARMUP_SHARE),
            repeats=config.run.repeats,
        )


def _collective(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    yield from _within_and_over(
        site,
        "collective",
        values={"kind": "collective", "collective": dict(options.collective or COLLECTIVE)},
        seconds=options.start_s + options.collective_s,
        repeats=config.run.repeats,
    )


def _switched_off(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield a large collective, then repeat it without each of the features that should speed it up."""
    if not site.has_devices:
        return
    collective = {**(options.collective or {}), **COMPARED}
    cases = _within_and_over(
        site,
        "switched",
        values={"kind": "collective", "collective": collective},
        seconds=options.start_s + COMPARED_S,
        repeats=config.run.repeats,
    )
    for case in cases:
        switches = ("fabric", "gpudirect") if case.is_over_all else ("peer_to_peer",)
        on = dict.fromkeys(switches, "on")
        yield replace(case, labels=on)
        for switch in switches:
            yield replace(
                case,
                name=f"{case.name}-without-{switch}",
                values={**case.values, "distributed.communication_profile": SWITCHES[switch]},
                labels={**on, switch: "off"},
            )


def _within_and_over(site: Site, name: str, **fields: Any) -> Iterator[StageCase]:
    """Yield a job within each multi-device host, and one across all hosts if there are several."""
    for place in site.places:
        count = site.count_on(place)
        if (place.attached_hosts or 1) > 1:
            yield over_all(site, f"{name}-over", **fields)
        elif count > 1:
            yield StageCase(
                name=f"{name}-within",
                places=(place,),
                ranks_per_host=count,
                devices=first_devices(site, count),
                **fields,
            )
    if len(site.places) > 1:
        yield over_all(site, f"{name}-over", **fields)


def _training(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    shared: dict[str, Any] = {
        "of_model": True,
        "seconds": options.training_minutes * 60,
        "repeats": config.run.repeats,
    }
    everything = over_all(site, "training", values=options.on_gpus, **shared)
    if len(site.places) * everything.ranks_per_host > 1:
        first = site.places[0]
        yield StageCase(
            name="training-one",
            places=(first,),
            ranks_per_host=1,
            devices=first_devices(site, 1),
            is_of_one_device=True,
            values={**options.on_gpus, "distributed.strategy": "ddp"},
            **shared,
        )
    yield everything
    for model in options.models:
        values = {"model": {"name": model}, "data.name": "synthetic", "data.image_size": None}
        yield over_all(site, f"training-{model}", values=values, **shared)
    for strategy in options.strategies:
        values = {**options.on_gpus, "distributed.strategy": strategy}
        yield over_all(site, f"training-{strategy}", values=values, **shared)


def _soak(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    """Yield the soak as launches of limited length, so that after an interruption only the rest runs."""
    launches = ceil(options.soak_s / options.soak_launch_s)
    window = {
        **options.on_gpus,
        "benchmark.measure_by": "time",
        "benchmark.measure_seconds": options.soak_s / launches,
        "benchmark.measure_steps": None,
    }
    seconds = options.training_minutes * 60 + options.soak_s / launches
    yield over_all(site, "soak", of_model=True, values=window, seconds=seconds, repeats=launches)


STAGES: Mapping[StageName, Callable[[RunConfig, ValidateOptions, Site], Iterator[StageCase]]] = {
    "links": links,
    "pattern": pattern,
    "fingerprint": fingerprint,
    "gemm": _gemm,
    "memory": _memory,
    "host_memory": _host_memory,
    "overlap": overlap,
    "collective": _collective,
    "switched_off": _switched_off,
    "nccl_tests": nccl_tests,
    "nccl_ras": nccl_ras,
    "storage": storage,
    "training": _training,
    "soak": _soak,
    "fingerprint_hot": partial(fingerprint, name="fingerprint-hot"),  # once more, while hot from the soak
}
