"""Results of a matrix: metrics per configuration, warnings, failures, and the matrix's files.

A model launch is evaluated based on its own window. For a command, only the CPU time and the host's load are
available; a warning is added to its times if other processes, such as cases of the same matrix, kept the CPUs
busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.config.models import RunConfig
from gpuproof.launches.launch import summarize_launch
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.limits import LaunchLimits
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Better, Doubt, Result
from gpuproof.records.run import Failure
from gpuproof.records.work.command import CollectedFiles, CommandEnded, CommandStarted
from gpuproof.suites.base import Conclusion, LaunchKey, launch_key
from gpuproof.suites.matrix.case_values import CaseValues, case_limits, case_values
from gpuproof.suites.matrix.compare import (
    ConfigurationValues,
    DoubtsOfCases,
    MatrixRanking,
    choose_metric,
    configurations,
    differing_work,
    memory_cost,
    pareto_front,
    rank_configurations,
)
from gpuproof.suites.matrix.exports import exports_of
from gpuproof.suites.matrix.measures import NO_POSITIONS, WALL
from gpuproof.suites.matrix.plan import MOST_ALIKE, MatrixPlan, failure_reason, plan
from gpuproof.suites.results import benchmark_result, positions_in_time
from gpuproof.suites.sections import Common, at_point, torn_notes
from gpuproof.verdict.doubts.base import Measured, suspect
from gpuproof.verdict.doubts.interference import NEIGHBOURS_CODE, fill_the_cpus
from gpuproof.verdict.doubts.rules import doubts_about, invalid_first, joined_doubts

MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixDetail:
    """Data for the matrix page that is not part of the result."""

    common: Common
    configurations: tuple[ConfigurationValues, ...]
    cases: tuple[CaseValues, ...]
    """The values of each case, without their time series."""
    ranking: MatrixRanking
    front_by_memory: tuple[str, ...] = ()
    front_by_time: tuple[str, ...] = ()
    """Pareto front by time; empty, like the one by memory, if configurations ran different workloads."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a matrix and its files."""
    config: RunConfig = evidence.config
    planned = plan(config)
    cases = [
        case_values(records, evidence, planned.cases[records.case.case_id])
        for records in evidence.launches
        if records.case.case_id in planned.cases
    ]
    of_models, of_times = _doubts_of_models(evidence.launches), doubts_of_times(evidence)
    result = matrix_result(
        cases,
        evidence,
        title=_title(config, len(planned.cases)),
        num_planned=len(planned.order),
        doubts=[*joined_doubts(list(of_models.values())), *dict.fromkeys(chain(*of_times.values()))],
        doubts_of_cases={
            key: (*of_models.get(key, ()), *of_times.get(key, ())) for key in {**of_models, **of_times}
        },
        failures=_failures(evidence.launches, planned),
        notes=tuple(_notes(evidence.launches, cases)),
        positions=positions_in_time(evidence.launches),
        limits=[case_limits(records, evidence) for records in evidence.launches if records.status == "done"],
    )
    return Conclusion(result=result, exports=tuple(exports_of(cases, result, evidence)))


def matrix_result(
    cases: Sequence[CaseValues],
    evidence: Evidence,
    *,
    title: str,
    num_planned: int,
    doubts: Sequence[Doubt] = (),
    doubts_of_cases: DoubtsOfCases = MappingProxyType({}),
    failures: Sequence[Failure] = (),
    notes: tuple[str, ...] = (),
    positions: Mapping[LaunchKey, int] = NO_POSITIONS,
    limits: Sequence[LaunchLimits] = (),
) -> Result:
    """Return the result of the cases, regardless of where they were read from."""
    spec, unlike = evidence.config.cases, list(differing_work(cases))
    metric, better = choose_metric(cases, spec.metric, spec.better)
    num_done = sum(case.status == "done" for case in cases)
    rows = configurations(cases, metric, better, seed=spec.seed, doubts=doubts_of_cases, positions=positions)
    ranking = rank_configurations(rows, metric, better, unlike=unlike)
    detail = MatrixDetail(
        common=Common(title=title, work=title, names_cases=True, notes=notes),
        configurations=tuple(replace(one, measures=()) for one in rows),
        cases=tuple(map(_without_courses, cases)),
        ranking=ranking,
        **({} if unlike else _fronts(rows, metric, better)),
    )
    return benchmark_result(
        "matrix",
        evidence,
        measures=[m for one in rows for m in one.measures if m.value is not None or m.name == metric],
        doubts=invalid_first([*unlike, *doubts]),
        failures=failures,
        num_launches=num_done,
        num_planned=num_planned,
        conditions={"metric": metric, "devices": sorted({name for case in cases for name in case.devices})},
        detail=to_json(detail),
        headline_text=_headline(ranking, num_done, num_planned),
        is_of_points=num_planned > 1,
        limits=limits,
    )


