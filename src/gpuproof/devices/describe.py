"""What devices does this host have, in words and numbers for environment capture and `doctor`?

Opens every vendor, reads each device's static facts, closes everything. What comes out is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuproof.devices.discovery import open_devices
from gpuproof.records.codec import to_json


def describe_devices(env: Mapping[str, str], *, sysfs_root: Path = Path("/sys")) -> dict[str, Any]:
    """Describe the host's devices and, for each vendor without any, why.

    `drivers` maps a vendor to its driver's version (and `cuda`, the newest CUDA it supports).

    Raises:
        UsageError: GPUPROOF_FAKE_DEVICES or GPUPROOF_REPLAY_DEVICES cannot be read.
    """
    devices = open_devices(env, sysfs_root=sysfs_root)
    try:
        identities = devices.identities
        return {
            "devices": [to_json(identity) for identity in identities],
            "drivers": {
                identity.vendor: {
                    name: identity.static[fact]
                    for name, fact in (("version", "driver_version"), ("cuda", "cuda_version"))
                    if fact in identity.static
                }
                for identity in identities
            },
            "absent": dict(devices.absent),
        }
    finally:
        devices.close()
