"""The sampler: a process of its own that reads devices and host beside the work.

Called, the package records beside a block of Python; `gpuproof.monitor.watch.monitor` has the parameters:

    with gpuproof.monitor("training.jsonl", interval_s=0.5):
        train()
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """The name `gpuproof.monitor` is this package and a function of the Python API."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from gpuproof.monitor.watch import monitor

        return monitor(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
