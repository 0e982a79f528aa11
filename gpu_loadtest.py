#!/usr/bin/env python3
"""The load suite as a script of a checkout: `python gpu_loadtest.py [OPTIONS]` is `gpuproof load [OPTIONS]`.

It runs in the Python that it is started with where gpuproof is installed there, else in the environment that
`make run` has made beside it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

OWN_PYTHON = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
UNFIT_ENVIRONMENT = 5


def main() -> None:
    """Become `gpuproof load`."""
    is_installed = importlib.util.find_spec("gpuproof") is not None
    python = Path(sys.executable) if is_installed else OWN_PYTHON
    if not python.is_file():
        sys.stderr.write("gpu_loadtest.py: gpuproof is not installed. Run `make run` in this folder once.\n")
        sys.exit(UNFIT_ENVIRONMENT)
    os.execv(python, [str(python), "-m", "gpuproof", "load", *sys.argv[1:]])  # noqa: S606  # no shell wanted


if __name__ == "__main__":
    main()
