"""What `collective` needs, and which sections have nothing to say of a run without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Facts, Refusal, Refusals, without_effect

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

OF_A_MODEL = ("model", "data", "training", "benchmark", "profiling", "inference", "serving", "search")

LETTERS = (
    "Remove it, or set kind to collective: -b, -e and other letters are nccl-tests', and a batch size is "
    "--data.batch_size"
)


def sizes_go_up(config: RunConfig) -> Refusals:
    """Refuse a smallest size above the largest."""
    asked = config.collective
    if asked.min_bytes > asked.max_bytes:
        yield Refusal(
            keys=("collective.min_bytes", "collective.max_bytes"),
            cause=f"the smallest size, {asked.min_bytes}, is above the largest, {asked.max_bytes}",
            next_step="Lower collective.min_bytes (-b), or raise collective.max_bytes (-e)",
        )


def collective_has_no_model(config: RunConfig) -> Refusals:
    """Refuse keys that nothing of a collective heeds, and the section `collective` for other kinds."""
    if config.kind != "collective":
        cause = f"it is for collective operations, and kind is {config.kind}"
        yield from without_effect("collective", config.collective, cause, LETTERS, beside="kind")
        return
    cause = "collective operations run no model, so it would have no effect"
    for section in OF_A_MODEL:
        yield from without_effect(section, getattr(config, section), cause, "Remove it", beside="kind")
    if config.matrix:
        yield Refusal(
            keys=("matrix", "kind"),
            cause="sizes and operations of kind collective are a list of their own",
            next_step="Set collective.operations, min_bytes, max_bytes and factor",
        )


def collective_has_ranks(config: RunConfig, facts: Facts) -> Refusals:
    """Refuse a collective over one rank, and over hosts that are not one job."""
    if config.kind != "collective" or facts.hosts is None:
        return
    ranks = config.distributed.nproc * config.distributed.nodes
    given = any(host.gpus is not None for host in facts.hosts)
    if ranks < 2 and not facts.is_attached and not given:
        yield Refusal(
            keys=("distributed.nproc", "kind"),
            cause="a collective over one rank moves nothing",
            next_step="Start more ranks: --nproc N, or --one-job over several hosts",
        )
    if config.collective.root >= max(ranks, 1) and not facts.is_attached and not given:
        yield Refusal(
            keys=("collective.root", "distributed.nproc"),
            cause=f"there is no rank {config.collective.root} among {ranks}",
            next_step=f"Ranks count from 0 to {ranks - 1}",
        )
