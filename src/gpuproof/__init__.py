"""gpuproof: measure GPUs under deep-learning load, explain what was measured, and judge it.

The Python API is `run`, `load_result`, `load_step_times`, `compare` and `monitor`, and `RunResult`, which
most of them return. Each is imported when it is first used: the package is opened by the command line, by
workers on nodes that have only Python and PyTorch, and by monitors that have Python alone.
"""

from __future__ import annotations

from importlib import import_module
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


def __getattr__(name: str) -> Any:
    if name == "monitor":
        return import_module("gpuproof.monitor")  # the package, which can be called
    if name in __all__:
        return getattr(import_module("gpuproof.campaign.api"), name)
    raise AttributeError(f"module 'gpuproof' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return __all__
