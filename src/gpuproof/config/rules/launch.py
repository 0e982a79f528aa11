"""Does a recipe agree with how and where it is launched: this process, a launcher of the user's, the hosts?

`distributed.world_size`, `local_rank` and `node_rank` are facts about a launch, not wishes: under torchrun
(or RANK and WORLD_SIZE set by hand) they must equal the environment's, otherwise the ranks started here.
The sizes of groups must fit the same ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuproof.config.rules.base import Facts, Refusal, Refusals
from gpuproof.records.work.parallel import ArrangementError, ParallelSpec, arrange

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

_VARIABLES = {
    "world_size": ("WORLD_SIZE",),
    "local_rank": ("LOCAL_RANK",),
    "node_rank": ("GROUP_RANK", "NODE_RANK"),
}


def declared_ranks_are_launched(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse each declared fact that the launch contradicts; one of which it says nothing is believed."""
    for name, (value, witness) in _declared_facts(config.distributed, facts.environment).items():
        declared = getattr(config.distributed, name)
        if declared is not None and str(declared) != value:
            yield Refusal(
                keys=(f"distributed.{name}", "distributed.nproc"),
                cause=f"{name} is declared as {declared}, but {witness}",
                next_step="Set it to null, or launch as it says",
            )


def groups_fit_the_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse a size of groups that does not fit the ranks of this launch."""
    ranks = config.distributed
    world_size = _declared_facts(ranks, facts.environment)["world_size"][0]
    if not world_size.isdecimal():
        return  # the launcher's own check says so
    try:
        arrange(
            ranks.strategy,
            world_size=int(world_size),
            shard_size=ranks.shard_size,
            tensor_parallel_size=ranks.tensor_parallel_size,
        )
    except ArrangementError as error:
        keys = (f"distributed.{error.key}", "distributed.nproc", "distributed.strategy")
        yield Refusal(keys=keys, cause=error.cause, next_step=error.next_step)


def _declared_facts(declared: ParallelSpec, environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the value of each fact that is declared, and its source."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return {
            name: (environment[variable].strip(), f"the environment says {variable}={environment[variable]}")
            for name, variables in _VARIABLES.items()
            for variable in variables[::-1]
            if variable in environment
        }
    nproc, nodes = declared.nproc, declared.nodes
    per_host = f" on each of {nodes} hosts" if nodes > 1 else ""
    local = ("0", "the one rank here is 0") if nproc == 1 else ("", f"the {nproc} ranks here have one each")
    return {
        "world_size": (str(nproc * nodes), f"distributed.nproc starts {nproc}{per_host}"),
        "local_rank": local,
        "node_rank": ("0", "this host is the only one") if nodes == 1 else ("", f"there are {nodes} hosts"),
    }


def a_launcher_gives_one_launch(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse ranks, points and repeats of our own under a launcher that starts each rank once.

    Under a suite ranks stay for launch after launch (`launchers/attached.py`).
    """
    if not facts.is_attached or config.suite is not None:
        return
    if config.distributed.nproc > 1:
        yield Refusal(
            keys=("distributed.nproc",),
            cause=f"{config.distributed.nproc} ranks were asked for inside a launch that has its own",
            next_step="Leave it at 1 under torchrun",
        )
    if config.matrix or config.search.kind is not None:
        yield Refusal(
            keys=("matrix" if config.matrix else "search.kind",),
            cause="your own launcher starts each rank once, and each point of a sweep needs a launch",
            next_step="Start the sweep without it, or the launcher once for each point",
        )
    if config.run.repeats > 1:
        yield Refusal(
            keys=("run.repeats",),
            cause="your own launcher starts each rank once, and a repeat needs a launch of its own",
            next_step="Set it to 1 and start the launcher as often as you want repeats",
        )


CHOOSING = ("matrix", "scale")
"""Suites that take of the devices that are named what each case of theirs needs."""


def devices_have_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse devices that are named and that no rank of this launch would use."""
    local, swept = config.distributed, config.matrix
    ranks = facts.environment.get("LOCAL_WORLD_SIZE", "") if facts.is_attached else str(local.nproc)
    is_open = config.suite in CHOOSING or "distributed.nproc" in swept or not ranks.isdecimal()
    if is_open or any(host.gpus is not None for host in facts.hosts or ()):
        return
    lists: Any = swept.get("distributed.devices", [local.devices])
    most = max((len(devices) for devices in lists if isinstance(devices, (list, tuple))), default=0)
    if most > int(ranks):
        yield Refusal(
            keys=("distributed.devices", "matrix.distributed.devices", "distributed.nproc"),
            cause=f"{most} devices are named, and {ranks} of them would be used: a rank uses one",
            next_step=f"Start {most} ranks (--nproc {most}), or name as many devices as ranks",
        )


def one_job_has_its_hosts(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse one job over more hosts than are named."""
    nodes = config.distributed.nodes
    if facts.hosts is None or nodes <= max(1, len(facts.hosts)):
        return
    there = f"there are {len(facts.hosts)}" if facts.hosts else "no hosts are named"
    yield Refusal(
        keys=("distributed.nodes",),
        cause=f"one job over {nodes} hosts, and {there}",
        next_step="Name more hosts, or set it to their number"
        if facts.hosts
        else "Name them with --deployment-file, or set it to 1",
    )


def one_job_has_equal_hosts(_config: RunConfig, facts: Facts) -> Refusals:
    """Refuse one job over hosts with different numbers of GPUs."""
    if facts.is_one_job and len({host.gpus for host in facts.hosts or ()}) > 1:
        yield Refusal(
            keys=("distributed.nodes",),
            cause="the hosts have different numbers of GPUs, and one job starts as many ranks on each",
            next_step="Give all hosts the same `gpus`",
            place=facts.hosts[0].place if facts.hosts else None,
        )


def hosts_are_not_swept(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse a matrix over what the named hosts decide."""
    if not facts.hosts:
        return
    if "distributed.nodes" in config.matrix:
        yield Refusal(
            keys=("matrix.distributed.nodes",),
            cause="the hosts that are named say over how many a job is",
            next_step="Start a run for each number of hosts, with --one-job",
        )
    has_gpus = any(host.gpus is not None for host in facts.hosts)
    if has_gpus and config.distributed.nodes == 1 and "distributed.nproc" in config.matrix:
        yield Refusal(
            keys=("matrix.distributed.nproc",),
            cause="the inventory says how many ranks each host starts (gpus)",
            next_step="Leave `gpus` out of the inventory, or the key out of the matrix",
        )
