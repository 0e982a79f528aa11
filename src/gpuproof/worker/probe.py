"""`python -m gpuproof.worker probe`: what this host has, as one JSON object on standard output."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from gpuproof import __version__


def main(_arguments: Sequence[str]) -> int:
    """Print the facts; without torch, those that need none, and the reason."""
    facts: dict[str, object] = {"gpuproof": __version__, "executable": sys.executable}
    facts["modules"] = {name: find_spec(name) is not None for name in ("psutil", "pynvml")}
    facts["compiler"] = shutil.which("c++") or shutil.which("g++")
    try:
        from gpuproof.worker.environment import describe_host

        facts |= describe_host()
    except ImportError as error:
        facts |= _without_torch(error)
    sys.stdout.write(json.dumps(facts, allow_nan=False) + "\n")
    return 0


def _without_torch(error: ImportError) -> dict[str, object]:
    from gpuproof.devices.describe import describe_devices

    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": None,
        "torch_missing": str(error),
        "accelerators": describe_devices(dict(os.environ)),
    }
