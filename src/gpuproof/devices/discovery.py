"""Which devices does this host have, over all vendors at once, and what does the framework call them?

Every vendor is asked; one that is absent leaves its reason. Devices are numbered in the order of their PCI
addresses. The environment and the root of sysfs come in as parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuproof.devices.guard import GuardedDevices

DEADLINE_S = 2.0
"""Longer than any driver call that is going to return, short enough to lose one tick only."""


def open_devices(
    env: Mapping[str, str], *, sysfs_root: Path = Path("/sys"), deadline_s: float = DEADLINE_S
) -> GuardedDevices:
    """Open every vendor's devices; without any, the answer has no device and a reason for each vendor."""
    raise NotImplementedError
