"""The simulated accelerator in tests: whether it can be built here, and its declaration for a subprocess."""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpuproof.devices.simulated import VARIABLE
from running import clean_environment

HEADER = Path(sysconfig.get_path("include")) / "Python.h"

needs_simulator = pytest.mark.skipif(
    not (find_spec("gpuproof_simgpu") and shutil.which("c++") and HEADER.is_file()),
    reason="simgpu is not installed or cannot be compiled (pip install -e simulator; g++, python3-dev)",
)


def simulated(faults: Mapping[int, Mapping[str, Any]] | None = None, **declared: Any) -> dict[str, str]:
    """Return an environment in which these devices are simulated."""
    declaration = {**declared, "faults": {str(index): dict(fault) for index, fault in (faults or {}).items()}}
    return clean_environment(**{VARIABLE: json.dumps(declaration)})
