"""Compile the C++ part once per torch version, and load it.

The library is stored in the user's cache folder, under a name derived from torch's version and the sources,
so that a change to either triggers a rebuild. An operating system lock lets one process compile while other
processes wait; a process that dies cannot leave the lock held.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch

from gpuproof.base.errors import EnvironmentUnfitError

NAME = "gpuproof_simgpu_device"
SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-O1", "-std=c++20")
"""The C++ part computes little, so -O1 is enough, and it compiles in half the time that -O3 needs."""


def load_device() -> ModuleType:
    """Return the compiled module, compiling it first if necessary (about a minute).

    Raises:
        EnvironmentUnfitError: there is no compiler or Python header, or compilation fails.
    """
    folder = _folder()
    library = folder / f"{NAME}.so"
    if not library.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not library.is_file():
                _compile(library)
    return _imported(library)


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.implementation.cache_tag}"
    return cache / "gpuproof" / "simgpu" / f"torch-{torch.__version__}-{python}-{_fingerprint()}"


def _fingerprint() -> str:
    """Return a short digest of all sources."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "compiling").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _compile(library: Path) -> None:
    _check_tools()
    from torch.utils import cpp_extension  # slow, and needed only here

    with TemporaryDirectory(dir=library.parent) as aside:
        made = Path(aside) / library.name
        headers = [
            f"-isystem{path}" for path in (*cpp_extension.include_paths(), sysconfig.get_path("include"))
        ]
        linked = [f"-L{path}" for path in cpp_extension.library_paths()]
        # An argument list instead of a build file: torch's own build fails if its folder's name contains a
        # space.
        done = subprocess.run(
            [
                *(os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-std=c++20", *FLAGS, *headers),
                *(f"-DTORCH_EXTENSION_NAME={NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"),
                *(str(_together(Path(aside))), *linked, "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
                *("-o", str(made)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EnvironmentUnfitError(
                f"the simulator does not compile against torch {torch.__version__}: {done.stderr[-2000:]}",
                next_step="It requires torch 2.13; install that version",
            )
        made.rename(library)


def _together(folder: Path) -> Path:
    """Write one file that includes all sources, so torch's headers, the slowest part, are read once."""
    whole = folder / "whole.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in sorted(SOURCES.glob("*.cpp"))))
    return whole


def _check_tools() -> None:
    """Return the names of missing build requirements."""
    compiler = os.environ.get("CXX", "c++")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = [
        name
        for name, there in (
            (f"a C++ compiler ({compiler})", shutil.which(compiler)),
            (str(header), header.is_file()),
        )
        if not there
    ]
    if missing:
        raise EnvironmentUnfitError(
            f"simgpu is compiled on first use, but there is no {' and no '.join(missing)}",
            place="distributed.device",
            next_step="On Debian and Ubuntu: apt-get install g++ python3-dev",
        )


def _imported(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
