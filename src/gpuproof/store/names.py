"""Which run does a short name mean, and what was it asked?

In: what a user typed (`last`, a number of `gpuproof runs`, or the first letters of its name), and where runs
lie. Out: the run's directory; a path that is there is always itself. Of a run: its config and the suite that
it was planned by, as run.json has them. It is read once.
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
"""Where runs lie unless run.save_dir says otherwise."""
MOST_NAMED = 5
HOSTS = "fleet"
"""The key of run.json that holds the hosts, and how they are reached."""


def find_run(name: str, save_dir: Path = SAVE_DIR) -> Path:
    """Return the directory of the run that `name` means; the name as a path where it means none.

    1 is the newest run, as `last` is. A name is the run's folder, or the folder of its experiment before it.

    Raises:
        UsageError: there is no run yet, not so many, or several begin like this.
    """
    if not name or Path(name).exists():
        return Path(name)
    roots = [run.root for run in list_runs(save_dir)]
    if not (name == LAST or name.isdecimal()):
        return _run_by_name(name, roots, save_dir)
    number = 1 if name == LAST else int(name)
    if not roots:
        raise UsageError(
            "there is no run yet", place=str(save_dir), next_step="Start one: gpuproof run quick"
        )
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
            f"several runs begin with {name}: {shown}",
            place=str(save_dir),
            next_step="Write more of the name, or its number in `gpuproof runs`",
        )
    return alike[0] if alike else Path(name)


def read_config(run: RunDirectory) -> RunConfig:
    """Return what a run was asked.

    Raises:
        RecordError: run.json does not hold it, or it is damaged.
    """
    if run.config is None:
        run.config = _parse(run)
    return run.config


def read_suite(run: RunDirectory) -> Suite:
    """Return the suite that a run was planned by.

    Raises:
        RecordError: run.json is damaged.
        UsageError: no suite answers its recipe.
    """
    return suite_on(read_config(run), read_places(run.description()))


def _parse(run: RunDirectory) -> RunConfig:
    config_json = run.description().get("config")
    try:
        config = RunConfig.model_validate_json(json.dumps(config_json))
        if all(isinstance(values, list) for values in config.matrix.values()):
            return config
        raise RecordError(
            "what the run was asked cannot be read: matrix: an axis is no list of values",
            place=str(run.root / layout.DESCRIPTION),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "config"
        raise RecordError(
            f"what the run was asked cannot be read: {key}: {cause_of(first)}",
            place=str(run.root / layout.DESCRIPTION),
            next_step="It was changed after the run, or by another version: read it with that one",
        ) from None
