"""The sampler: a separate process that reads the devices and the host while the workload runs.

The package itself is callable, to record while a block of Python runs:

    with gpuproof.monitor("training.jsonl", interval_s=0.5):
        train()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType


class _CallablePackage(ModuleType):
    """The name `gpuproof.monitor` is both this package and a function of the Python API."""

    def __call__(
        self,
        out: str | os.PathLike[str],
        *,
        interval_s: float | None = None,
        slow_interval_s: float | None = None,
        devices: Sequence[int] | None = None,
    ) -> AbstractContextManager[Path]:
        """Record this machine's GPUs and host to `out` while a block of Python runs; return the path.

        `out` is a new JSON Lines file; `interval_s` is the time between readings in seconds (0.2) and
        `slow_interval_s` is the time between readings of costly metrics (1); `devices` are physical indices,
        by default all.

        Raises:
            UsageError: `out` already exists, or the options are not supported (see standard error).
            EnvironmentUnfitError: the sampler's process cannot be started.
        """
        from gpuproof.monitor.watch import monitor

        return monitor(out, interval_s=interval_s, slow_interval_s=slow_interval_s, devices=devices)


sys.modules[__name__].__class__ = _CallablePackage
