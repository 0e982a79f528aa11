#!/usr/bin/env python3
"""The load suite as a script: `python gpu_loadtest.py [OPTIONS]` is `gpuproof load [OPTIONS]`.

It runs in the Python that it is started with where gpuproof is installed there, else in the environment that
`make run` has made beside it. Copied to a machine by itself, it says the line that installs what it needs.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OWN_PYTHON = HERE / ".venv" / "bin" / "python"
UNFIT_ENVIRONMENT = 5
OLDEST_PYTHON = (3, 11)


def become(*words: str) -> None:
    """Become `gpuproof WORDS` with the options of this command line: for the scripts of older tools, too."""
    is_installed = all(map(importlib.util.find_spec, ("gpuproof", "click")))  # the node's half lacks click
    python = Path(sys.executable) if is_installed else OWN_PYTHON
    if not python.is_file():
        sys.stderr.write(
            f"{Path(sys.argv[0]).name}: gpuproof is not installed, with what it needs, in {sys.executable}. "
            f"{how_to_install()}\n"
        )
        sys.exit(UNFIT_ENVIRONMENT)
    os.execv(python, [str(python), "-P", "-m", "gpuproof", *words, *sys.argv[1:]])  # noqa: S606  # no shell wanted


def how_to_install() -> str:
    """Return the line that installs it: in a checkout, from a wheel beside this file, or from elsewhere."""
    if sys.version_info < OLDEST_PYTHON:
        return f"It needs Python 3.11 or newer, and this is {sys.version.split()[0]}."
    if (HERE / "pyproject.toml").is_file():
        return f"Run once: make -C {shlex.quote(str(HERE))} run"
    wheels = sorted(HERE.glob("gpuproof-*.whl"))
    source = str(wheels[-1]) if wheels else "/PATH/TO/gpuproof"
    line = shlex.join([sys.executable, "-m", "pip", "install", f"{source}[torch]"])
    if wheels:
        return f"Install it once: {line}"
    return (
        f"Copy its checkout, or a wheel of it (pip wheel --no-deps .), here and install it once: {line}\n"
        "Or install nothing here: on a machine that has gpuproof, run `gpuproof load --deployment-file FILE` "
        "with this one in FILE; it needs Python with torch, and the rest is carried over and removed."
    )


if __name__ == "__main__":
    become("load")
