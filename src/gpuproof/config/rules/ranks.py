"""Do the keys of `distributed` conflict with each other or with the launch?

Covers the devices of ranks, how ranks share a model, and how and where a recipe is launched: this process,
the user's own launcher, the hosts. `distributed.world_size`, `local_rank` and `node_rank` are facts about a
launch, not requests. Under torchrun (or with RANK and WORLD_SIZE set by hand) they must match the
environment; otherwise they must match the ranks started here. The group sizes must fit the same number of
ranks.
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
"""Suites in which each case uses as many of the listed devices as it needs."""


def device_type_exists(config: RunConfig) -> Refusals:
    """Reject a device type that neither gpuproof nor an installed package knows."""
    types = ("auto", *OWN_DEVICE_TYPES, *names(ACCELERATORS))
    if config.distributed.device not in types:
        yield Refusal(
            keys=("distributed.device",),
            cause=f"no installed package provides the device type {config.distributed.device!r}",
            next_step=f"Use one of {', '.join(types)}, or install the package that registers it "
            f"({ACCELERATORS})",
        )


def cpu_has_no_indices(config: RunConfig) -> Refusals:
    """Reject device indices on the CPU."""
    if config.distributed.device == "cpu" and config.distributed.devices is not None:
        yield Refusal(
            keys=("distributed.devices", "distributed.device"),
            cause="device indices are given, but the device is cpu, which has none",
            next_step="Remove distributed.devices, or set distributed.device to cuda",
        )


def nccl_needs_gpus(config: RunConfig) -> Refusals:
    """Reject NCCL on the CPU."""
    if config.distributed.device == "cpu" and config.distributed.backend == "nccl":
        yield Refusal(
            keys=("distributed.backend", "distributed.device"),
            cause="nccl connects GPUs, but the device is cpu",
            next_step="Set distributed.backend to auto",
        )


def devices_are_distinct(config: RunConfig) -> Refusals:
    """Reject assigning the same device to two ranks."""
    devices = config.distributed.devices or ()
    if len(set(devices)) < len(devices):
        yield Refusal(
            keys=("distributed.devices",),
            cause=f"a device is listed twice in {list(devices)}",
            next_step="Name each device once",
        )


def ranks_have_devices(config: RunConfig) -> Refusals:
    """Reject more ranks than devices."""
    nproc, devices = config.distributed.nproc, config.distributed.devices
    if devices is not None and nproc > len(devices):
        yield Refusal(
            keys=("distributed.nproc", "distributed.devices"),
            cause=f"{nproc} ranks are requested, but distributed.devices lists {len(devices)}",
            next_step="List a device for each rank in distributed.devices, or lower distributed.nproc",
        )


def a_size_is_of_its_strategy(config: RunConfig) -> Refusals:
    """Reject a size for a group that the strategy does not create."""
    ranks = config.distributed
    for name, strategies in USES.items():
        if getattr(ranks, name) is not None and ranks.strategy not in strategies:
            yield Refusal(
                keys=(f"distributed.{name}", "distributed.strategy"),
                cause=f"{name} is for {' and '.join(strategies)}, but the strategy is {ranks.strategy}",
                next_step=f"Set it to null, or use distributed.strategy={strategies[0]}",
            )


def a_strategy_has_its_size(config: RunConfig) -> Refusals:
    """Require a size for each group that the strategy creates."""
    strategy = config.distributed.strategy
    name = NEEDS.get(strategy)
    if name is not None and getattr(config.distributed, name) is None:
        yield Refusal(
            keys=("distributed.strategy", f"distributed.{name}"),
            cause=f"{strategy} creates groups of distributed.{name} ranks, but that key is null",
            next_step=f"Set distributed.{name}",
        )


def compression_is_of_ddp(config: RunConfig) -> Refusals:
    """Reject compressed gradients if there is no ddp hook to compress them."""
    ranks = config.distributed
    if ranks.gradient_compression != "none" and ranks.strategy != "ddp":
        yield Refusal(
            keys=("distributed.gradient_compression", "distributed.strategy"),
            cause=f"gradients are compressed by a ddp hook, which {ranks.strategy} does not have",
            next_step="Set distributed.gradient_compression to none, or distributed.strategy to ddp",
        )


def bfloat16_needs_nccl(config: RunConfig) -> Refusals:
    """Reject gradients in bfloat16 over gloo."""
    ranks = config.distributed
    if ranks.gradient_compression == "bf16" and (ranks.backend == "gloo" or ranks.device == "cpu"):
        yield Refusal(
            keys=("distributed.gradient_compression", "distributed.backend"),
            cause="gradients in bfloat16 are summed over NCCL only, but these ranks communicate over gloo",
            next_step="Use distributed.gradient_compression=fp16 or none",
        )


def inference_shards_nothing(config: RunConfig) -> Refusals:
    """Reject sharding of state that inference does not have."""
    strategy = config.distributed.strategy
    if config.kind == "inference" and strategy not in ("ddp", "tensor"):
        yield Refusal(
            keys=("distributed.strategy", "kind"),
            cause=f"{strategy} shards gradients and optimizer state, but inference has neither",
            next_step="Use distributed.strategy=tensor to split a model, or ddp for a copy on each rank",
        )


def a_scaler_sees_whole_lists(config: RunConfig) -> Refusals:
    """Reject amp if some gradients are sharded and others are not."""
    splits = config.distributed.strategy in ("tensor", "fsdp_tensor")
    if config.kind == "training" and config.training.precision == "amp" and splits:
        yield Refusal(
            keys=("training.precision", "distributed.strategy"),
            cause="amp's gradient scaler does not support a mix of split and whole gradients",
            next_step="Use training.precision=bf16, or distributed.strategy=fsdp",
        )


def workload_can_be_split(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject a workload without a tensor-parallel plan, or with sizes that the groups cannot split.

    If the strategy is `tensor` and its size is null, the number of started ranks is used; the worker then
    runs the same check.
    """
    size, plan = config.distributed.tensor_parallel_size, chosen.info.tensor_parallel
    if config.distributed.strategy not in ("tensor", "fsdp_tensor"):
        return
    if plan is None:
        yield Refusal(
            keys=("distributed.strategy", "model.name"),
            cause=f"{chosen.info.name} has no tensor-parallel plan: nothing defines how to split its layers",
            next_step="Use ddp, fsdp or hsdp, or register a plan with the workload (tensor_parallel)",
        )
    elif size is not None and (undivided := plan.undivided(chosen.options, size=size)) is not None:
        yield Refusal(
            keys=("distributed.tensor_parallel_size", "model.name"),
            cause=f"{chosen.info.name} cannot be split across {size} ranks: {undivided}",
            next_step="Use a size that divides the heads and the hidden layers",
        )


