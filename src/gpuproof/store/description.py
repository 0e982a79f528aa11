"""What run.json says of a run: what was asked, and where it takes place."""

from __future__ import annotations

import json

from gpuproof.config.models import RunConfig
from gpuproof.store.run import RunDirectory

HOSTS = "fleet"
"""The key of run.json that holds the hosts, and how they are reached."""
SLURM = "slurm"
"""The key of run.json that holds what is asked of Slurm for a run on a cluster."""


def read_config(run: RunDirectory) -> RunConfig:
    """Read back what a run was asked."""
    return RunConfig.model_validate_json(json.dumps(run.description()["config"]))
