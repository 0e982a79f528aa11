"""What a report says of a suite of tests, or of a sweep's points, on a fleet: host by test, and together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.analysis.fleet_suite import SuiteSummary
from gpuproof.analysis.validity import Validity


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteColumn:
    """One test, or one point."""

    name: str
    """As its launches are called."""
    group: str
    """Of columns that stand in one table."""
    label: str
    """Short, above its column."""
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCell:
    """One test on one host."""

    success: bool | None
    """None where it was not run to an end."""
    items_per_s_total: float | None
    """Of all devices of the host."""
    items_per_s_per_device: float | None
    mean_step_s: float | None
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    validity: Validity | None
    outcome: str
    """Why there are no figures; empty where there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteHost:
    """One host with all its tests."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_successful: int
    num_failed: int
    num_not_run: int
    relative_to_type: float | None
    """Its rate over the median of its type, as a mean over tests; None without others to compare with."""
    energy_j_per_item: float | None
    """Over all tests, which weigh as many items as they have; None unless every test succeeded."""
    cost_per_million_items: float | None
    """Likewise, of the time in the windows."""
    best: str | None
    """The point of the highest throughput; None for tests, which are not ranked."""
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    cells: tuple[SuiteCell, ...]
    """In the order of the columns."""
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSuite:
    """Every test on every host."""

    what: Literal["tests", "points"]
    currency: str
    columns: tuple[SuiteColumn, ...]
    hosts: tuple[SuiteHost, ...]
    """In the order of the inventory."""
    summary: SuiteSummary