def declared_ranks_are_launched(config: RunConfig, facts: Facts) -> Refusals:
    """Reject each declared fact that the launch contradicts; accept those it does not mention."""
    for name, (value, witness) in _declared_facts(config.distributed, facts.environment).items():
        declared = getattr(config.distributed, name)
        if declared is not None and str(declared) != value:
            yield Refusal(
                keys=(f"distributed.{name}", "distributed.nproc"),
                cause=f"{name} is declared as {declared}, but {witness}",
                next_step="Set it to null, or launch as declared",
            )


def groups_fit_the_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Reject group sizes that do not fit the ranks of this launch."""
    ranks = config.distributed
    world_size = _declared_facts(ranks, facts.environment)["world_size"][0]
    if not world_size.isdecimal():
        return  # the launcher's own check reports it
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
    """Return the value of each declared fact, and where it comes from."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return {
            name: (environment[variable].strip(), f"the environment says {variable}={environment[variable]}")
            for name, variables in _VARIABLES.items()
            for variable in variables[::-1]
            if variable in environment
        }
    nproc, nodes = declared.nproc, declared.nodes
    per_host = f" on each of {nodes} hosts" if nodes > 1 else ""
    local = (
        ("0", "the only rank here is rank 0")
        if nproc == 1
        else ("", f"the {nproc} ranks here each have their own")
    )
    return {
        "world_size": (str(nproc * nodes), f"distributed.nproc starts {nproc}{per_host}"),
        "local_rank": local,
        "node_rank": ("0", "this host is the only one") if nodes == 1 else ("", f"there are {nodes} hosts"),
    }


