#!/usr/bin/env python3
"""A training with its monitor, by its old name: `gpuproof monitor exec`.

What its options are in gpuproof's words stands in src/gpuproof/cli/older.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_loadtest import become

if __name__ == "__main__":
    become(Path(__file__).name)
