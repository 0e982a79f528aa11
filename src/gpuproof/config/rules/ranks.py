"""Which keys of `distributed` cannot hold together, and does the launch agree with them?

Devices of ranks, how ranks share a model, and how and where a recipe is launched: this process, a launcher
of the user's, the hosts. `distributed.world_size`, `local_rank` and `node_rank` are facts about a launch,
not wishes: under torchrun (or RANK and WORLD_SIZE set by hand) they must equal the environment's, otherwise
the ranks started here. The sizes of groups must fit the same ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuproof.base.registry import ACCELERATORS, names
from gpuproof.config.rules.base import Facts, Refusal, Refusals
from gpuproof.config.rules.workload import ChosenWorkload
from gpuproof.records.case import OWN_DEVICE_TYPES
from gpuproof.records.work.parallel import ArrangementError, ParallelSpec, arrange

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


USES = {"shard_size": ("hsdp",), "tensor_parallel_size": ("tensor", "fsdp_tensor")}
NEEDS = {"hsdp": "shard_size", "fsdp_tensor": "tensor_parallel_size"}
_VARIABLES = {
    "world_size": ("WORLD_SIZE",),
    "local_rank": ("LOCAL_RANK",),
    "node_rank": ("GROUP_RANK", "NODE_RANK"),
}
CHOOSING = ("matrix", "scale")
"""Suites that take of the devices that are named what each case of theirs needs."""


def device_type_exists(config: RunConfig) -> Refusals:
    """Refuse a type of device that neither we nor an installed package know."""
    types = ("auto", *OWN_DEVICE_TYPES, *names(ACCELERATORS))
    if config.distributed.device not in types:
        yield Refusal(
            keys=("distributed.device",),
            cause=f"no installed package provides the device type {config.distributed.device!r}",
            next_step=f"Use one of {', '.join(types)}, or install the package that registers it "
            f"({ACCELERATORS})",
        )


def cpu_has_no_indices(config: RunConfig) -> Refusals:
    """Refuse device indices on the CPU."""
    if config.distributed.device == "cpu" and config.distributed.devices is not None:
        yield Refusal(
            keys=("distributed.devices", "distributed.device"),
            cause="device indices are given, but the device is cpu, which has none",
            next_step="Remove distributed.devices, or set distributed.device to cuda",
        )


def nccl_needs_gpus(config: RunConfig) -> Refusals:
    """Refuse NCCL on the CPU."""
    if config.distributed.device == "cpu" and config.distributed.backend == "nccl":
        yield Refusal(
            keys=("distributed.backend", "distributed.device"),
            cause="nccl connects GPUs, but the device is cpu",
            next_step="Set distributed.backend to auto",
        )


def devices_are_distinct(config: RunConfig) -> Refusals:
    """Refuse a device for two ranks."""
    devices = config.distributed.devices or ()
    if len(set(devices)) < len(devices):
        yield Refusal(
            keys=("distributed.devices",),
            cause=f"a device is named twice in {list(devices)}",
            next_step="Name each device once",
        )


def ranks_have_devices(config: RunConfig) -> Refusals:
    """Refuse more ranks than devices."""
    nproc, devices = config.distributed.nproc, config.distributed.devices
    if devices is not None and nproc > len(devices):
        yield Refusal(
            keys=("distributed.nproc", "distributed.devices"),
            cause=f"{nproc} ranks are asked for, but distributed.devices names {len(devices)}",
            next_step="Name a device for each rank in distributed.devices, or lower distributed.nproc",
        )


def a_size_is_of_its_strategy(config: RunConfig) -> Refusals:
    """Refuse the size of a group that the strategy does not make."""
    ranks = config.distributed
    for name, strategies in USES.items():
        if getattr(ranks, name) is not None and ranks.strategy not in strategies:
            yield Refusal(
                keys=(f"distributed.{name}", "distributed.strategy"),
                cause=f"{name} is for {' and '.join(strategies)}, and the strategy is {ranks.strategy}",
                next_step=f"Set it to null, or use distributed.strategy={strategies[0]}",
            )


def a_strategy_has_its_size(config: RunConfig) -> Refusals:
    """Ask for the size of the groups that the strategy makes."""
    strategy = config.distributed.strategy
    name = NEEDS.get(strategy)
    if name is not None and getattr(config.distributed, name) is None:
        yield Refusal(
            keys=("distributed.strategy", f"distributed.{name}"),
            cause=f"{strategy} makes groups of distributed.{name} ranks, which is null",
            next_step=f"Set distributed.{name}",
        )


def compression_is_of_ddp(config: RunConfig) -> Refusals:
    """Refuse compressed gradients where no hook of ddp sees them."""
    ranks = config.distributed
    if ranks.gradient_compression != "none" and ranks.strategy != "ddp":
        yield Refusal(
            keys=("distributed.gradient_compression", "distributed.strategy"),
            cause=f"gradients are compressed by a hook of ddp, and {ranks.strategy} has none",
            next_step="Set distributed.gradient_compression to none, or distributed.strategy to ddp",
        )


def bfloat16_needs_nccl(config: RunConfig) -> Refusals:
    """Refuse gradients in bfloat16 over gloo."""
    ranks = config.distributed
    if ranks.gradient_compression == "bf16" and (ranks.backend == "gloo" or ranks.device == "cpu"):
        yield Refusal(
            keys=("distributed.gradient_compression", "distributed.backend"),
            cause="gradients in bfloat16 are summed over NCCL only, and these ranks talk over gloo",
            next_step="Use distributed.gradient_compression=fp16 or none",
        )


def inference_shards_nothing(config: RunConfig) -> Refusals:
    """Refuse to share what inference does not have."""
    strategy = config.distributed.strategy
    if config.kind == "inference" and strategy not in ("ddp", "tensor"):
        yield Refusal(
            keys=("distributed.strategy", "kind"),
            cause=f"{strategy} shares gradients and optimizer state, and inference has neither",
            next_step="Use distributed.strategy=tensor to split a model, or ddp for a copy on each rank",
        )


def a_scaler_sees_whole_lists(config: RunConfig) -> Refusals:
    """Refuse amp where some gradients are split and some are whole."""
    splits = config.distributed.strategy in ("tensor", "fsdp_tensor")
    if config.kind == "training" and config.training.precision == "amp" and splits:
        yield Refusal(
            keys=("training.precision", "distributed.strategy"),
            cause="the gradient scaler of amp takes no gradients of which some are split and some are whole",
            next_step="Use training.precision=bf16, or distributed.strategy=fsdp",
        )


def workload_can_be_split(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Refuse a workload without a tensor-parallel plan, or with sizes that its groups cannot share.

    Under `tensor` with a null size the ranks that are started decide; the worker checks the same then.
    """
    size, plan = config.distributed.tensor_parallel_size, chosen.info.tensor_parallel
    if config.distributed.strategy not in ("tensor", "fsdp_tensor"):
        return
    if plan is None:
        yield Refusal(
            keys=("distributed.strategy", "model.name"),
            cause=f"{chosen.info.name} has no tensor-parallel plan: nothing says how its layers are split",
            next_step="Use ddp, fsdp or hsdp, or register a plan with the workload (tensor_parallel)",
        )
    elif size is not None and (undivided := plan.undivided(chosen.options, size=size)) is not None:
        yield Refusal(
            keys=("distributed.tensor_parallel_size", "model.name"),
            cause=f"{chosen.info.name} does not divide over {size} ranks: {undivided}",
            next_step="Use a size that divides the heads and the hidden layers",
        )


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

    Under a suite ranks stay for launch after launch (`launchers/local/site.py`).
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
