"""Baselines on disk: JSON with a schema version, small enough to store with a fleet's recipes.

A baseline is `NAME.json` in a folder, or a file given by its path.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

from gpuproof.base.errors import UsageError
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.result import Result, Validity, worst
from gpuproof.store.run import RunDirectory, write_whole
from gpuproof.store.versions import read_versioned
from gpuproof.suites.results import environment_facts
from gpuproof.verdict.baseline import BASELINE_SCHEMA_VERSION, Baseline, RunValues, stack_of_run
from gpuproof.verdict.doubts.rules import weighed
from gpuproof.verdict.facts import FleetFacts


def baseline_path(name: str, folder: Path) -> Path:
    """Return the path of a baseline: the name itself if it ends in .json, else a file in the folder.

    >>> [baseline_path(name, Path("baselines")).as_posix() for name in ("pod-a", "kept/pod-a.json")]
    ['baselines/pod-a.json', 'kept/pod-a.json']
    """
    return Path(name) if name.endswith(".json") else folder / f"{name}.json"


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: there is no such baseline.
        RecordError: the baseline is damaged or has a newer schema.
    """
    if not path.is_file():
        raise UsageError(
            "this baseline does not exist",
            place=str(path),
            next_step="Record one: gpuproof baseline record NAME RUN...",
        )
    data = read_versioned(path, "a baseline", newest=BASELINE_SCHEMA_VERSION)
    return from_json(Baseline, data, place=str(path))


def write_baseline(baseline: Baseline, path: Path, *, replace: bool) -> None:
    """Write a baseline atomically.

    Raises:
        UsageError: the baseline already exists and may not be replaced.
        EnvironmentUnfitError: the location is not writable.
    """
    if path.exists() and not replace:
        raise UsageError(
            "a baseline with that name already exists",
            place=str(path),
            next_step="Use --replace, or another name",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(to_json(baseline), indent=1, allow_nan=False) + "\n")


def read_facts(run: RunDirectory) -> FleetFacts:
    """Return what rules need from a finished run: its measures, and the facts reported by its hosts.

    Raises:
        UsageError: the run has no result yet.
        RecordError: a file of the run is damaged.
    """
    result = run.read_result()
    if result is None:
        raise UsageError("it has no result yet", place=str(run.root), next_step="Finish it with --resume")
    launches = run.cases()
    hosts = environment_facts(launches, by_inventory=True) or {}
    return FleetFacts(measures=result.measures, hosts=hosts, launches=launches)


def run_values(run: RunDirectory) -> RunValues:
    """Return what a baseline stores about a run.

    Raises:
        UsageError: the run has no result yet.
        RecordError: a file of the run is damaged.
    """
    facts, result = read_facts(run), run.read_result()
    return RunValues(
        run_id=run.root.name,
        measures=facts.measures,
        stack=stack_of_run(facts.hosts, facts.launches),
        day=_day_of(run.description()["created"]),
        validity=None if result is None else _validity_of_device(result),
    )


def _validity_of_device(result: Result) -> Validity | None:
    """Return the validity of a run's device results: a host-bound or loader-bound rate is not evidence."""
    return None if result.validity is None else worst(weighed(result.doubts, is_of_device=True))


def _day_of(created: str) -> str:
    moment = datetime.fromisoformat(created)
    return (moment if moment.tzinfo is None else moment.astimezone(timezone.utc)).date().isoformat()
