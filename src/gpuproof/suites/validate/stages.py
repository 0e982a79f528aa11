"""The stages of a validation: each a name and the launches that it is made of.

Another measurement is one more function in `STAGES`: it yields what is to be launched, by which recipe and
where. Each launch is a recipe of its own and is concluded by that recipe's suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, Placement
from gpuproof.suites.base import HostPlace
from gpuproof.suites.cases import build_case, placed_name
from gpuproof.suites.points.plan import config_at
from gpuproof.suites.validate.options import StageName, ValidateOptions

START_S = 20.0
"""Expected of the start of a launch: torch is imported, ranks meet."""
WARMUP_SHARE = 0.5
"""Expected of the warm-up, over the window."""
COLLECTIVE_S = 90.0
"""Expected of all sizes of a collective."""
GEMMS_PER_STEP = 4
PASSES_PER_STEP = 4
COLLECTIVE: Mapping[str, Any] = {
    "operations": ["all_reduce"],
    "min_bytes": "8K",
    "max_bytes": "1G",
    "factor": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where it is validated."""

    places: tuple[HostPlace, ...]
    num_devices: int
    """Devices of a host of which the inventory does not say how many it has."""
    devices: tuple[int, ...] | None
    """Which devices of each host, by index; None is the first ones."""
    has_devices: bool
    """Whether ranks have a device each, and not just the processor."""

    def count_on(self, place: HostPlace) -> int:
        """Count the devices of a host that are tested."""
        return place.num_devices or self.num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCase:
    """One launch of a stage, some times over."""

    name: str
    """Without its host."""
    places: tuple[HostPlace, ...]
    """One, or all for one job over them."""
    ranks_per_host: int
    devices: tuple[int, ...] | None = None
    is_over_all: bool = False
    """Whether it is one job over all that there is, be that one host or many."""
    is_of_one_device: bool = False
    """Whether what it says is of a single device."""
    values: Mapping[str, Any]
    """What the recipe is, by dotted key, over what is shared."""
    of_model: bool = False
    """Whether the recipe's own sections of a model are kept."""
    seconds: float
    """That one launch is expected to take."""
    repeats: int = 1

    @property
    def case_id(self) -> str:
        """The name of its launches: with the host, where it is of one of several."""
        return self.name if self.is_over_all else placed_name(self.name, *self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Launches that are measured one after the other, or on several hosts at the same time."""

    name: StageName
    is_required: bool
    cases: tuple[StageCase, ...]

    @property
    def minutes(self) -> float:
        """That it is expected to take on one host."""
        by_host: dict[str, float] = {}
        for case in self.cases:
            for place in case.places:
                by_host[place.name] = by_host.get(place.name, 0.0) + case.seconds * case.repeats
        return max(by_host.values(), default=0.0) / 60


def site_of(config: RunConfig, places: Sequence[HostPlace]) -> Site:
    """Return where a recipe is validated."""
    asked = config.distributed
    return Site(
        places=tuple(places),
        num_devices=asked.nproc,
        devices=asked.devices,
        has_devices=asked.device != "cpu",
    )


def stages_of(config: RunConfig, options: ValidateOptions, site: Site) -> tuple[Stage, ...]:
    """Return the stages that a recipe asks for, in order."""
    return tuple(
        Stage(
            name=name,
            is_required=name not in options.advisory,
            cases=tuple(STAGES[name](config, options, site)),
        )
        for name in options.stages
    )


def recipe_of(case: StageCase, config: RunConfig) -> RunConfig:
    """Return the recipe of a case's launches.

    Raises:
        UsageError: it cannot be run.
    """
    own = {
        "suite": None,
        "suite_options": {},
        "run.repeats": case.repeats,
        "distributed.nproc": case.ranks_per_host,
        "distributed.devices": None if case.devices is None else list(case.devices),
        **case.values,
    }
    base = config if case.of_model else _without_model(config)
    return config_at(base, own)


def build_launch(case: StageCase, config: RunConfig, replicate: int, places: Sequence[HostPlace]) -> Case:
    """Build a launch on the places that are left of the case's.

    Raises:
        UsageError: the recipe cannot be run.
    """
    built = build_case(recipe_of(case, config), replicate, case_id=case.case_id)
    placement = Placement(
        hosts=tuple(place.name for place in places if place.name),
        num_hosts=len(places),
        ranks_per_host=case.ranks_per_host,
        device=config.distributed.device,
        devices=case.devices,
    )
    return replace(built, placement=placement)


def _without_model(config: RunConfig) -> RunConfig:
    """Return a recipe of which only what every kind of run heeds is kept."""
    kept = {name: getattr(config, name) for name in ("distributed", "monitoring", "run")}
    return RunConfig(kind="inference", **kept)


def _first(site: Site, count: int) -> tuple[int, ...] | None:
    return None if site.devices is None else site.devices[:count]


def _on_devices(
    site: Site, name: str, values: Mapping[str, Any], *, seconds: float, repeats: int
) -> Iterator[StageCase]:
    """Yield a launch for each device alone, then one for all of a host at once."""
    told: dict[str, Any] = {"values": values, "seconds": seconds, "repeats": repeats}
    for place in site.places:
        count = site.count_on(place)
        for index in (site.devices or tuple(range(count)))[:count] if site.has_devices else (None,):
            yield StageCase(
                name=f"{name}-one" if index is None else f"{name}-device{index}",
                places=(place,),
                ranks_per_host=1,
                devices=None if index is None else (index,),
                is_of_one_device=True,
                **told,
            )
        if count > 1:
            devices = _first(site, count)
            yield StageCase(
                name=f"{name}-all", places=(place,), ranks_per_host=count, devices=devices, **told
            )


def _timed(options: ValidateOptions) -> dict[str, Any]:
    return {
        "data.name": "synthetic",
        "benchmark.warmup_steps": 5,
        "benchmark.measure_by": "time",
        "benchmark.measure_seconds": options.window_s,
        "benchmark.measure_steps": None,
    }


def _gemm(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    size = dict.fromkeys(("m", "n", "k"), options.gemm_size)
    seconds = START_S + options.window_s * (1 + WARMUP_SHARE)
    for precision in options.gemm_precisions:
        values = {
            **_timed(options),
            "model": {"name": "gemm", "options": size},
            "data.batch_size": GEMMS_PER_STEP,
            "training.precision": precision,
        }
        yield from _on_devices(site, f"gemm-{precision}", values, seconds=seconds, repeats=config.run.repeats)


def _memory(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    values = {
        **_timed(options),
        "model": {"name": "memory", "options": {"buffer_bytes": options.memory_buffer_bytes}},
        "data.batch_size": PASSES_PER_STEP,
        "training.precision": "fp32",
    }
    seconds = START_S + options.window_s * (1 + WARMUP_SHARE)
    yield from _on_devices(site, "memory", values, seconds=seconds, repeats=config.run.repeats)


def _collective(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    told: dict[str, Any] = {
        "values": {"kind": "collective", "collective": dict(options.collective or COLLECTIVE)},
        "seconds": START_S + COLLECTIVE_S,
        "repeats": config.run.repeats,
    }
    for place in site.places:
        count = site.count_on(place)
        if count > 1:
            yield StageCase(
                name="collective-within",
                places=(place,),
                ranks_per_host=count,
                devices=_first(site, count),
                **told,
            )
    if len(site.places) > 1:
        yield _over_all(site, "collective-over", **told)


def _over_all(site: Site, name: str, **told: Any) -> StageCase:
    """Return one job over all devices of all hosts, as many ranks on each as the smallest has."""
    count = min(site.count_on(place) for place in site.places)
    devices = _first(site, count)
    return StageCase(
        name=name, places=site.places, ranks_per_host=count, devices=devices, is_over_all=True, **told
    )


def _training(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    told: dict[str, Any] = {
        "of_model": True,
        "seconds": options.training_minutes * 60,
        "repeats": config.run.repeats,
    }
    everything = _over_all(site, "training", values={}, **told)
    if len(site.places) * everything.ranks_per_host > 1:
        first = site.places[0]
        yield StageCase(
            name="training-one",
            places=(first,),
            ranks_per_host=1,
            devices=_first(site, 1),
            is_of_one_device=True,
            values={"distributed.strategy": "ddp"},
            **told,
        )
    yield everything
    for model in options.models:
        values = {"model": {"name": model}, "data.name": "synthetic", "data.image_size": None}
        yield _over_all(site, f"training-{model}", values=values, **told)
    for strategy in options.strategies:
        yield _over_all(site, f"training-{strategy}", values={"distributed.strategy": strategy}, **told)


def _soak(config: RunConfig, options: ValidateOptions, site: Site) -> Iterator[StageCase]:
    window = {
        "benchmark.measure_by": "time",
        "benchmark.measure_seconds": options.soak_s,
        "benchmark.measure_steps": None,
    }
    seconds = options.training_minutes * 60 + options.soak_s
    yield _over_all(site, "soak", of_model=True, values=window, seconds=seconds)


STAGES: Mapping[StageName, Callable[[RunConfig, ValidateOptions, Site], Iterator[StageCase]]] = {
    "gemm": _gemm,
    "memory": _memory,
    "collective": _collective,
    "training": _training,
    "soak": _soak,
}
