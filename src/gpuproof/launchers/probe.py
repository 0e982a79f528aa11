"""Query the facts about a node, by running its probe and reading the output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.outside import parse_json
from gpuproof.launchers.commands import node_side_for
from gpuproof.processes.start import safe_environment, starting

TIMEOUT_S = 120.0


def probe(
    python: str | None = None,
    *,
    words: Sequence[str] = (),
    wait_s: float = 0.0,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Return the facts about this host as seen by `python`, by default our own.

    `words` are options for the probe that let it run up to `wait_s` longer than `timeout_s`.

    Raises:
        EnvironmentUnfitError: the probe cannot be started, fails, or hangs.
    """
    place = python or sys.executable
    limit_s = timeout_s + wait_s
    try:
        with node_side_for(python) as worker, starting(place):
            command = [place, *worker, "probe", *words]
            answer = subprocess.run(
                command,
                env=safe_environment(),
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        facts: dict[str, Any] = parse_json(answer.stdout)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfitError(
            f"the probe did not respond within {limit_s:.0f} s",
            place=place,
            next_step="A driver may hang: try nvidia-smi, and look at dmesg",
        ) from error
    except ValueError as error:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentUnfitError(f"the probe failed: {last}", place=place) from error
    return facts