def a_launcher_gives_one_launch(config: RunConfig, facts: Facts) -> Refusals:
    """Reject extra ranks, points and repeats under a launcher that starts each rank once.

    With a suite, ranks keep running from launch to launch (`launchers/local/site.py`).
    """
    if not facts.is_attached or config.suite is not None:
        return
    if config.distributed.nproc > 1:
        yield Refusal(
            keys=("distributed.nproc",),
            cause=f"{config.distributed.nproc} ranks were requested inside a launch that has its own ranks",
            next_step="Leave it at 1 under torchrun",
        )
    if config.matrix or config.search.kind is not None:
        yield Refusal(
            keys=("matrix" if config.matrix else "search.kind",),
            cause="your own launcher starts each rank once, but each point of a sweep needs a launch",
            next_step="Start the sweep without it, or run the launcher once per point",
        )
    if config.run.repeats > 1:
        yield Refusal(
            keys=("run.repeats",),
            cause="your own launcher starts each rank once, but a repeat needs a separate launch",
            next_step="Set it to 1 and run the launcher once per repeat",
        )


def devices_have_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Reject listed devices that no rank of this launch would use."""
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
            cause=f"{most} devices are listed, but only {ranks} of them would be used: one per rank",
            next_step=f"Start {most} ranks (--nproc {most}), or list one device per rank",
        )


def one_job_has_its_hosts(config: RunConfig, facts: Facts) -> Refusals:
    """Reject one job that spans more hosts than are listed."""
    nodes = config.distributed.nodes
    if facts.hosts is None or nodes <= max(1, len(facts.hosts)):
        return
    there = f"there are {len(facts.hosts)}" if facts.hosts else "no hosts are named"
    yield Refusal(
        keys=("distributed.nodes",),
        cause=f"one job spans {nodes} hosts, but {there}",
        next_step="List more hosts, or set it to the number of hosts"
        if facts.hosts
        else "List them with --deployment-file, or set it to 1",
    )


def one_job_has_equal_hosts(_config: RunConfig, facts: Facts) -> Refusals:
    """Reject a single job that spans hosts with different numbers of GPUs."""
    if facts.is_one_job and len({host.gpus for host in facts.hosts or ()}) > 1:
        yield Refusal(
            keys=("distributed.nodes",),
            cause=(
                "the hosts have different numbers of GPUs, but one job starts the same number "
                "of ranks on each"
            ),
            next_step="Set the same `gpus` for all hosts",
            place=facts.hosts[0].place if facts.hosts else None,
        )


def hosts_are_not_swept(config: RunConfig, facts: Facts) -> Refusals:
    """Reject a matrix over keys that are determined by the listed hosts."""
    if not facts.hosts:
        return
    if "distributed.nodes" in config.matrix:
        yield Refusal(
            keys=("matrix.distributed.nodes",),
            cause="the listed hosts determine how many hosts a job uses",
            next_step="Start a run for each number of hosts, with --one-job",
        )
    has_gpus = any(host.gpus is not None for host in facts.hosts)
    if has_gpus and config.distributed.nodes == 1 and "distributed.nproc" in config.matrix:
        yield Refusal(
            keys=("matrix.distributed.nproc",),
            cause="the inventory sets how many ranks each host starts (gpus)",
            next_step="Remove `gpus` from the inventory, or the key from the matrix",
        )
