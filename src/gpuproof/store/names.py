"""Find the run that a short name refers to, and read what that run requested.

The input is what a user typed (`last`, a number from `gpuproof runs`, or the first letters of a run's name),
and where runs are stored. The output is the run's directory. An existing path always refers to itself. For a
run, this module also returns its config and the suite that planned it, as stored in run.json, which is read
once.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from gpuproof.base.errors import RecordError, UsageError
from gpuproof.base.units import first_of
from gpuproof.config.entries import cause_of
from gpuproof.config.models import RunConfig
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory, list_runs
from gpuproof.suites.base import Suite, read_places
from gpuproof.suites.registry import suite_on

LAST = "last"
SAVE_DIR = Path("results")
"""Where runs are stored unless run.save_dir says otherwise."""
MOST_NAMED = 5
HOSTS = "fleet"
"""The key in run.json under which the hosts and how to reach them are stored."""


def find_run(name: str, save_dir: Path = SAVE_DIR) -> Path:
    """Return the directory of the run that `name` refers to; if there is none, the name as a path.

    Number 1 is the newest run, like `last`. A name is the run's folder, optionally preceded by its
    experiment's folder.

    Raises:
        UsageError: there are no runs, too few runs, or several runs with this prefix.
    """
    if not name or Path(name).exists():
        return Path(name)
    roots = [run.root for run in list_runs(save_dir)]
    if not (name == LAST or name.isdecimal()):
        return _run_by_name(name, roots, save_dir)
    number = 1 if name == LAST else int(name)
    if not roots:
        raise UsageError("no run exists yet", place=str(save_dir), next_step="Start one: gpuproof run quick")
    if not 1 <= number <= len(roots):
        raise UsageError(
            f"there is no run {number}: runs are numbered from 1 to {len(roots)}",
            place=str(save_dir),
            next_step="`gpuproof runs` lists them",
        )
    return roots[number - 1]


def _run_by_name(name: str, roots: list[Path], save_dir: Path) -> Path:
    names = {root: (root.name, root.relative_to(save_dir).as_posix()) for root in roots}
    exact = [root for root in roots if name in names[root]]
    alike = exact or [root for root in roots if any(alias.startswith(name) for alias in names[root])]
    if len(alike) > 1:
        shown = first_of([names[root][1] for root in alike], MOST_NAMED)
        raise UsageError(
            f"several runs start with {name}: {shown}",
            place=str(save_dir),
            next_step="Type more of the name, or its number in `gpuproof runs`",
        )
    return alike[0] if alike else Path(name)


def read_config(run: RunDirectory) -> RunConfig:
    """Return the config that was requested for a run.

    Raises:
        RecordError: run.json does not contain the config, or is damaged.
    """
    if run.config is None:
        run.config = _parse(run)
    return run.config


def read_suite(run: RunDirectory) -> Suite:
    """Return the suite that planned a run.

    Raises:
        RecordError: run.json is damaged.
        UsageError: no suite handles the run's recipe.
    """
    return suite_on(read_config(run), read_places(run.description()))


def _parse(run: RunDirectory) -> RunConfig:
    config_json = run.description().get("config")
    try:
        config = RunConfig.model_validate_json(json.dumps(config_json))
        if all(isinstance(values, list) for values in config.matrix.values()):
            return config
        raise RecordError(
            "the run's config cannot be read: matrix: an axis is not a list of values",
            place=str(run.root / layout.DESCRIPTION),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "config"
        raise RecordError(
            f"the run's config cannot be read: {key}: {cause_of(first)}",
            place=str(run.root / layout.DESCRIPTION),
            next_step="It was changed after the run, or by another version: use that version to read it",
        ) from None
