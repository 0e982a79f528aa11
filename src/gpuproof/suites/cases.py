"""Build cases from recipes and assign them to hosts; typos fail early here, not on nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from gpuproof.config.models import RunConfig
from gpuproof.config.rules import require_workload
from gpuproof.datasets.catalogue import prepared_file
from gpuproof.records.case import (
    CASE_SCHEMA_VERSION,
    Case,
    CollectiveWork,
    CommandWork,
    InferenceWork,
    Placement,
    ProbeWork,
    ServingWork,
    StartMode,
    TrainingWork,
    Work,
)
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.records.work.command import CommandSpec, fill_template, value_text
from gpuproof.records.work.serving import ServingSpec
from gpuproof.suites.base import HostPlace, LaunchKey

CASE_ID = "main"
AT, AND = "@", "+"
"""Separators between a case name and its hosts, and between hosts."""
LONGEST_HOST = 120
"""Maximum total length of host names in a case name, which is also a folder name."""


def _start_mode(config: RunConfig, *, is_sweep: bool) -> StartMode:
    """Choose how launches start: as fresh processes, unless a sweep needs no interval over launches."""
    if config.run.start != "auto":
        return config.run.start
    if config.kind == "command":
        return "exec"  # torch is not involved in this case
    if config.training.framework != "torch":
        return "exec"
    once = config.run.repeats == 1 and config.distributed.nproc == 1 and not config.training.compile.enabled
    return "fork" if is_sweep and once else "exec"


def described_hosts(launch: CaseRecords) -> frozenset[str]:
    """Return the hosts with hardware descriptions from this launch."""
    return frozenset(environment.host for environment in launch.of(Environment))


def describing(case: Case, hosts: Collection[str]) -> Case:
    """Return a case that describes its hosts, unless enough hosts are already described.

    The description is the same for every launch and takes time to collect, and a lost launch has not reported
    one.
    """
    return replace(case, capture_env=case.capture_env and len(hosts) < case.placement.num_hosts)


def build_case(
    config: RunConfig,
    replicate: int,
    *,
    case_id: str = CASE_ID,
    is_sweep: bool = False,
    serving: ServingSpec | None = None,
    arrival_seed: int | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Case:
    """Build one launch of a recipe.

    For kind `serving`, `serving` is the recipe's block for this launch; `fields` fills in a command template.

    Raises:
        UsageError: the workload is unknown, its options are wrong, or it cannot use the data.
    """
    return Case(
        schema_version=CASE_SCHEMA_VERSION,
        case_id=case_id,
        replicate=replicate,
        capture_env=config.run.capture_env,
        placement=_placement(config),
        monitor=config.monitoring if config.monitoring.enabled else None,
        start=_start_mode(config, is_sweep=is_sweep),
        work=CommandWork(command=_command(config, fields or {}), parallel=config.distributed)
        if config.kind == "command"
        else _work(config, serving, arrival_seed),
    )


def _command(config: RunConfig, fields: Mapping[str, Any]) -> CommandSpec:
    """Fill in the template; {output_dir} and {python} are left for the worker to fill in."""
    command = config.command

    def put(word: object) -> str:
        return fill_template(value_text(word), fields)

    return CommandSpec(
        argv=tuple(map(put, command.argv)),
        cwd=None if command.cwd is None else put(command.cwd),
        env={name: None if value is None else put(value) for name, value in command.env.items()},
        collect=tuple(map(put, command.collect)),
        metrics=None if command.metrics is None else put(command.metrics),
        time_limit_s=command.time_limit_s,
        fields=dict(fields),
    )


def _work(config: RunConfig, serving: ServingSpec | None, arrival_seed: int | None) -> Work:
    if config.kind == "collective":
        return CollectiveWork(collective=config.collective, parallel=config.distributed)
    if config.kind == "probe":
        return ProbeWork(probe=config.probe, parallel=config.distributed)
    chosen, data = require_workload(config), config.data
    common: dict[str, Any] = {
        "model": replace(config.model, options=to_json(chosen.options)),
        "data": data,
        "data_file": prepared_file(
            data.name, loading=data.loading, split=data.split, image_size=chosen.shape.shape[-1]
        ),
        "training": config.training,
        "window": config.benchmark,
        "profiling": config.profiling,
        "parallel": config.distributed,
    }
    if config.kind == "training":
        return TrainingWork(**common)
    if config.kind == "inference":
        return InferenceWork(inference=config.inference, **common)
    assert config.kind == "serving"  # a load test's recipes are of the two kinds handled above
    assert serving is not None
    return ServingWork(inference=config.inference, serving=serving, arrival_seed=arrival_seed, **common)


def _num_replicas(config: RunConfig) -> int:
    """Return the number of devices per process; with TensorFlow, one process uses all ranks' devices."""
    return config.distributed.nproc if config.training.framework == "tensorflow" else 1


def _placement(config: RunConfig) -> Placement:
    distributed = config.distributed
    return Placement(
        num_hosts=distributed.nodes,
        ranks_per_host=distributed.nproc // _num_replicas(config),
        device=distributed.device,
        devices=distributed.devices,
    )


def build_rounds(
    config: RunConfig,
    case_id: str,
    groups: Sequence[Sequence[HostPlace]],
    *,
    rounds: int,
    done: Collection[LaunchKey],
) -> Iterator[Case]:
    """Yield launches of a recipe on each group of hosts, in rounds, skipping finished and running ones.

    Each case is built lazily.

    Raises:
        UsageError: the recipe cannot run.
    """
    for replicate in range(rounds):
        for places in groups:
            if (placed_name(case_id, *places), replicate) not in done:
                yield place_case(build_case(config, replicate, case_id=case_id), *places)


def place_case(case: Case, *places: HostPlace) -> Case:
    """Return the case for these hosts; several hosts form one job, in which the first is node rank 0.

    Every host runs as many ranks as the inventory lists for the host with the fewest, or as the recipe
    requests if the inventory lists none. The case is named after its hosts; for a case on this machine, the
    name is unchanged.
    """
    hosts = tuple(place.name for place in places if place.name)
    if not hosts:
        return case
    ranks = min((n for place in places if (n := place.num_devices) is not None), default=None)
    placement = replace(
        case.placement,
        hosts=hosts,
        num_hosts=len(hosts),
        ranks_per_host=case.placement.ranks_per_host if ranks is None else ranks,
    )
    return replace(case, case_id=placed_name(case.case_id, *places), placement=placement)


def placed_name(case_id: str, *places: HostPlace) -> str:
    """Return the id that `place_case` assigns to a case.

    >>> placed_name("pair", HostPlace(name="node 1"), HostPlace(name="b+c"))
    'pair@node%201+b%2Bc'
    """
    hosts = [place.name for place in places if place.name]
    named = AND.join(folder_name(host)[: LONGEST_HOST // len(hosts)] for host in hosts)
    return f"{case_id}{AT}{named}" if hosts else case_id


def folder_name(host: str) -> str:
    """Format a host's name as part of a path; any name is allowed.

    >>> folder_name("node 1/'x'")
    'node%201%2F%27x%27'
    """
    return quote(host, safe="")[:LONGEST_HOST]
