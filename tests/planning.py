"""Asking a suite what comes next, as the campaign does, without running anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace, Suite
from gpuproof.suites.registry import suite_on

HERE = (HostPlace(name=""),)


def suite_of(config: RunConfig, places: tuple[HostPlace, ...] = HERE) -> Suite:
    """Return the suite that plans a recipe."""
    return suite_on(config, places)


def settled(config: RunConfig, results: Iterable[CaseRecords], places: tuple[HostPlace, ...] = HERE) -> Any:
    """Return the state of a suite after `results` were settled."""
    suite = suite_on(config, places)
    state = suite.begin(config, places)
    for launch in results:
        state = suite.settle(state, launch)
    return state


def next_cases(
    config: RunConfig, results: Iterable[CaseRecords] = (), places: tuple[HostPlace, ...] = HERE
) -> list[Case]:
    """Return everything that a suite asks for now, after `results` were settled."""
    return list(suite_on(config, places).next(settled(config, results, places), {}, None))
