"""The Python API: measure a recipe, read a result, compare two runs; offered by `import gpuproof`.

result = gpuproof.run("quick", {"model.name": "resnet50", "run.repeats": 5})
print(result.headline, result.validity, result["throughput"].value)
table = result.to_frame()
result = gpuproof.load_result("results/quick/run_20261120T133012_4711")
found = gpuproof.compare("results/quick/before", "results/quick/after", max_regression=0.02)
times_s = gpuproof.load_step_times("results/quick/run_20261120T133012_4711")["main/0"]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.outside import parse_json
from gpuproof.campaign.campaign import create_run, run_campaign
from gpuproof.campaign.conclude import conclude_unwritten, page_of_result
from gpuproof.campaign.finished import read_finished
from gpuproof.campaign.scheduler import UnheardProgress
from gpuproof.comparison.runs import BETWEEN_SESSIONS, compare_runs, page_of
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.settings import OVERRIDES
from gpuproof.launchers.local.site import ThisMachine
from gpuproof.launchers.registry import open_launcher
from gpuproof.launchers.surroundings import refuse_to_be_a_rank
from gpuproof.launches.launch import summarize_launch
from gpuproof.records.codec import from_json
from gpuproof.records.page import Page
from gpuproof.records.result import RESULT_SCHEMA_VERSION, WHOLE, Measure, Result
from gpuproof.report.formats import measure_rows, render_page
from gpuproof.store.layout import DESCRIPTION
from gpuproof.store.run import RunDirectory

RESULT_FILE = "result.json"


class MeasureNotFoundError(UsageError, KeyError):
    """No measure, or more than one, has the requested name."""


class RunResult(Result):
    """A run's result in Python: measures by name, as a table, and the page in a notebook."""

    _page: Callable[[], Page] | None = None
    """Function that creates the page; None if only the result itself exists."""

    def __getitem__(self, name: str) -> Measure:
        """Return the whole-run measure with this name.

        Raises:
            MeasureNotFoundError: no measure has that name, or several cases or statistics do.
        """
        of_whole = [measure for measure in self.measures if measure.subject == WHOLE]
        named = [measure for measure in of_whole if measure.name == name]
        if len(named) == 1:
            return named[0]
        names = ", ".join(dict.fromkeys(measure.name for measure in of_whole)) or "none: nothing was measured"
        cause, step = "no measure of the whole run has this name", f"Names are {names}"
        if named:
            cases = ", ".join(f"{measure.case} ({measure.statistic})" for measure in named)
            cause, step = f"{len(named)} measures have this name: {cases}", "Choose one of result.measures"
        raise MeasureNotFoundError(cause, place=f'result["{name}"]', next_step=step)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row per measure: the columns of `gpuproof report --format csv`, as plain values."""
        return measure_rows(self)

    def to_frame(self) -> Any:
        """Return `to_records()` as a pandas DataFrame.

        Raises:
            EnvironmentUnfitError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise EnvironmentUnfitError(
                f"pandas is not installed for {sys.executable}",
                place="result.to_frame()",
                next_step="pip install pandas, or use result.to_records(), which has no dependencies",
            ) from error
        return DataFrame(self.to_records())

    def _repr_html_(self) -> str:
        """Return the page of `gpuproof report --format html` in a separate frame."""
        page = page_of_result(self) if self._page is None else self._page()
        text = escape(render_page(page, "html"))
        return f'<iframe srcdoc="{text}" style="width: 100%; height: 40rem; border: 0"></iframe>'


def _with_page(result: Result, page: Callable[[], Page] | None) -> RunResult:
    shown = RunResult(**{field.name: getattr(result, field.name) for field in fields(result)})
    object.__setattr__(shown, "_page", page)  # not part of the value: ignored when results are compared
    return shown


