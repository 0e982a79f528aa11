"""Communication profiles: settings that NCCL is given before it starts, each to be tried against none.

What a variable does: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. No profile is known
to help anywhere; whether one does on a machine is what an A/B of launches in turns says.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.parallel import CommunicationProfile

NCCL = "nccl"
"""The backend that reads them."""
PROFILES: Mapping[CommunicationProfile, Mapping[str, str]] = {
    "none": {},
    "ring": {"NCCL_ALGO": "Ring"},
    "tree": {"NCCL_ALGO": "Tree"},
    "no_p2p": {"NCCL_P2P_DISABLE": "1"},
    "no_fabric": {"NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": "0"},
    "no_gpudirect": {"NCCL_NET_GDR_LEVEL": "LOC"},
    "pcie": {
        "NCCL_DEBUG": "INFO",
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": "Simple",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "0",
        "NCCL_NET_GDR_LEVEL": "0",
        "NCCL_BUFFSIZE": "33554432",
        "NCCL_NTHREADS": "16",
        "NCCL_MAX_NCHANNELS": "8",
        "NCCL_MIN_NCHANNELS": "4",
    },
}
"""Variables by profile. `no_fabric` leaves hosts IP sockets; with `no_gpudirect` cards copy through their
host. `pcie` is the set published for two GPUs without direct copies, prints and all."""


def apply_profile(profile: CommunicationProfile, environment: MutableMapping[str, str]) -> None:
    """Set the profile's variables in a process in which NCCL has not started.

    Raises:
        EnvironmentUnfitError: a variable is set to something else, so that it is not known what was meant.

    >>> environment = {}
    >>> apply_profile("tree", environment)
    >>> environment
    {'NCCL_ALGO': 'Tree'}
    """
    for name, value in PROFILES[profile].items():
        if environment.get(name, value) != value:
            raise EnvironmentUnfitError(
                f"{name} is {environment[name]}, and the communication profile {profile} sets {value}",
                place="distributed.communication_profile",
                next_step=f"Unset {name}, or set distributed.communication_profile=none",
            )
        environment[name] = value
