"""Requirements of the section `collective`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Facts, Refusal, Refusals, RuleSet, sizes_go_up

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def collective_sizes_go_up(config: RunConfig) -> Refusals:
    """Reject a minimum size above the maximum."""
    spec = config.collective
    yield from sizes_go_up("collective", spec.min_bytes, spec.max_bytes, letters=("-b", "-e"))


def collective_sweeps_nothing(config: RunConfig) -> Refusals:
    """Reject a matrix of collectives."""
    if config.matrix:
        yield Refusal(
            keys=("matrix", "kind"),
            cause="sizes and operations of kind collective have their own lists",
            next_step="Set collective.operations, min_bytes, max_bytes and factor",
        )


def collective_has_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Reject a collective over a single rank, or over hosts that do not form one job."""
    if facts.hosts is None:
        return
    ranks = config.distributed.nproc * config.distributed.nodes
    has_gpus = any(host.gpus is not None for host in facts.hosts)
    if ranks < 2 and not facts.is_attached and not has_gpus:
        yield Refusal(
            keys=("distributed.nproc", "kind"),
            cause="a collective over one rank transfers nothing",
            next_step="Start more ranks: --nproc N, or --one-job for several hosts",
        )
    if config.collective.root >= max(ranks, 1) and not facts.is_attached and not has_gpus:
        yield Refusal(
            keys=("collective.root", "distributed.nproc"),
            cause=f"there is no rank {config.collective.root} among {ranks}",
            next_step=f"Ranks are numbered from 0 to {ranks - 1}",
        )


RULES = RuleSet(
    of_recipe=(collective_sizes_go_up, collective_sweeps_nothing), of_place=(collective_has_ranks,)
)
