"""Build the simulator's C++ part if necessary, and print the declared devices."""

from __future__ import annotations

import torch

from gpuproof.base.errors import GpuproofError
from gpuproof_simgpu.backend import activate


def main() -> int:
    """Print one line per device; return the exit code."""
    try:
        activate()
    except GpuproofError as error:
        print(error)
        return error.exit_code
    for index in range(torch.get_device_module("simgpu").device_count()):
        print(f"simgpu:{index}", torch.get_device_module("simgpu").get_device_properties(index))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
