"""What run.json says of a run: what was asked, and the suite that it was planned by. It is read once."""

from __future__ import annotations

import json

from pydantic import ValidationError

from gpuproof.base.errors import RecordError
from gpuproof.config.models import RunConfig
from gpuproof.config.wording import cause_of
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import Suite, read_places
from gpuproof.suites.registry import suite_on

HOSTS = "fleet"
"""The key of run.json that holds the hosts, and how they are reached."""


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
