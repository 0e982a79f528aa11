"""What `collective` needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Facts, Refusal, Refusals, RuleSet, sizes_go_up

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def collective_sizes_go_up(config: RunConfig) -> Refusals:
    """Refuse a smallest size above the largest."""
    spec = config.collective
    yield from sizes_go_up("collective", spec.min_bytes, spec.max_bytes, letters=("-b", "-e"))


def collective_sweeps_nothing(config: RunConfig) -> Refusals:
    """Refuse a matrix of collectives."""
    if config.matrix:
        yield Refusal(
            keys=("matrix", "kind"),
            cause="sizes and operations of kind collective are a list of their own",
            next_step="Set collective.operations, min_bytes, max_bytes and factor",
        )


def collective_has_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse a collective over one rank, and over hosts that are not one job."""
    if facts.hosts is None:
        return
    ranks = config.distributed.nproc * config.distributed.nodes
    has_gpus = any(host.gpus is not None for host in facts.hosts)
    if ranks < 2 and not facts.is_attached and not has_gpus:
        yield Refusal(
            keys=("distributed.nproc", "kind"),
            cause="a collective over one rank moves nothing",
            next_step="Start more ranks: --nproc N, or --one-job over several hosts",
        )
    if config.collective.root >= max(ranks, 1) and not facts.is_attached and not has_gpus:
        yield Refusal(
            keys=("collective.root", "distributed.nproc"),
            cause=f"there is no rank {config.collective.root} among {ranks}",
            next_step=f"Ranks count from 0 to {ranks - 1}",
        )


RULES = RuleSet(
    of_recipe=(collective_sizes_go_up, collective_sweeps_nothing), of_place=(collective_has_ranks,)
)