def run(
    config: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    python: str | None = None,
) -> RunResult:
    """Run a recipe on this machine, and return the result.

    Args:
        config: a YAML file, or the name of a recipe shipped with gpuproof, e.g. "quick".
        overrides: dotted key → value, applied on top of the recipe: `{"training.precision": "bf16"}`.
        python: the Python to run the ranks with, which only needs torch; defaults to the current one.

    A run that failed or cannot be trusted also returns a result: `exit_code`, `validity` and `failures`
    report this. Must be called from the main thread.

    Raises:
        UsageError: the config has errors, or this process is a rank of another launch.
        EnvironmentUnfitError: no process can be started, or the disk is full.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the ranks exited; finished measurements are kept.
    """
    words = [f"--{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
    loaded = load_config(os.fspath(config), words, given_by=OVERRIDES)
    _refuse_other_hosts_and_launchers(loaded.config)
    directory = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
    with open_launcher(ThisMachine(python=python)) as launcher:
        concluded = run_campaign(directory, launcher=launcher, progress=UnheardProgress())
    return _with_page(concluded.result, lambda: concluded.page)


def _refuse_other_hosts_and_launchers(config: RunConfig) -> None:
    refuse_to_be_a_rank(os.environ, command="gpuproof.run")
    if config.distributed.nodes > 1:
        raise UsageError(
            "gpuproof.run only measures this machine",
            place="distributed.nodes",
            next_step="Use `gpuproof run --deployment-file FILE`, or set it to 1",
        )


def load_result(path: str | os.PathLike[str]) -> RunResult:
    """Read a run's result from its directory or from its result.json.

    Raises:
        UsageError: there is no result.
        RecordError: the file is damaged, or was written by a newer gpuproof.
    """
    place = Path(path)
    file = place / RESULT_FILE if place.is_dir() else place
    try:
        content = parse_json(file.read_bytes())
    except OSError as error:
        raise UsageError(
            error.strerror or str(error), place=str(file), next_step="`gpuproof report RUN` recreates it"
        ) from error
    except ValueError as error:
        raise RecordError(f"is not JSON ({error})", place=str(file)) from error
    version = content.get("schema_version", 0) if isinstance(content, dict) else 0
    if version > RESULT_SCHEMA_VERSION:
        raise RecordError(
            f"has schema version {version}, but this gpuproof supports {RESULT_SCHEMA_VERSION}",
            place=str(file),
            next_step="Install a newer gpuproof",
        )
    run = RunDirectory(file.parent)
    is_of_run = file.name == RESULT_FILE and (run.root / DESCRIPTION).is_file()
    page = (lambda: conclude_unwritten(run).page) if is_of_run else None
    return _with_page(from_json(Result, content, place=str(file)), page)


def load_step_times(path: str | os.PathLike[str]) -> dict[str, tuple[float, ...]]:
    """Return the step times of each launch of a run, in seconds, by the launch's folder in `cases/`.

    The step times come from the rank with the longest window, in order and without the warm-up. A launch that
    failed, or that stored no step times (`benchmark.log_step_times: false`), is omitted.

    Raises:
        UsageError: there is no run at `path`.
        RecordError: a file of the run is damaged.
    """
    launches = [summarize_launch(records) for records in RunDirectory.open(Path(path)).cases()]
    return {
        f"{launch.case.case_id}/{launch.case.replicate}": launch.step_times_s
        for launch in launches
        if launch is not None and launch.step_times_s
    }


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    across: Sequence[str] = (),
    max_regression: float | None = None,
    between_sessions: float = BETWEEN_SESSIONS,
) -> RunResult:
    """Compare run B with run A, measure by measure, without launching anything; return the result.

    Args:
        a: the directory of the reference run.
        b: the directory of the other run.
        across: keys, or whole sections, that are expected to differ: `["training.precision"]`, `["stack"]`.
        max_regression: turns the comparison into a gate: `exit_code` is 3 if the interval of a measure is
            entirely beyond that regression (0.02 is 2 %), and 4 if this cannot be determined.
        between_sessions: relative standard deviation between sessions, added to each interval.

    Raises:
        UsageError: the runs were not measured under the same conditions, or do not exist.
        RecordError: a file of a run is damaged.
    """
    try:
        result = compare_runs(
            read_finished(Path(a)),
            read_finished(Path(b)),
            across=across,
            max_regression=max_regression,
            between_sessions=between_sessions,
        )
    except UsageError as error:
        if error.place is not None and error.place.startswith("--"):  # one of the command's options
            error.place = error.place.removeprefix("--").replace("-", "_")
        raise
    return _with_page(result, lambda: page_of(result))
