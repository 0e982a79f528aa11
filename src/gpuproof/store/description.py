"""What run.json says of a run: what was asked, and where it takes place."""

from __future__ import annotations

import json

from gpuproof.config.models import RunConfig
from gpuproof.records.codec import from_json
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace

HOSTS = "fleet"
"""The key of run.json that holds the hosts, and how they are reached."""
THIS_MACHINE = (HostPlace(name=""),)


def config_of(run: RunDirectory) -> RunConfig:
    """Read back what a run was asked."""
    return RunConfig.model_validate_json(json.dumps(run.description()["config"]))


def places_of(run: RunDirectory) -> tuple[HostPlace, ...]:
    """Return the places as they were when the run was begun; older versions wrote down the hosts only."""
    description = run.description()
    kept = description.get("places")
    if kept is not None:
        return tuple(from_json(HostPlace, place, place=layout.DESCRIPTION) for place in kept)
    hosts = description.get(HOSTS, {}).get("hosts", ())
    places = (HostPlace(name=host["name"], num_devices=host.get("gpus")) for host in hosts)
    return tuple(places) or THIS_MACHINE
