"""gpuproof: measure GPUs under deep-learning load, explain what was measured, and judge it.

The Python API is `run`, `load_result`, `load_step_times`, `compare` and `monitor`, and `RunResult`, which
most of them return. Each is imported when it is first used: the package is opened by the command line, by
workers on nodes that have only Python and PyTorch, and by monitors that have Python alone.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuproof.campaign.api import RunResult as RunResult
    from gpuproof.campaign.api import compare as compare
    from gpuproof.campaign.api import load_result as load_result
    from gpuproof.campaign.api import load_step_times as load_step_times
    from gpuproof.campaign.api import run as run
    from gpuproof.monitor.watch import monitor as monitor

__version__ = "0.2.0"
__all__ = ["RunResult", "__version__", "compare", "load_result", "load_step_times", "monitor", "run"]

MOVED = {
    "gpuproof.errors": "gpuproof.base.errors",
    "gpuproof.units": "gpuproof.base.units",
    "gpuproof.registry": "gpuproof.base.registry",
    "gpuproof.analysis": "gpuproof.launches",
    "gpuproof.analysis.launch": "gpuproof.launches.launch",
    "gpuproof.analysis.explanations": "gpuproof.launches.explanations",
    "gpuproof.analysis.point_figures": "gpuproof.launches.point_measures",
    "gpuproof.launches.point_figures": "gpuproof.launches.point_measures",
    "gpuproof.suites.exports": "gpuproof.suites.results",
    "gpuproof.suites.measures": "gpuproof.suites.results",
}
"""Modules that documentation named in 0.2, and where they are now: the old names keep working."""


class _Moved:
    """Finds and loads a module under the name that it had in 0.2: it is the same module."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Moved) if name in MOVED else None  # type: ignore[arg-type]  # a loader

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Moved)  # first: `analysis` has the path of `launches`


def __getattr__(name: str) -> Any:
    if name == "monitor":
        return import_module("gpuproof.monitor")  # the package, which can be called
    if name in __all__:
        return getattr(import_module("gpuproof.campaign.api"), name)
    raise AttributeError(f"module 'gpuproof' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return __all__
