"""Finished runs, and results of older tools, read from disk for comparison.

Input: the directory of a concluded run; from older tools, the load test's JSON, the folder of a training
benchmark or one of its files, a study's JSON for one side, or the cluster test's JSON. Output: a
`FinishedRun`, or throughputs as measures. It is unknown how the older tools' results were obtained, so they
are SUSPECT: they are shown, exported and compared side by side, but no winner is declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import fsum
from pathlib import Path
from typing import Any

from gpuproof.base import units
from gpuproof.base.errors import UsageError
from gpuproof.base.outside import parse_json
from gpuproof.comparison.conditions import conditions_of
from gpuproof.comparison.runs import FinishedRun
from gpuproof.records.result import OLDER, THE_RUN, Doubt, LaunchValue, Measure, Result
from gpuproof.records.run import Failure
from gpuproof.store.provenance import of_old_tree, read_environment, read_provenance
from gpuproof.store.run import RunDirectory
from gpuproof.suites.matrix.old_tree import conclude_old_tree, is_old_tree, tree_evidence
from gpuproof.suites.results import benchmark_result
from gpuproof.suites.sections import headline

EPOCHS, SUMMARY = "metrics_epoch.jsonl", "run_summary.json"
OF_A_RUN = (EPOCHS, SUMMARY, "summary.csv", "trace_rank0.json")
CONDITIONS = ("model", "world_size", "precision", "batch_size", "batch_size_per_gpu", "backend")
RATE = "throughput_samples_per_second"
AGREEMENT = 0.02
"""A rate and a step time of an older tool may differ by up to this fraction, for rounding."""


def read_older_result(path: Path) -> Result | None:
    """Read a result of an older tool; None if the file is in none of their formats."""
    path = path.parent if path.name in OF_A_RUN and (path.parent / SUMMARY).is_file() else path
    if (path / "run.json").exists():
        return None
    try:
        content = None if (path / SUMMARY).is_file() else parse_json(path.read_text("utf-8"))
        read = _training(path) if content is None else _read(content)
        doubts = (*_contradiction(content), OLDER)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # damaged, or a different file with that name
    return None if read is None else _result(path, *read, doubts=doubts)


def _contradiction(content: Any) -> Iterator[Doubt]:
    """Find a rate of the cluster test that its own step time and batch exclude."""
    if not isinstance(content, dict) or RATE not in content:
        return
    step_s = content.get("average_step_time_seconds") or (content.get("avg_step_time_ms") or 0.0) / 1e3
    rate, batch = content[RATE], content.get("global_batch_size")
    if rate and batch and step_s and abs(rate * step_s / batch - 1) > AGREEMENT:
        yield Doubt(
            validity="INVALID",
            code="older-result-disagrees",
            reason=(
                f"{units.rate(rate, 'samples')} does not agree with {batch:,} samples in steps of "
                f"{units.seconds(step_s)}, which make {units.rate(batch / step_s, 'samples')}: that tool "
                "is known to multiply its rate by the number of ranks"
            ),
            remedy=OLDER.remedy,
        )


def _read(content: Any) -> tuple[dict[str, Any], list[Measure]] | None:
    match content:
        case {"system_info": {"gpu_names": devices}, "results": tests}:
            rates = [
                _throughput(test.get(RATE) if test["success"] else None, case=test["test_name"])
                for test in tests
            ]
            return {"device": ", ".join(devices) or None}, rates
        case [{"mean_samples_per_sec": _, "model_type": model, "multi_gpu": is_multi}, *_]:
            return {"model": model, "multi_gpu": is_multi}, [
                _throughput(batch["mean_samples_per_sec"], batch_size=batch["batch_size"])
                for batch in content
            ]
        case {"throughput_samples_per_second": rate, "world_size": _}:
            return {name: content.get(name) for name in CONDITIONS}, [_throughput(rate)]
    return None


def _training(folder: Path) -> tuple[dict[str, Any], list[Measure]]:
    summary = parse_json((folder / SUMMARY).read_text("utf-8"))
    rows = [parse_json(line) for line in (folder / EPOCHS).read_text("utf-8").splitlines()]
    rates = [(row["measured_samples"], row["throughput_samples_per_s"]) for row in rows]
    time_s = fsum(samples / rate for samples, rate in rates if rate)
    whole = _throughput(fsum(samples for samples, rate in rates if rate) / time_s if time_s else None)
    epochs = [_throughput(row["throughput_samples_per_s"] or None, epoch=row["epoch"]) for row in rows]
    return {name: summary.get(name) for name in CONDITIONS}, [whole, *epochs]


def _throughput(value: float | None, case: str = THE_RUN, **labels: Any) -> Measure:
    """Return a throughput in samples/s as reported, from one launch: these tools never repeat one."""
    return Measure(
        name="throughput",
        value=value,
        unit="samples/s",
        text=units.rate(value, "samples"),
        case=case,
        labels=labels,
        better="higher",
        launches=() if value is None else (LaunchValue(replicate=0, order=0, value=value),),
        missing="it failed, or measured no steps" if value is None else None,
    )


def _failures(measures: list[Measure]) -> list[Failure]:
    lost = [measure for measure in measures if measure.value is None and measure.case != THE_RUN]
    return [
        Failure(
            rank=None,
            host="an unknown host",
            phase="measure",
            cause="exception",
            message=f"at {measure.case}: {measure.missing}",
            unix_s=0.0,
        )
        for measure in lost
    ]


def _result(
    path: Path, conditions: Mapping[str, Any], measures: list[Measure], *, doubts: tuple[Doubt, ...]
) -> Result:
    num_measured = sum(measure.value is not None for measure in measures)
    has_tests = any(measure.case != THE_RUN for measure in measures)
    return benchmark_result(
        "older",
        tree_evidence(path),
        measures=measures,
        doubts=doubts,
        failures=_failures(measures),
        num_launches=num_measured,
        num_planned=len(measures) if has_tests else num_measured,
        conditions=conditions,
        detail={},
        headline_text=f"{num_measured} of {len(measures)} tests" if has_tests else headline(measures),
    )


def read_finished(path: Path) -> FinishedRun:
    """Read a concluded run, or a result from an older tool.

    Raises:
        UsageError: there is no run at this path, or it was never concluded.
        RecordError: a file of the run is damaged.
    """
    older = conclude_old_tree(path)[1] if is_old_tree(path) else read_older_result(path)
    if older is not None:
        return FinishedRun(
            name=str(path),
            result=older,
            conditions=older.conditions,
            knows_stack=False,
            provenance=of_old_tree(),
        )
    run = RunDirectory.open(path)
    result = run.read_result()
    if result is None:
        raise UsageError(
            "the run has no result yet: it does not contain a result.json",
            place=str(path),
            next_step=f"`gpuproof report {path}` creates it",
        )
    hosts = read_environment(run)
    return FinishedRun(
        name=str(path),
        result=result,
        conditions=conditions_of(result, run.description()["config"], hosts),
        knows_stack=hosts is not None,
        provenance=read_provenance(run, result),
    )
