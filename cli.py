#!/usr/bin/env python3
"""The old command line of the load test: `gpuproof load` and `gpuproof cloud lambda`.

What its options are in gpuproof's words stands in src/gpuproof/cli/older.py.
"""

from pathlib import Path

from gpu_loadtest import become

if __name__ == "__main__":
    become(Path(__file__).name)
