"""A matrix of 500 points costs the same work a launch as one of 5: counted, from the plan to the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_launcher import FakeLaunch, FakeLauncher, Quiet
from gpuproof.base import registry
from gpuproof.campaign.campaign import launch_all
from gpuproof.config import models
from gpuproof.config.models import RunConfig
from gpuproof.config.rules import workload
from gpuproof.datasets import catalogue
from gpuproof.records.case import Case
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.by_host import ByHost
from gpuproof.suites.registry import suite_on
from planning import HERE
from records_by_hand import write_run

Counts = Counter[str]
FEW, MANY = 5, 500
HOSTS = (HostPlace(name="a"), HostPlace(name="b"), HostPlace(name="c"))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count look-ups of workloads and suites, cases that are made, and configs that are validated."""
    counted: Counts = Counter()

    def count(what: str, place: object, name: str) -> None:
        work: Callable[..., Any] = getattr(place, name)

        def counting(*words: Any, **values: Any) -> Any:
            counted[what] += 1
            return work(*words, **values)

        monkeypatch.setattr(place, name, counting)

    count("workloads", workload, "find_workload")
    count("workloads", catalogue, "find_workload")
    count("validations", models, "check_recipe")
    count("cases", Case, "__init__")
    count("metadata", registry, "entry_points")
    return counted


class CountingLauncher(FakeLauncher):
    """Remembers what had been counted when each launch began."""

    def __init__(self, names: Sequence[str], counts: Counts) -> None:
        super().__init__()
        self.names = list(names)
        self.counts = counts
        self.at_starts: list[Counts] = []

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> FakeLaunch:
        self.at_starts.append(self.counts.copy())
        return super().start(case, hosts, folder)

    def of_each_launch(self) -> set[tuple[tuple[str, int], ...]]:
        """Return what was counted between the begins of two launches, wherever it differs."""
        pairs = zip(self.at_starts, self.at_starts[1:], strict=False)
        return {tuple(sorted((after - before).items())) for before, after in pairs}


def sweep(num_points: int) -> dict[str, Any]:
    return {
        "model": {"name": "medium"},
        "data": {},
        "matrix": {"data.batch_size": list(range(1, num_points + 1))},
        "run": {"repeats": 1, "start": "fork"},
    }


def launch_sweep(folder: Path, num_points: int, counts: Counts) -> tuple[RunDirectory, CountingLauncher]:
    run = write_run(folder, [], run_id=f"p{num_points}", **sweep(num_points))
    launcher = CountingLauncher([""], counts)
    suite = suite_on(RunConfig.model_validate(sweep(num_points)), HERE)
    launch_all(run, suite=suite, launcher=launcher, progress=Quiet())  # type: ignore[arg-type]  # fakes
    assert len(launcher.at_starts) == num_points
    return run, launcher


def test_a_launch_of_many_costs_what_one_of_few_does(tmp_path: Path, counts: Counts) -> None:
    few = launch_sweep(tmp_path, FEW, counts)[1].of_each_launch()
    many = launch_sweep(tmp_path, MANY, counts)[1].of_each_launch()
    assert len(few) == 1
    assert many == few
    (work,) = many
    assert dict(work).get("validations", 0) == 0  # points were checked at the begin
    assert dict(work).get("metadata", 0) == 0
    assert dict(work)["workloads"] <= 2


def test_a_plan_is_linear_in_its_points(counts: Counts) -> None:
    work = {}
    for num_points in (FEW, MANY):
        config = RunConfig.model_validate(sweep(num_points))
        counts.clear()
        suite = suite_on(config, HERE)
        suite.begin(config, HERE)
        work[num_points] = {what: counts[what] / num_points for what in ("workloads", "validations", "cases")}
    assert work[FEW] == work[MANY]
    assert work[MANY]["validations"] == 1


def test_hosts_share_one_plan(counts: Counts) -> None:
    config = RunConfig.model_validate(sweep(MANY))
    suite = suite_on(config, HOSTS)
    assert isinstance(suite, ByHost)
    counts.clear()
    state = suite.begin(config, HOSTS)
    assert counts["validations"] == MANY
    counts.clear()
    assert len(list(suite.next(state, {}, None))) == len(HOSTS)
    assert counts["workloads"] == len(HOSTS)
    assert counts["validations"] == 0


def test_a_result_is_linear_in_its_points(tmp_path: Path, counts: Counts) -> None:
    from gpuproof.campaign.conclude import conclude

    work = {}
    for num_points in (FEW, 10 * FEW):
        run, _ = launch_sweep(tmp_path, num_points, counts)
        counts.clear()
        conclude(run)
        assert counts["workloads"] == 0
        work[num_points] = counts.copy()
    few, many = work[FEW], work[10 * FEW]
    for what in ("validations", "cases"):
        of_a_point = (many[what] - few[what]) / (9 * FEW)
        assert of_a_point == int(of_a_point) <= 4, what
    assert many["metadata"] == few["metadata"]
