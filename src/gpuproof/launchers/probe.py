"""Ask a node what it has: start its probe and read what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.launchers.commands import INSTALLED_WORKER

TIMEOUT_S = 120.0


def probe(
    python: str = sys.executable,
    *,
    worker: Sequence[str] = INSTALLED_WORKER,
    words: Sequence[str] = (),
    wait_s: float = 0.0,
) -> dict[str, Any]:
    """Return the facts of this host as seen by `python`; `worker` is how it finds the node side.

    `words` are the probe's own options, with which it may take up to `wait_s` longer.

    Raises:
        EnvironmentUnfitError: the probe cannot be started, fails, or hangs.
    """
    command = [python, *worker, "probe", *words]
    limit_s = TIMEOUT_S + wait_s
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        facts: dict[str, Any] = json.loads(answer.stdout)
    except OSError as error:
        raise EnvironmentUnfitError(f"cannot be started: {error.strerror}", place=python) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfitError(
            f"the probe gave no answer within {limit_s:.0f} s",
            place=python,
            next_step="A driver may hang: try nvidia-smi, and look at dmesg",
        ) from error
    except ValueError as error:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentUnfitError(f"the probe failed: {last}", place=python) from error
    return facts