def _fronts(group: Sequence[ConfigurationValues], metric: str, better: Better) -> dict[str, tuple[str, ...]]:
    """Return both fronts: by time, and by whichever kind of memory is available."""
    by_time = pareto_front(group, WALL, better, figures=(metric, WALL))
    by_memory = pareto_front(group, memory_cost(group), better, figures=(metric,))
    return {"front_by_memory": tuple(by_memory), "front_by_time": tuple(by_time)}


def _without_courses(case: CaseValues) -> CaseValues:
    bare = [replace(amount, course=()) for amount in (case.memory, case.resident)]
    return replace(case, memory=bare[0], resident=bare[1], schedules={})


def _headline(ranking: MatrixRanking, num_done: int, num_planned: int) -> str:
    done = f"{num_done} of {num_planned} cases"
    if ranking.best is None:
        return done
    return f"{done}, best {ranking.metric}: {ranking.best}"


def _title(config: RunConfig, num_cases: int) -> str:
    what = " ".join(map(str, config.command.argv[:2])).replace("{python}", "python") or config.model.name
    keys = [key for key in config.matrix if key not in ("exclude", "include")]
    of = f" of {' × '.join(keys)}" if keys else ""
    return f"{what}, {num_cases} case{'' if num_cases == 1 else 's'}{of}"


def _doubts_of_models(launches: Sequence[CaseRecords]) -> dict[LaunchKey, tuple[Doubt, ...]]:
    """Evaluate launches that measured model steps; commands are skipped, because they have no steps."""
    return {
        launch_key(records.case): doubts_about(Measured(launch=launch))
        for records in launches
        if (launch := summarize_launch(records)) is not None
    }


def _failures(launches: Sequence[CaseRecords], planned: MatrixPlan) -> list[Failure]:
    """Return one failure per reason, from the first case that failed for it."""
    by_reason: dict[str, list[CaseRecords]] = {}
    for records in launches:
        if (reason := failure_reason(records)) is not None:
            by_reason.setdefault(reason, []).append(records)
    return [_failure_of(alike, len(launches), planned) for alike in by_reason.values()]


def _failure_of(alike: Sequence[CaseRecords], num_launches: int, planned: MatrixPlan) -> Failure:
    """Return one failure for launches with the same reason, and what to do about unstarted launches."""
    failure, place = alike[0].primary_failure, launch_key(alike[0].case)[0]
    assert failure is not None
    if len(alike) > 1:
        place += f" and in {len(alike) - 1:,} more of {num_launches:,} launches"
    if len(planned.order) > 1:
        failure = at_point(failure, place)
    num_left, spec = len(planned.order) - num_launches, planned.config.cases
    if spec.keep_going or spec.stop_on_failure or len(alike) < max(MOST_ALIKE, num_launches) or not num_left:
        return failure
    step = (
        f"{num_left:,} launches were not started, since the first {len(alike)} failed the same "
        "way. Fix the cause, and continue with `gpuproof matrix --continue-dir RUN "
        "--retry-failed`; --keep-going starts them anyway"
    )
    return replace(failure, next_step=f"{failure.next_step}. {step}" if failure.next_step else step)


def _notes(launches: Sequence[CaseRecords], cases: Sequence[CaseValues]) -> Iterator[str]:
    for reason in dict.fromkeys(case.metrics_missing for case in cases if case.metrics_missing):
        names = list(dict.fromkeys(case.case_id for case in cases if case.metrics_missing == reason))
        yield f"{units.first_of(names, MOST_NAMED)} reported no results: {reason}"
    for records in launches:
        for files in records.of(CollectedFiles):
            if files.missing:
                yield f"{records.case.case_id}: no file matches {', '.join(files.missing)}"
    bases = dict.fromkeys(amount.basis for case in cases for amount in (case.memory, case.resident))
    yield from (_basis_note(basis) for basis in bases if basis)
    reasons = dict.fromkeys(case.energy_missing for case in cases if case.energy_missing)
    yield from (f"no energy: {reason}" for reason in reasons)
    yield from torn_notes(launches)


