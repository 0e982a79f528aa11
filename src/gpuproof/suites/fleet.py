"""The same case on several hosts, or over them: pure functions from cases to cases.

On several hosts, each has a case of its own (`main@node1`), so that the store, `--resume` and every reader
need to know nothing of hosts. Over several hosts as one job it stays one case, with ranks on each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords

SEPARATOR = "@"
LONGEST = 120


def on_host(case: Case, host: str, *, nproc: int | None) -> Case:
    """Return the case as one host runs it, with `nproc` ranks where that is given.

    The name of its folder is safe whatever the host is called.
    """
    placement = replace(case.placement, hosts=(host,), ranks_per_host=nproc or case.placement.ranks_per_host)
    return replace(case, case_id=f"{case.case_id}{SEPARATOR}{folder_name(host)}", placement=placement)


def folder_name(host: str) -> str:
    """Write a host's name as a part of a path.

    >>> folder_name("node 1/'x'")
    'node%201%2F%27x%27'
    """
    return quote(host, safe="")[:LONGEST]


def results_on(host: str, launched: Iterable[CaseRecords]) -> list[CaseRecords]:
    """Return what was launched on one host, as cases were called before they were given to it."""
    end = f"{SEPARATOR}{folder_name(host)}"
    return [
        replace(records, case=replace(records.case, case_id=records.case.case_id.removesuffix(end)))
        for records in launched
        if records.case.case_id.endswith(end)
    ]


def refuse_on_hosts(config: RunConfig, *, gpus_are_given: bool) -> None:
    """Refuse what cannot be run on other hosts, or not be told of several; `gpus_are_given` by the inventory.

    Raises:
        UsageError: with the key that stands in the way.
    """
    if "distributed.nodes" in config.matrix:
        raise UsageError(
            "the hosts that are named say over how many a job is",
            place="matrix.distributed.nodes",
            next_step="Start a run for each number of hosts, with --one-job",
        )
    if config.distributed.nodes == 1:
        _refuse_on_each_host(config, gpus_are_given=gpus_are_given)


def _refuse_on_each_host(config: RunConfig, *, gpus_are_given: bool) -> None:
    if config.kind == "serving":
        raise UsageError(
            "serving on several hosts has no report yet",
            place="kind",
            next_step="Start it on each host by itself",
        )
    if config.search.kind is not None:
        raise UsageError(
            "each host would search points of its own, and no report sets them against each other yet",
            place="search.kind",
            next_step="Sweep the same points on all hosts: --matrix.data.batch_size='[16, 32, 64]'",
        )
    if gpus_are_given and "distributed.nproc" in config.matrix:
        raise UsageError(
            "the inventory says how many ranks each host starts (gpus)",
            place="matrix.distributed.nproc",
            next_step="Leave `gpus` out of the inventory, or the key out of the matrix",
        )
