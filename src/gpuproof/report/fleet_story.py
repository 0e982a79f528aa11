"""What each host of a fleet left, told in the same way whatever was run: one recipe, or a suite of tests.

In: the hosts as run.json holds them, and records. Out: stories of hosts, from which the reports of a fleet
(`fleet`, `fleet_suite`) are made, and what both say alike: stages, doubts, environments, tests in S0's form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.analysis.fleet import HostMeasured, HostTests
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.run_summary import RunSummary
from gpuproof.analysis.validity import Finding
from gpuproof.errors import ExitCode
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, Failure, NotApplied
from gpuproof.report.explanations import FAULT, LaunchExplanation
from gpuproof.report.model import ReportModel
from gpuproof.store.run import RunDirectory

FLEET = "fleet"
"""The key of run.json that holds the hosts."""
FLEET_FILE = "fleet.json"
STAGES = ("setup", "deploy", "execute", "download", "parse", "exception")
NOT_BEGUN = "nothing was launched there"
NOT_ENDED = "it did not go through all that was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStory:
    """What one host made of one recipe: of the only one, of a test, or of a point of a sweep."""

    host: Mapping[str, Any]
    """As run.json holds it."""
    summary: RunSummary
    explanations: tuple[LaunchExplanation, ...]

    @property
    def name(self) -> str:
        """What the inventory calls the host."""
        return str(self.host["name"])

    @property
    def energy_j(self) -> float | None:
        """Of all launches, None where one of them is not known."""
        energies = [found.energy_j for found in self.explanations if found.energy_j is not None]
        whole = bool(self.summary.launches) and len(energies) == len(self.summary.launches)
        return sum(energies) if whole else None

    def measured(self) -> HostMeasured | None:
        """Return what it measured; None where that is nothing."""
        if self.summary.items_per_s_total is None:
            return None
        setup = self.summary.launches[0].setup
        return HostMeasured(
            host=self.name,
            gpu_type=self.host.get("gpu_type") or setup.device.name,
            num_devices=self.summary.launches[0].world_size,
            items_per_s_total=self.summary.items_per_s_total,
            items_total=self.summary.items_total,
            energy_j=self.energy_j,
            price_per_hour=self.host.get("price_per_hour"),
        )


def is_fleet(description: Mapping[str, Any]) -> bool:
    """Say whether a run was one on each of several hosts, rather than one job."""
    return FLEET in description and description["config"]["distributed"].get("nodes", 1) == 1


def fleet_exit_code(report: ReportModel) -> ExitCode:
    """Return 0 where every host measured all that it was asked to; 5 where none could begin."""
    causes = {failure.cause for failure in report.failures}
    if report.launches and causes - {"interrupted"}:
        return ExitCode.FAILED  # what one host or test lacked, others had
    for cause, code in (("timeout", ExitCode.TIMEOUT), ("interrupted", ExitCode.INTERRUPTED)):
        if causes == {cause}:
            return code
    if causes and causes <= {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    if causes:
        return ExitCode.FAILED
    incomplete = len(report.launches) < report.num_planned
    return ExitCode.INCONCLUSIVE if incomplete or report.validity in (None, "INVALID") else ExitCode.DONE


def stage_of(failure: Failure) -> str:
    """Name the stage of a failure; what a rank itself tells of happened while it ran."""
    return failure.phase if is_of_host(failure) else "execute"


def is_of_host(failure: Failure) -> bool:
    """Say whether the way to the host failed, rather than what ran there."""
    return failure.rank is None and failure.phase in STAGES


def together(found: Iterable[tuple[str, Finding]]) -> tuple[Finding, ...]:
    """Tell a doubt that several hosts share once, with the hosts; `found` has the host of each.

    A device's fault is the device's own: another one is told by itself.
    """
    shared: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for name, finding in found:
        own = (finding.reason,) if finding.code == FAULT else ()
        shared.setdefault((finding.validity, finding.code, *own), []).append((name, finding))
    told = []
    for occurrences in shared.values():
        names = list(dict.fromkeys(name for name, _ in occurrences))
        first = occurrences[0][1]
        others = f" (also {', '.join(names[1:4])}{' …' if len(names) > 4 else ''})" if len(names) > 1 else ""
        told.append(replace(first, reason=f"{names[0]}: {first.reason}{others}"))
    return tuple(sorted(told, key=lambda finding: finding.validity != "INVALID"))


def without_effect(hosts: Iterable[Sequence[Launch]], origins: Mapping[str, str]) -> tuple[NotApplied, ...]:
    """Return the keys that the user set and that changed no launch of some host, each once."""
    found: dict[str, NotApplied] = {}
    for launches in hosts:
        told = [{item.key: item for item in launch.setup.not_applied} for launch in launches]
        for key, item in told[0].items() if told else ():
            if all(key in items for items in told) and origins.get(key, "default") != "default":
                found.setdefault(key, item)
    return tuple(found.values())


def hosts_and_types(num_measured: int, num_hosts: int, types: Iterable[str]) -> str:
    """Say how many hosts measured, and of which types they are."""
    return ", ".join([f"fleet: {num_measured} of {num_hosts} hosts measured", *types])


def notes_of(launches: Sequence[Launch], cases: Iterable[CaseRecords]) -> list[str]:
    """Return what hosts said of their set-up, each once, and what was torn."""
    notes = list(dict.fromkeys(note for launch in launches for note in launch.setup.notes))
    if any(launch.setup.device.kind == "cpu" for launch in launches):
        notes.append("measured on the CPU: no figure of any GPU")
    return [*notes, *(f"{records.case.placement.host}: {note}" for records in cases for note in records.torn)]


def write_environments(run: RunDirectory, cases: Iterable[CaseRecords]) -> None:
    """Write environment.json, by the inventory's names; none where no host described itself."""
    found = {records.case.placement.host: told.facts for records in cases for told in records.of(Environment)}
    if found:
        run.write_json("environment.json", found)


def host_tests(
    name: str,
    document: Mapping[str, Any],
    *,
    num_planned: int,
    num_measured: int,
    failures: Sequence[Failure],
    of_host: Failure | None,
) -> HostTests:
    """Return a host's tests for the aggregate, and the stage at which it failed, if it did.

    A host that went through the suite is successful, though tests of it may have failed, unless it measured
    nothing. `of_host` is the failure of the way to it.
    """
    told = of_host or next(iter(failures), None)
    ended = num_measured + len(failures)
    if num_measured and ended >= num_planned and of_host is None:
        return HostTests(host=name, document=document)
    missing = NOT_ENDED if num_measured else NOT_BEGUN
    return HostTests(
        host=name,
        document=document if document.get("results") else None,
        stage=None if told is None else stage_of(told),
        error=missing if told is None else told.message or told.cause,
    )


def tests_of(launches: Iterable[Launch]) -> list[dict[str, Any]]:
    """Return launches as tests in S0's form."""
    return [
        {
            "test_name": launch.case.case_id.partition("@")[0],
            "test_type": launch.case.kind,
            "model_name": launch.case.model.name,
            "batch_size": launch.case.data.batch_size,
            "replicate": launch.case.replicate,
            "throughput_samples_per_second": launch.items_per_s_total / launch.setup.items_per_sample,
            "success": True,
        }
        for launch in launches
    ]