def _basis_note(basis: str) -> str:
    if basis == "process tree":
        return "GPU memory is what the driver reports for the case's processes, sampled about once a second"
    if basis == "allocator":
        return "GPU memory is the maximum that the framework's allocator held for tensors"
    if basis.startswith("resident"):
        return "resident is the host memory of the case's processes; shared pages count once per process"
    return (
        f"GPU memory is for the {basis}, including other processes: the driver listed none of "
        "the case's processes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """When and where a command ran, on its host's monotonic clock, and its CPU use."""

    case: Case
    host: str
    begin_s: float
    end_s: float
    command_cpus: float
    """Average number of CPUs that the command kept busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowded:
    """A command that ran while all CPUs were busy, partly with other processes."""

    case_id: str
    others_cpus: float
    num_cpus: int


def doubts_of_times(evidence: Evidence) -> dict[LaunchKey, list[Doubt]]:
    """Warn, per launch, about command times when other processes kept the CPUs busy; once per host."""
    by_host = grouped((ran.host, ran) for ran in _commands(evidence.launches))
    doubts: dict[LaunchKey, list[Doubt]] = {}
    for host, commands in by_host.items():
        crowded = {launch_key(ran.case): figures for ran in commands if (figures := _crowding(ran, evidence))}
        for key in crowded:
            doubts.setdefault(key, []).append(_host_doubt(host, commands, list(crowded.values())))
    return doubts


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Return the largest number of overlapping time spans; spans that only touch do not overlap.

    >>> most_at_once([(0, 2), (1, 3), (2, 4)])
    2
    """
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    running, most = 0, 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def _commands(launches: Sequence[CaseRecords]) -> Iterator[_Ran]:
    for records in launches:
        for started, ended in zip(records.of(CommandStarted), records.of(CommandEnded), strict=False):
            if ended.wall_s > 0 and records.status == "done":
                yield _Ran(
                    case=records.case,
                    host=started.host,
                    begin_s=ended.begin_monotonic_s,
                    end_s=ended.end_monotonic_s,
                    command_cpus=ended.cpu_s / ended.wall_s,
                )


def _host_doubt(host: str, commands: Sequence[_Ran], crowded: Sequence[_Crowded]) -> Doubt:
    worst = max(crowded, key=lambda one: one.others_cpus)
    at_once = most_at_once([(ran.begin_s, ran.end_s) for ran in commands])
    beside = f"; up to {at_once} cases ran at a time" if at_once > 1 else ""
    alone = ", one case at a time (cases.parallel=1)" if at_once > 1 else ""
    return suspect(
        NEIGHBOURS_CODE,
        f"the CPUs of {host} were all in use while {len(crowded)} of {len(commands)} commands ran, "
        f"partly by other processes (during {worst.case_id} {worst.others_cpus:.1f} of "
        f"{worst.num_cpus}){beside}: times may be longer than for a case alone",
        f"For comparable times, repeat the run on an idle machine{alone}",
    )


def _crowding(ran: _Ran, evidence: Evidence) -> _Crowded | None:
    recording = evidence.recording(ran.case, ran.host)
    if isinstance(recording, MissingReadings):
        return None
    read = evidence.readings(
        ran.case, ran.host, begin_monotonic_s=ran.begin_s, end_monotonic_s=ran.end_s, uuids=()
    )
    num_cpus = recording.recording.host_facts.get("cpus_logical")
    if isinstance(read, MissingReadings) or read.host.cpu_percent is None or not isinstance(num_cpus, int):
        return None
    busy_cpus = read.host.cpu_percent / 100 * num_cpus
    if not fill_the_cpus(busy_cpus, ran.command_cpus, num_cpus):
        return None
    return _Crowded(
        case_id=ran.case.case_id, others_cpus=max(0.0, busy_cpus - ran.command_cpus), num_cpus=num_cpus
    )
