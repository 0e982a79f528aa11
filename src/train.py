#!/usr/bin/env python3
"""Training for the cluster test, under its old name: `gpuproof validate --mode training`.

src/gpuproof/cli/older.py maps the old options to gpuproof's.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_loadtest import become

if __name__ == "__main__":
    become(Path(__file__).name)
