#!/usr/bin/env python3
"""Training with monitoring, under its old name; now `gpuproof monitor exec`.

src/gpuproof/cli/older.py maps its options to gpuproof's.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_loadtest import become

if __name__ == "__main__":
    become(Path(__file__).name)
