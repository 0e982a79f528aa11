#!/usr/bin/env python3
"""The study of one GPU against several, by its old name: `gpuproof scale`.

What its options are in gpuproof's words stands in src/gpuproof/cli/older.py.
"""

from pathlib import Path

from gpu_loadtest import become

if __name__ == "__main__":
    become(Path(__file__).name)
