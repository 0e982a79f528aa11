"""A simulated asynchronous accelerator, as the torch device `simgpu`: `activate()` makes it known to torch.

Values are computed at once on the processor; time passes on a timeline of each device, and the host runs
ahead of it. See docs/developers/simulator.md.
"""

from gpuproof_simgpu.backend import activate

__all__ = ["activate"]
