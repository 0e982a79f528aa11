"""The same case on several hosts, or over them: pure functions from cases to cases.

On several hosts, each has a case of its own (`main@node1`), so that the store, `--resume` and every reader
need to know nothing of hosts. Over several hosts as one job it stays one case, with ranks on each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

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
