"""The sampler: a process of its own that reads devices and host beside the work.

Called, the package records beside a block of Python:

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
    """The name `gpuproof.monitor` is this package and a function of the Python API."""

    def __call__(
        self,
        out: str | os.PathLike[str],
        *,
        interval_s: float | None = None,
        slow_interval_s: float | None = None,
        devices: Sequence[int] | None = None,
    ) -> AbstractContextManager[Path]:
        """Record GPUs and host of this machine to `out` while a block of Python runs; give the file's path.

        `out` is a new file of JSON Lines; `interval_s` and `slow_interval_s` are seconds between readings
        (0.2) and between those of costly metrics (1); `devices` are physical indices, by default all.

        Raises:
            UsageError: `out` is there already, or the options cannot be met (standard error says why).
            EnvironmentUnfitError: the sampler's process cannot be started.
        """
        from gpuproof.monitor.watch import monitor

        return monitor(out, interval_s=interval_s, slow_interval_s=slow_interval_s, devices=devices)


sys.modules[__name__].__class__ = _CallablePackage
