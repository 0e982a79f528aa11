"""How is another process of this same gpuproof started? From the same files or archive, whatever lies around.

In: the name of a module that has `main(argv) -> int`. Out: an argument list. The working directory, where a
user's `random.py` or another gpuproof may lie, is never imported from. Standard library only: both halves
use this.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gpuproof

_BOOT = (
    "import sys; sys.path[0] = sys.argv.pop(1); name = sys.argv.pop(1); "
    "from importlib import import_module; sys.exit(import_module(name).main(sys.argv[1:]))"
)


def our_command(module: str) -> list[str]:
    """Return the start of a command line that runs `module`'s `main`; its arguments come after it."""
    root = Path(gpuproof.__file__).resolve().parents[1]
    return [sys.executable, "-c", _BOOT, str(root), module]
