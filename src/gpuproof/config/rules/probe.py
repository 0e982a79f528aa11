"""Requirements of each probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gpuproof.config.rules.base import Facts, Refusal, Refusals, RuleSet, sizes_go_up, without_effect
from gpuproof.records.work.probe import ProbeName

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

ONE_RANK: tuple[ProbeName, ...] = ("link", "nccl_tests")
"""Probes in which one rank iterates over all devices of its host."""
PAGE_BYTES = 4096


def probe_keys_are_of_the_probe(config: RunConfig) -> Refusals:
    """Reject keys that this probe ignores, and a matrix of probes."""
    for name in (name for name in get_args(ProbeName) if name != config.probe.name):
        cause = f"it belongs to the probe {name}, but probe.name is {config.probe.name}"
        step, keys = f"Set probe.name to {name}, or remove the key", getattr(config.probe, name)
        yield from without_effect(f"probe.{name}", keys, cause, step, beside="probe.name")
    if config.matrix:
        yield Refusal(
            keys=("matrix", "kind"),
            cause="probes cannot be swept",
            next_step="Use the probe's own lists of sizes, patterns and number formats",
        )


def probe_can_be_done(config: RunConfig) -> Refusals:
    """Reject descending sizes, blocks that no disk can read, and a storage probe without a folder."""
    for name in ("link", "nccl_tests"):
        sizes = getattr(config.probe, name)
        yield from sizes_go_up(f"probe.{name}", sizes.min_bytes, sizes.max_bytes)
    storage = config.probe.storage
    if config.probe.name == "storage" and storage.folder is None:
        yield Refusal(
            keys=("probe.storage.folder", "probe.name"),
            cause="the storage probe only writes to a folder that you specify",
            next_step="Specify a folder on the disk to test: --probe.storage.folder=/scratch",
        )
    for key in ("block_bytes", "random_block_bytes"):
        if getattr(storage, key) % PAGE_BYTES:
            yield Refusal(
                keys=(f"probe.storage.{key}",),
                cause=(
                    "reads that bypass the cache need whole pages, and this is not a multiple "
                    f"of {PAGE_BYTES}"
                ),
                next_step="Use a multiple of 4096, such as 8M",
            )


def a_file_holds_a_block(config: RunConfig) -> Refusals:
    """Reject a file of which no block can be read."""
    storage = config.probe.storage
    for key in ("block_bytes", "random_block_bytes"):
        if config.probe.name == "storage" and storage.file_bytes < getattr(storage, key):
            yield Refusal(
                keys=("probe.storage.file_bytes", f"probe.storage.{key}"),
                cause=f"a file of {storage.file_bytes:,} bytes holds no block of {getattr(storage, key):,}",
                next_step=f"Raise probe.storage.file_bytes, or lower probe.storage.{key}",
            )


def probe_has_its_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Reject several ranks if one iterates over all devices, and one rank if two must communicate."""
    if facts.hosts is None or facts.is_attached:
        return
    name, ranks = config.probe.name, config.distributed.nproc * config.distributed.nodes
    has_gpus = any(host.gpus is not None for host in facts.hosts)
    if name in ONE_RANK and (ranks > 1 or config.distributed.nodes > 1):
        yield Refusal(
            keys=("distributed.nproc", "probe.name"),
            cause=f"the probe {name} tests all devices of a host from one rank",
            next_step="Leave distributed.nproc and distributed.nodes at 1",
        )
    if name == "overlap" and ranks < 2 and not has_gpus:
        yield Refusal(
            keys=("distributed.nproc", "probe.name"),
            cause="a single rank has no other rank to communicate with while it computes",
            next_step="Start more ranks: --nproc N",
        )


RULES = RuleSet(
    of_recipe=(probe_keys_are_of_the_probe, probe_can_be_done),
    of_new_run=(a_file_holds_a_block,),
    of_place=(probe_has_its_ranks,),
)
