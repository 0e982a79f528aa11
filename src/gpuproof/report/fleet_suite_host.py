"""One host of a fleet that ran a suite of tests, or the points of a sweep.

In: the host as run.json holds it, and all records of the run. Out: its tests with figures and readings, how
far it came, and what to say of its failures. A launch to which the host could not be brought is a failure of
the host and not of the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuproof.analysis.fleet import HostMeasured, HostTests, cost_per_million
from gpuproof.analysis.fleet_suite import SuiteSummary
from gpuproof.analysis.launch import Launch, launch_of
from gpuproof.analysis.validity import worst
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure, Start
from gpuproof.report.explanations import LaunchExplanation, explain_launch
from gpuproof.report.fleet_story import HostStory, host_tests, is_of_host, tests_of
from gpuproof.report.fleet_suite_model import SuiteCell, SuiteHost
from gpuproof.report.load_results import LoadResult, load_results, success_of
from gpuproof.report.sweep import Sweep, sweep_of
from gpuproof.store.run import RunDirectory
from gpuproof.suites.fleet import on_host, results_on

BEFORE_IT_RUNS = ("setup", "deploy", "execute")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOnHost:
    """What one host made of a suite."""

    host: Mapping[str, Any]
    sweep: Sweep
    stories: Mapping[str, HostStory]
    """One for each test or point by its name, in order."""
    tests: tuple[LoadResult, ...]
    """The same of the load suite; empty for a sweep."""
    cases: tuple[CaseRecords, ...]
    """What was begun there, called as on one machine."""
    explained: tuple[tuple[Launch, LaunchExplanation], ...]
    unreached: Failure | None
    """Why something could not be begun there."""

    @property
    def name(self) -> str:
        """What the inventory calls the host."""
        return str(self.host["name"])

    @property
    def launches(self) -> list[Launch]:
        """All that measured something."""
        return [launch for story in self.stories.values() for launch in story.summary.launches]

    def measured(self, name: str) -> HostMeasured | None:
        """Return what it measured of a test that came to its end; None of any other."""
        story = self.stories[name]
        return story.measured() if success_of(story.summary) else None

    def tests_with(self, document: Mapping[str, Any]) -> HostTests:
        """Return its tests for the aggregate, with the stage at which it failed."""
        failures = [failure for story in self.stories.values() for failure in story.summary.failures[:1]]
        return host_tests(
            self.name,
            document,
            num_planned=len(self.stories),
            num_measured=sum(bool(success_of(story.summary)) for story in self.stories.values()),
            failures=failures,
            of_host=self.unreached or next(filter(is_of_host, failures), None),
        )

    def points_as_tests(self) -> list[dict[str, Any]]:
        """Return the points that ended as tests in S0's form."""
        found = []
        for name, story in self.stories.items():
            config = self.sweep.points[name].config
            if success_of(story.summary) is False:
                failure = story.summary.failures[0]
                tests = {
                    "test_name": name,
                    "test_type": config.kind,
                    "model_name": config.model.name,
                    "batch_size": config.data.batch_size,
                    "throughput_samples_per_second": None,
                    "success": False,
                    "error_message": failure.message or failure.cause,
                    "error_cause": failure.cause,
                }
                found.append(tests)
            else:
                found += tests_of(story.summary.launches)
        return found

    def told_failures(self) -> list[Failure]:
        """Return its failures under the inventory's name, those that are alike told once."""
        alike: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
        for name, story in self.stories.items():
            for failure in story.summary.failures:
                alike.setdefault((failure.cause, failure.message), []).append((name, failure))
        told = [] if self.unreached is None else [self.unreached]
        for occurrences in alike.values():
            name, first = occurrences[0]
            more = f" and {len(occurrences) - 1} more" if len(occurrences) > 1 else ""
            told.append(replace(first, message=f"at {name}{more}: {first.message}"))
        return [replace(failure, host=self.name) for failure in told]

    def shown(self, summary: SuiteSummary) -> SuiteHost:
        """Return the host as the report has it."""
        ended = [success_of(story.summary) for story in self.stories.values()]
        measured = [found for story in self.stories.values() if (found := story.measured()) is not None]
        speed = next((speed for speed in summary.hosts if speed.host == self.name), None)
        failed = self.tests_with({})
        best = self.sweep.summary.best
        energy, cost = self._of_all_tests() if all(ended) else (None, None)
        return SuiteHost(
            host=self.name,
            gpu_type=measured[0].gpu_type if measured else self.host.get("gpu_type"),
            num_devices=measured[0].num_devices if measured else self.host.get("gpus"),
            num_successful=ended.count(True),
            num_failed=ended.count(False),
            num_not_run=ended.count(None),
            relative_to_type=None if speed is None else speed.relative_to_type,
            energy_j_per_item=energy,
            cost_per_million_items=cost,
            best=None if best is None else best.case_id,
            validity=worst([f for story in self.stories.values() for f in story.summary.findings])
            if measured
            else None,
            stage=failed.stage,
            failure=failed.error,
            cells=tuple(map(_cell, self.stories.values())),
            sentences=tuple(self._sentences()),
        )

    def _of_all_tests(self) -> tuple[float | None, float | None]:
        """Return energy of an item and cost of a million over all tests; None of what is not known."""
        if len({launch.setup.item for launch in self.launches}) != 1:
            return None, None
        items = sum(story.summary.items_total for story in self.stories.values())
        window_s = sum(story.summary.window_s for story in self.stories.values())
        known_j = [story.energy_j for story in self.stories.values() if story.energy_j is not None]
        price = self.host.get("price_per_hour")
        return (
            sum(known_j) / items if len(known_j) == len(self.stories) else None,
            None if price is None else cost_per_million(price, items / window_s),
        )

    def _sentences(self) -> list[str]:
        """Tell what stood out in the same words in several tests once."""
        found: dict[str, list[str]] = {}
        for launch, explanation in self.explained:
            for sentence in explanation.sentences:
                found.setdefault(sentence, []).append(launch.case.case_id)
        return [
            f"{sentence} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
            for sentence, names in found.items()
        ]


