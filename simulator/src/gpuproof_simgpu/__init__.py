"""A simulated asynchronous accelerator: the torch device `simgpu`, registered by `activate()`.

Values are computed immediately on the CPU. Time passes on a separate timeline for each device, and the host
runs ahead of it. See docs/developers/simulator.md.
"""

from gpuproof_simgpu.backend import activate

__all__ = ["activate"]