def suite_on_host(
    run: RunDirectory, host: Mapping[str, Any], config: RunConfig, cases: Sequence[CaseRecords]
) -> SuiteOnHost:
    """Put together what one host left."""
    name = str(host["name"])

    def folder_of(case: Case) -> Path:
        return run.case_folder(on_host(case, name, nproc=None))

    own = results_on(name, [records for records in cases if records.case.placement.host == name])
    begun = tuple(records for records in own if _never_begun(records) is None)
    launches = [launch for records in begun if (launch := launch_of(records)) is not None]
    explained = tuple(
        (launch, explain_launch(launch, folder_of(launch.case)))
        for launch in launches
        if launch.case.monitor_interval_s is not None
    )
    sweep = sweep_of(config, begun, [explanation for _, explanation in explained])
    return SuiteOnHost(
        host=host,
        sweep=sweep,
        stories={
            point.case_id: HostStory(
                host=host,
                summary=point.summary,
                explanations=tuple(found for _, found in explained if found.case_id == point.case_id),
            )
            for point in sweep.summary.points
        },
        tests=load_results(sweep, folder_of=folder_of) if config.kind == "load" else (),
        cases=begun,
        explained=explained,
        unreached=next((failure for records in own if (failure := _never_begun(records))), None),
    )


def _never_begun(records: CaseRecords) -> Failure | None:
    """Return why a launch was not begun on the host; None where it was."""
    failure = records.primary_failure
    if failure is None or records.of(Start) or not is_of_host(failure):
        return None
    return failure if failure.phase in BEFORE_IT_RUNS else None


def _cell(story: HostStory) -> SuiteCell:
    summary = story.summary
    success = success_of(summary)
    measured = story.measured() if success else None
    outcome = "" if success else "not run"
    if success is False:
        outcome = f"failed: {summary.failures[0].cause.replace('_', ' ')}"
    return SuiteCell(
        success=success,
        items_per_s_total=measured.items_per_s_total if measured else None,
        items_per_s_per_device=measured.items_per_s_per_device if measured else None,
        mean_step_s=summary.mean_step_s if measured else None,
        energy_j_per_item=measured.energy_j_per_item if measured else None,
        cost_per_million_items=measured.cost_per_million_items if measured else None,
        validity=summary.validity if measured else None,
        outcome=outcome,
    )
